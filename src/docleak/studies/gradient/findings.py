"""Which private fields a gradient gave away, and by which route: picture, words, answer, question.

All that a report says of a model (headline, bar, interval, summary, JSON) is computed from one ``Findings``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from docleak.documents.pages import gathered, grouped
from docleak.metrics import Estimate
from docleak.metrics.estimate import ratio_of
from docleak.report.severity import OUTSIDE, Cell, Judgement, Route, judge, union
from docleak.spec import split_name
from docleak.studies.fields import cell_of
from docleak.studies.gradient.config import CLOSED_FORM

if TYPE_CHECKING:
    from docleak.studies.gradient.results import Unit

#: Attacks that see no gradient: what they draw is a floor, and no finding.
FLOORS = ("random",)
#: The order in which routes are told.
ROUTES = ("picture", "words", "answer", "question")


@dataclass(frozen=True)
class FieldFound:
    """One private field of one audited page: what each route says of it, and all of them together. ``identity`` tells
    it from the fields of all other pages. ``words_given``: every attack whose picture says so had the OCR words;
    ``spelt``: the page's words at its place are its value."""

    identity: tuple[object, ...]
    page: str
    document: str
    key: str
    routes: Mapping[str, Cell]
    words_given: bool = False
    spelt: bool = True

    @property
    def otherwise(self) -> bool:
        """Whether it was read as words alone, and these are not its value."""
        read = [name for name, cell in self.routes.items() if cell is Cell.READ]
        return read == ["words"] and not self.spelt

    @property
    def cell(self) -> Cell:
        """What all routes together say."""
        return union([Route(name, (cell,)) for name, cell in self.routes.items()])[0]

    def to_json(self) -> dict[str, Any]:
        return {"page": self.page, "key": self.key, "found": str(self.cell),
                "routes": {name: str(cell) for name, cell in self.routes.items()}}  # fmt: skip


@dataclass(frozen=True)
class Findings:
    """The fields of a model's audited pages. ``share`` is that of fields read by any route, its interval over
    documents; ``untried`` says of routes that could not be tried why, ``unread`` of text that was looked for why
    nothing was read."""

    fields: tuple[FieldFound, ...]
    routes: tuple[Route, ...]
    judgement: Judgement
    share: Estimate
    untried: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        routes = [{"name": r.name, "read": r.read, "of": r.of, "cells": _counts(r.cells)} for r in self.routes]
        return {
            "severity": str(self.judgement.severity), "label": self.judgement.severity.label,
            "read": self.judgement.read, "of": self.judgement.of, "cells": _counts(self.judgement.cells),
            "share": self.share.to_json(), "routes": routes, "doubts": list(self.judgement.doubts),
            "untried": list(self.untried), "unread": list(self.unread),
            "fields": [field.to_json() for field in self.fields],
        }  # fmt: skip


def _counts(cells: Sequence[Cell]) -> dict[str, int]:
    return {str(cell): cells.count(cell) for cell in Cell if cell in cells}


def findings_of(units: Sequence[Unit], doubts: Sequence[str], rng: np.random.Generator) -> Findings:
    """What all finished units of one model say together; ``doubts`` forbid an all-clear, as in ``severity.judge``."""
    pages, ones = grouped(units, lambda unit: unit.identity), _ones(units)
    fields = [field for identity, group in pages.items() for field in _fields_of(group, ones.pop(identity, []))]
    fields += [field for identity, texts in ones.items() for field in _fields_beside(identity, texts)]
    named = [name for name in ROUTES if any(field.routes.get(name, Cell.NOT) is not Cell.NOT for field in fields)]
    shown = [name for name in ROUTES if name in named or (name != "question" and any(name in f.routes for f in fields))]
    limit = next((u.text["token_limit"] for u in units if u.text is not None and u.text.get("token_limit")), None)
    routes = tuple(
        Route(name, tuple(field.routes.get(name, Cell.UNSCORED) for field in fields),
              f"behind its {limit} tokens" if limit else "behind its last token",
              "the OCR words" if name == "picture" and any(field.words_given for field in fields) else "")
        for name in shown
    )  # fmt: skip
    untried = tuple(dict.fromkeys(reason for group in pages.values() for reason in _untried(group)))
    alarms = tuple(dict.fromkeys(alarm for group in pages.values() for alarm in _alarms(group)))
    failures = [failure for group in pages.values() for failure in _failures(group)]
    unread = tuple(dict.fromkeys(why for why, _ in failures))
    odd = tuple(dict.fromkeys(why for why, explained in failures if not explained))
    said = judge([field.cell for field in fields], [*doubts, *alarms, *(f"{why}." for why in untried), *odd])
    return Findings(tuple(fields), routes, said, _share(fields, rng), untried, unread)


