"""One table: rows of values that know their interval, as Markdown, HTML, CSV, JSON or a pandas DataFrame."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any, Literal

from docleak.documents.visible import in_markdown, without_html
from docleak.metrics.estimate import Estimate, number_text

if TYPE_CHECKING:
    import pandas

#: What a cell may hold.
Value = Estimate | float | int | str | None


@dataclass(frozen=True)
class Column:
    """``head`` stands over the column; its numbers are printed with so many ``digits``, or in per cent. On a page, a
    ``bar`` shows shares, too. A ``bound`` is rounded so that it still holds: up what is "most", down what is "least".
    """

    head: str
    digits: int = 3
    percent: bool = False
    bar: bool = False
    bound: Literal["", "most", "least"] = ""

    def text(self, value: Value, *, printed: float | None = None) -> str:
        """A cell: ours with its interval in square brackets, then what was ``printed`` elsewhere in round ones."""
        if isinstance(value, Estimate):
            held = value if value.value is None else replace(value, value=self._held(value.value))
            ours = held.text(self.digits, percent=self.percent)
        elif isinstance(value, str) or value is None:
            ours = value or "-"
        else:
            ours = number_text(self._held(value), self.digits, percent=self.percent)
        return ours if printed is None else f"{ours} (paper {self.printed(printed)})"

    def number(self, value: float) -> str:
        """A number of the column by itself."""
        return number_text(value, self.digits, percent=self.percent)

    def printed(self, value: float) -> str:
        """A number that a paper prints: its halves are rounded up, for 53.95 is no 53.949, which floats make of it."""
        return self.number(self._to_digits(value, ROUND_HALF_UP))

    def _held(self, value: float) -> float:
        if not self.bound:
            return value
        return self._to_digits(value, ROUND_CEILING if self.bound == "most" else ROUND_FLOOR)

    def _to_digits(self, value: float, rounding: str) -> float:
        """The number with no more decimals than are shown."""
        if not math.isfinite(value):
            return value
        last = Decimal(1).scaleb(-self.digits - 2 * self.percent)
        return float(Decimal(repr(float(value))).quantize(last, rounding))


@dataclass(frozen=True)
class Row:
    """``name`` stands first; ``values`` and ``printed`` (of a paper) by the names of columns. ``failed``: units that
    were given up, with their errors; ``facts`` go to JSON and DataFrames alone. ``note`` stands small under the name, a
    ``quiet`` row is a yardstick and no result."""

    name: str
    values: Mapping[str, Value]
    printed: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    quiet: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of the same columns under a ``title``; ``caption`` says what the numbers are. ``open``: no cell is a
    private value, so a redacted edition shows it."""

    title: str
    columns: Mapping[str, Column]
    rows: Sequence[Row]
    caption: str = ""
    first: str = "row"
    open: bool = False

    def cells(self, row: Row) -> list[str]:
        """The row's cells as text, without its name; a count of failed units is added to the first."""
        texts = [column.text(row.values.get(key), printed=row.printed.get(key)) for key, column in self.columns.items()]
        if row.failed and texts:
            texts[0] += f", {len(row.failed)} failed"
        return texts

    def html_cells(self, row: Row) -> list[tuple[str, str, str, Estimate | None]]:
        """(head, value, interval, what a bar shows) of each cell; an interval of one point says nothing."""
        cells = []
        for (key, column), text in zip(self.columns.items(), self.cells(row), strict=True):
            value = row.values.get(key)
            small = ""
            if isinstance(value, Estimate) and (small := value.interval_text(column.digits, percent=column.percent)):
                text = text.replace(f" [{small}]", "", 1)
                small = value.interval_text(column.digits, percent=column.percent, to=" to ")
                small = "" if value.low == value.high else small
            shown = value if column.bar and isinstance(value, Estimate) and value.value is not None else None
            cells.append((column.head, text, small, shown))
        return cells

    @property
    def heads(self) -> list[str]:
        """What stands over the cells."""
        return [column.head for column in self.columns.values()]

    def to_markdown(self) -> str:
        """A heading, the table, and its caption."""
        lines = [f"### {in_markdown(self.title)}", ""] if self.title else []
        heads = " | ".join(map(in_markdown, [self.first, *self.heads]))
        lines += [f"| {heads} |", "|" + "---|" * (1 + len(self.columns))]
        lines += [
            "| " + " | ".join([in_markdown(name), *map(without_html, self.cells(row))]) + " |"
            for row, name in ((row, f"{row.name} ({row.note})" if row.note else row.name) for row in self.rows)
        ]
        return "\n".join([*lines, *(["", without_html(self.caption)] if self.caption else [])]) + "\n"

    def to_json(self) -> list[dict[str, Any]]:
        """A plain object per row: its name, facts, ours, printed and failed."""
        return [
            {
                "row": row.name,
                **({"note": row.note} if row.note else {}),
                **row.facts,
                "ours": {key: v.to_json() if isinstance(v, Estimate) else v for key, v in row.values.items()},
                "paper": dict(row.printed),
                "failed": dict(row.failed),
            }
            for row in self.rows
        ]

    def records(self) -> list[dict[str, Any]]:
        """A flat record per row: NAME, NAME_low, NAME_high and NAME_paper for each number, and facts that are no lists
        or objects."""
        records = []
        for row in self.rows:
            flat = {key: fact for key, fact in row.facts.items() if not isinstance(fact, Mapping | list | tuple)}
            record: dict[str, Any] = {self.first: row.name, **({"note": row.note} if row.note else {}), **flat}
            for key, value in row.values.items():
                record[key] = value.value if isinstance(value, Estimate) else value
                if isinstance(value, Estimate):
                    record |= {f"{key}_low": value.low, f"{key}_high": value.high, f"{key}_n": value.n}
            records.append({**record, **{f"{key}_paper": value for key, value in row.printed.items()}})
        return records

    def to_csv(self) -> str:
        """``records`` with a line of heads."""
        records = self.records()
        heads = list(dict.fromkeys(key for record in records for key in record))
        text = io.StringIO()
        writer = csv.DictWriter(text, heads, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def to_frame(self) -> pandas.DataFrame:
        """``records`` as a DataFrame."""
        import pandas

        return pandas.DataFrame(self.records())

    def to_text(self) -> str:
        """Aligned for a terminal; a row's note stands under it."""
        lines = [[self.first, *self.heads], *([row.name, *self.cells(row)] for row in self.rows)]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        notes = ["", *(f"\n    {row.note}" if row.note else "" for row in self.rows)]
        return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + note
                         for line, note in zip(lines, notes, strict=True))  # fmt: skip
