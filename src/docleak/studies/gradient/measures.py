"""What an audit of gradients measured, in the vocabulary of ``docleak.report.measure``, and what it was about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from docleak.metrics.estimate import Estimate
from docleak.report.measure import EXPLAINED, FIELDS, Measure, holding, measured
from docleak.report.severity import OUTSIDE, Cell
from docleak.spec import counted_words
from docleak.studies.gradient.findings import FLOORS, blind
from docleak.studies.gradient.results import ModelResult, Unit
from docleak.studies.gradient.verdict import of_batches

ILLEGIBLE = "Too few fields can be read on the true pages for what was not read to mean anything."
GIVEN = "No field could be a finding: the attacker was given them, or the blank template shows them."
ONE = "one document gives no interval"
UNCOUNTED = "no private field could be counted"
UNMATCHED = "no attack matched a gradient"
UNDER_DEFENCE = "under this defence (the true page explains no more)"


def measures_of(model: ModelResult, name: str = "") -> tuple[Measure, ...]:
    """The share of fields read by any route, and how much of the gradient the best match explains."""
    said, share = model.findings.judgement, model.findings.share
    doubts = [*said.doubts, *([ILLEGIBLE] if said.illegible else [])]
    doubts += of_batches(model) if model.severity is not said.severity else []
    if share.value is None or not said.could:
        share = Estimate(None, why=(GIVEN if said.of else UNCOUNTED).rstrip("."))
    elif share.low is None:
        share = replace(share, why=ONE)
    by = measured([
        (_document(model, field.document), float(field.cell is Cell.READ), 1)
        for field in model.findings.fields if field.cell not in OUTSIDE
    ])  # fmt: skip
    of = name or model.title
    return Measure(FIELDS, of, share, tuple(doubts), by), _explained(model, of)


def _explained(model: ModelResult, of: str) -> Measure:
    """Of each page the greatest share of its gradient that any attack's reconstruction explains; mean, least and
    greatest page."""
    matched = [one for one in model.attacks if one.attack not in FLOORS and one.explained.value is not None
               and not blind(one.units[0].record)]  # fmt: skip
    shares: dict[str, float] = {}
    missing = 0
    for unit in (unit for one in matched for unit in one.units):
        share = unit.record["finding"].get("explained")
        if share is None or not math.isfinite(share):
            missing += 1
        else:
            shares[_page(unit)] = max(float(share), shares.get(_page(unit), -math.inf))
    failed = len(model.self_test_failed)
    doubts = [f"The self-test failed on {counted_words(failed, 'page')}."] if failed else []
    doubts += [f"Of {missing} reconstructions it is not known what they explain."] if missing else []
    doubts += [doubt for doubt in model.findings.judgement.doubts if doubt not in doubts]
    cells = [field.cell for field in model.findings.fields if field.cell not in OUTSIDE]
    if read := cells.count(Cell.READ):
        doubts.append(f"{read} of {counted_words(len(cells), 'private field')} were read all the same.")
    estimate = Estimate.spread([*shares.values(), *[None] * missing]) if shares else Estimate(None, why=UNMATCHED)
    by_page = measured([(page, share, 1) for page, share in shares.items()])
    ceilings = [one for unit in model.units if (one := unit.record["finding"].get("of_truth")) is not None]
    most = max(ceilings, default=None)
    printed = "" if most is None or not shares else f"{estimate.text(3)}, where the true page explains {most:.3f}"
    return Measure(EXPLAINED, of, estimate, tuple(doubts), by_page, most=most, most_as=UNDER_DEFENCE, printed=printed)


def categories_of(models: Sequence[ModelResult]) -> tuple[str, ...]:
    """The keys of all private fields: what kind of data they are, and none of their values."""
    return tuple(sorted({field.key for model in models for field in model.findings.fields}))


def _page(unit: Unit) -> str:
    return holding(unit.page, unit.identity)


def _document(model: ModelResult, document: str) -> str:
    """The document's name and a digest of what its pages hold: of one name and other content it is another one."""
    held = sorted({str(field.identity[:-1]) for field in model.findings.fields if field.document == document})
    return holding(document, "".join(held))