def _ones(units: Sequence[Unit]) -> dict[tuple[object, ...], list[Mapping[str, Any]]]:
    """What was claimed to be read of one page of a batch, by the page that it is most like: the target or another."""
    ones = [(unit.record.get("recovered") or {}).get("one") or {} for unit in units]
    return grouped((one for one in ones if one.get("claimed")), lambda one: (one["page"], *map(tuple, one["values"])))


def _fields_beside(identity: tuple[object, ...], texts: Sequence[Mapping[str, Any]]) -> Iterator[FieldFound]:
    """The fields of a page that was in a batch, and was read there, but that no picture was attacked of."""
    for index, (key, _) in enumerate(texts[0]["values"]):
        told = [_text_cells(text, len(text["values"])) for text in texts]
        routes = {name: union([Route(name, (cells[name][index],)) for cells in told])[0] for name in told[0]}
        yield FieldFound(
            (*identity, index), str(texts[0]["page"]), str(texts[0]["document"]), str(key), routes,
            spelt=_spelt(texts, index),
        )  # fmt: skip


def _fields_of(group: Sequence[Unit], ones: Sequence[Mapping[str, Any]] = ()) -> Iterator[FieldFound]:
    """The fields of one page, from all its units. Text was not looked for where a field has no place on the page."""
    first = group[0]
    texts = [*(unit.text for unit in group if unit.text is not None), *ones]
    attacks = [unit for unit in group if unit.record["attack"] not in FLOORS and not blind(unit.record)]
    placed = [index for index, field in enumerate(first.score.fields) if field.mse is not None]
    for index, field in enumerate(first.score.fields):
        routes, given, spelt = {}, False, True
        if attacks:
            shown = [(picture_cell(unit, index), unit) for unit in attacks]
            routes["picture"] = union([Route("picture", (cell,)) for cell, _ in shown])[0]
            given = all(words_given(unit.record) for cell, unit in shown if cell is routes["picture"])
        told = [_text_cells(text, len(placed)) for text in texts] if index in placed else []
        for name in dict.fromkeys(name for cells in told for name in cells):
            at = placed.index(index)
            routes[name] = union([Route(name, (cells[name][at],)) for cells in told if name in cells])[0]
            spelt = _spelt(texts, at)
        unread = Cell.NOT if any(map(_tried, group)) else Cell.UNTRIED
        none = {"words": unread if index in placed else Cell.UNSCORED} if blind(first.record) else (
            {"picture": Cell.UNSCORED}
        )  # fmt: skip
        yield FieldFound(
            (*first.identity, index), first.page, first.score.document, field.key, routes or none, given, spelt,
        )  # fmt: skip


def blind(record: Mapping[str, Any]) -> bool:
    """Whether the model of a unit reads no picture, so that nothing of one could be attacked."""
    return not record["view"].get("sees", True)


def _tried(unit: Unit) -> bool:
    """Whether the text of a unit could be looked for: there is a way to read it, and what that reads was sent."""
    looked = unit.record.get("recovered") or {"applies": False}
    return bool(looked.get("applies", True) and looked.get("sent", True))


def picture_cell(unit: Unit, index: int) -> Cell:
    """What one attack's picture says of a field. The answer, where the attacker had it, is no finding, nor is what
    the blank template shows."""
    field, floor, ceiling = (score.fields[index] for score in (unit.score, unit.floor, unit.ceiling))
    return cell_of(field, floor, ceiling, given=unit.given(field))


