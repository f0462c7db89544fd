"""A table on disk: Markdown, JSON, a picture and an HTML page of the same rows, whatever kind they are of."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from docleak.documents.visible import in_markdown, without_html
from docleak.files import write_atomically
from docleak.metrics import Estimate
from docleak.recipes.recipe import Recipe
from docleak.report.templating import render


@dataclass(frozen=True)
class Group:
    """The rows of one model: names and cells, and the units of each row that failed, with their errors."""

    title: str
    rows: Sequence[tuple[str, Sequence[str]]]
    failed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """A PNG under the table, its heading, and what it shows in words."""

    png: bytes
    heading: str
    shows: str


def write_page(
    recipe: Recipe,
    scale: str,
    out: Path,
    *,
    heads: Sequence[str],
    groups: Sequence[Group],
    facts: Mapping[str, str],
    footnote: str,
    picture: Picture | None,
    saved: Sequence[Mapping[str, Any]],
) -> Path:
    """Write table.md, table.json (with the rows as ``saved``), pictures.png and table.html; returns the page.

    ``heads`` name the cells of every row.
    """
    uri = ""
    if picture is not None:
        write_atomically(out / "pictures.png", picture.png)
        uri = "data:image/png;base64," + base64.b64encode(picture.png).decode()
    write_atomically(out / "table.md", _markdown(recipe, scale, heads, groups, facts).encode())
    value = {"recipe": recipe.name, "scale": scale, **facts, "rows": list(saved)}
    write_atomically(out / "table.json", (json.dumps(value, indent=1) + "\n").encode())
    html = render(
        "recipe_old.html.j2", recipe=recipe, scale=scale, groups=groups, heads=heads, facts=facts,
        footnote=footnote, picture=picture, uri=uri,
    )  # fmt: skip
    write_atomically(out / "table.html", html.encode("utf-8", "backslashreplace"))
    return out / "table.html"


def _markdown(
    recipe: Recipe, scale: str, heads: Sequence[str], groups: Sequence[Group], facts: Mapping[str, str]
) -> str:
    finding = without_html(f"{recipe.paper}, scale {scale}. The paper's finding: {recipe.finding}")
    parts = [f"## {in_markdown(recipe.title)}", "", finding, ""]
    for group in groups:
        parts += [
            f"### {in_markdown(group.title)}",
            "",
            "| " + " | ".join(["row", *heads]) + " |",
            "|" + "---|" * (1 + len(heads)),
        ]
        parts += [
            "| " + " | ".join([in_markdown(name), *map(without_html, cells)]) + " |" for name, cells in group.rows
        ] + [""]
    parts += [f"{name}: {without_html(value)}  " for name, value in facts.items()]
    if recipe.note:
        parts += ["", without_html(recipe.note)]
    return "\n".join(parts) + "\n"


def estimate_text(e: Estimate, digits: int, percent: bool) -> str:
    """A mean with its interval in square brackets; "-" where nothing was scored."""
    if e.value is None:
        return "-"
    text = number_text(e.value, digits, percent)
    if e.low is None or e.high is None:
        return text
    return f"{text} [{number_text(e.low, digits, percent)}, {number_text(e.high, digits, percent)}]"


def with_printed(ours: str, printed: float | None, digits: int, percent: bool) -> str:
    """Our cell, and the paper's value in round brackets where it prints one."""
    return ours if printed is None else f"{ours} (paper {number_text(printed, digits, percent)})"


def number_text(value: float, digits: int, percent: bool) -> str:
    """The value with so many digits, as a percentage if asked for."""
    return f"{100 * value:.{digits}f}%" if percent else f"{value:.{digits}f}"


def failed_text(failed: Mapping[str, str]) -> str:
    """What is added to a count of units where some failed."""
    return f", {len(failed)} failed" if failed else ""