def text_recovered(record: Mapping[str, Any]) -> bool:
    """Whether the attacks of a unit had no text but what was read out of the gradient before."""
    return any("read out of the gradient" in str(sentence) for sentence in record["knowledge"])


def text_taken(record: Mapping[str, Any]) -> bool:
    """Whether the attack of a unit worked with the text that its adversary was given. What was read out of the
    gradient before was not given; the closed form takes no text unless optimisation goes on from it."""
    alone = split_name(str(record["attack"]))[0] == CLOSED_FORM and record["finding"].get("evaluations") == 0
    return not (alone or text_recovered(record))


def words_given(record: Mapping[str, Any]) -> bool:
    """Whether the attack of a unit worked with the page's OCR words."""
    return bool(record["view"].get("words_known")) and text_taken(record)


def answer_given(record: Mapping[str, Any]) -> bool:
    """Whether the attack of a unit worked with the answer to the client's question."""
    return bool(record["view"].get("answer_known")) and text_taken(record)


def _text_cells(text: Mapping[str, Any], count: int) -> dict[str, list[Cell]]:
    """Route -> a cell per field, from what linear algebra read of a page's text; words behind the limit are UNSEEN."""
    read = text["fields_read"]
    by = text.get("fields_by") or {"words" if text["words"] else "answer": read}
    seen = text.get("fields_seen") or [True] * count
    return {
        name: [Cell.READ if one else Cell.UNSEEN if name == "words" and not there else Cell.NOT
               for one, there in zip(flags, seen, strict=True)]
        for name, flags in by.items()
    }  # fmt: skip


def _spelt(texts: Sequence[Mapping[str, Any]], index: int) -> bool:
    return all(text["fields_spelt"][index] for text in texts if "fields_spelt" in text)


def _untried(group: Sequence[Unit]) -> Iterator[str]:
    """Why a route was not tried on a page at all; silence about it is no finding."""
    if all(unit.record["attack"] in FLOORS for unit in group):
        yield "No attack on the picture was made, only the floor"
    records = [unit.record.get("recovered") for unit in group]
    looked = [record for record in records if record]
    if not looked:
        yield "The text (words, question, answer) was not looked for"
    elif all("failed" in record and not record.get("applies", True) for record in looked) or (
        blind(group[0].record) and not any(map(_tried, group))  # of a model that sees, the picture was tried
    ):
        yield f"The text was not tried: {str(looked[0]['failed']).rstrip('.')}"
    yield from (record["untried"] for record in looked if "untried" in record)


def _failures(group: Sequence[Unit]) -> Iterator[tuple[str, bool]]:
    """Why text that has a closed form was not read on a page, and whether what the client sends explains it."""
    records = [(unit, unit.record["recovered"]) for unit in group if unit.record.get("recovered")]
    unexposed = blind(group[0].record) and not any(map(_tried, group))
    if all("failed" in record for _, record in records) and not unexposed:
        for unit, record in records:
            if record.get("applies", True):
                stages = (unit.run.config.get("exposure") or {}).get("stages")
                unsent = "text" not in (stages or ("text",))
                explained = unsent or unit.record["view"].get("defense", "none") != "none"
                yield f"Text looked for, not read: {str(record['failed']).rstrip('.')}.", explained


def _alarms(group: Sequence[Unit]) -> Iterator[str]:
    """What the adversary itself can see going wrong, where nobody said that a defence would."""
    for unit in group:
        text = unit.text
        if text is None or text["exact"] or unit.record["view"].get("defense", "none") != "none":
            continue
        if 2 * int(text["tokens_right"]) < int(text["tokens"]):
            yield (
                "Linear algebra read mostly wrong tokens, though no defence was declared: this gradient is not what "
                "it is taken for."
            )


def _share(fields: Sequence[FieldFound], rng: np.random.Generator) -> Estimate:
    """The share of the countable fields that were read by any route; bootstrap over documents."""
    inside = [field for field in fields if field.cell not in OUTSIDE]
    read = gathered((field.document, float(field.cell is Cell.READ)) for field in inside)
    return ratio_of(read.values(), rng, missing=len(fields) - len(inside))
