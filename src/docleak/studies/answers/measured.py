"""What was measured of released models, in the vocabulary of ``docleak.report.measure``, and what privacy did to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from docleak.metrics.estimate import Estimate
from docleak.privacy.accounting import claimed_in_words
from docleak.privacy.budget import delta_warning
from docleak.privacy.empirical import LowerBound, from_one_run, from_scores
from docleak.privacy.mechanism import Unit
from docleak.privacy.second import doubts_of
from docleak.report.measure import (
    DOCUMENT_AUC,
    DOCUMENT_FIELDS,
    DOCUMENT_TPR_1,
    DOCUMENT_TPR_10,
    MEASURES,
    MEMBERSHIP,
    MEMORY,
    SHOWN,
    Measure,
    claimed,
    holdings,
    measured,
    shift,
)
from docleak.report.severity import Severity
from docleak.studies.answers.clear import (
    lopsided,
    sure_high,
    sure_low,
    together,
    unequal,
    unsound,
    unsound_of_providers,
    worded_apart,
)
from docleak.studies.answers.measures import DELTA
from docleak.studies.answers.membership import CALLED, CONFIDENCE, NO_GUESS
from docleak.studies.answers.record import (
    Attacked,
    Record,
    attacks_in,
    measured_in,
    memory_in,
    not_measured,
    numbers_in,
    untaken,
    weaker,
)
from docleak.studies.answers.verdict import fields_known, severity_of

#: Measures of documents, and the rates of a score that they are the greatest of.
OF_DOCUMENTS = {DOCUMENT_AUC: "auc", DOCUMENT_TPR_10: "tpr_at_10_fpr", DOCUMENT_TPR_1: "tpr_at_1_fpr"}
FEW = "too few providers for an interval"


def measures_of(record: Record) -> tuple[Measure, ...]:
    """Membership, memorisation key by key, documents told, and epsilon measured and claimed, as far as each was
    measured."""
    name = f"{'documents' if 'documents' in record else 'answers'} of {record['label']}"
    return (*_membership(record, name), *_memory(record, name), *_documents(record, name), *_epsilon(record, name))


def compared_with(record: Record, others: Sequence[Record]) -> list[str]:
    """What a release with a claimed epsilon gives away beside those of this run that claim none."""
    if record["bill"]["epsilon"] is None:
        return []
    ours, lines = _told(record), []
    for other in others:
        if other["bill"]["epsilon"] is None:
            theirs = _told(other)
            said = [f"{what} {theirs[what]} without, {text} with it" for what, text in ours.items() if what in theirs]
            if said:
                lines.append(f"{record['label']} (epsilon {record['bill']['epsilon']:.3g} claimed) beside "
                             f"{other['label']}: {'; '.join(said)}.")  # fmt: skip
    return lines


def _told(record: Record) -> dict[str, str]:
    """Membership, and memorisation of every key, in words -> the number, with its interval, or why there is none."""
    told = {}
    for one in measures_of(record):
        if one.what in (MEMBERSHIP, MEMORY):
            key = one.of.removeprefix(f"answers of {record['label']}").removeprefix(", ")
            told[MEASURES[one.what].head.lower() + (f" ({key})" if key else "")] = one.text
    return told


def _membership(record: Record, name: str) -> list[Measure]:
    if "membership" not in record:
        return []
    if why := worded_apart(record) or unequal(record):
        return [Measure(MEMBERSHIP, name, Estimate(None, of="providers", why=why))]
    attacks = attacks_in(record)
    if not attacks:
        why = next(iter(not_measured({"membership": record["membership"]}).values()), "no attack was made")
        return [Measure(MEMBERSHIP, name, Estimate(None, why=why.removesuffix(".")))]
    ranged = [one for one in attacks if one.accuracy.low is not None] or attacks
    beyond = _greatest([_beyond(one, record) for one in ranged], FEW)
    lacking = ", ".join(one.name for one in attacks if one not in ranged)
    told = severity_of(record) in (Severity.PARTIAL, Severity.SEVERE) and not (beyond.low or 0) > 0
    doubts: tuple[str, ...] = (
        ("Answers, losses or values of the training tell members by another route.",) if told else ()
    )
    doubts += (
        _unsound(record)
        or _doubt(untaken(record, "membership"))
        or _doubt(lopsided(record))
        or _doubt(f"{lacking}: {FEW}" if lacking else "")
    )
    return [Measure(MEMBERSHIP, name, beyond, doubts)]


def _beyond(one: Attacked, record: Record) -> Estimate:
    """By how much an attack is right beyond chance, or, if that is less sure, beyond what it is by the public model."""
    by_chance = shift(together(one.accuracy, record), -one.chance)
    if one.beyond is None or one.beyond.low is None or one.beyond.high is None:
        return by_chance if one.beyond is None else one.beyond
    stretched = replace(one.beyond, low=sure_low(one.beyond, record), high=sure_high(one.beyond, record))
    return weaker(stretched, by_chance)


def _memory(record: Record, name: str) -> list[Measure]:
    lacking = record.get("memorisation", {}).get("remarks", {})
    measures = [Measure(MEMORY, f"{name}, {_words(key)}", Estimate(None, why=why)) for key, why in lacking.items()]
    for key, of in numbers_in(record, "memorisation").items():
        rows = [row for row in record["memorisation"].get("answers", ()) if row["key"] == key]
        asked = ("document", "question", "hidden")
        groups = holdings((str(row["provider"]), [row.get(part) for part in asked]) for row in rows)
        by, less = (
            measured([(groups[str(r["provider"])], float(r["accuracy"]) - float(r.get("public", 0)), 1)
                      for r in rows if bool(r["member"]) is side])
            for side in (True, False)
        )  # fmt: skip
        gap, doubts = memory_in(record)[key], _unsound(record) or _doubt(untaken(record, "memorisation"))
        alone = of.get("gained_acc")  # of members' answers
        less = {} if alone and (gap.value, gap.low) == (alone.value, alone.low) else less
        if "beyond_acc" in of and not all("public" in row for row in rows):
            by, less = {}, {}  # which hold what the release alone was right about
        gap = gap if gap.low is not None else replace(gap, why=FEW)
        measures.append(Measure(MEMORY, f"{name}, {_words(key)}", gap, doubts, by=by, less=less))
    return measures


def _unsound(record: Record) -> tuple[str, ...]:
    """Why what does not show is no evidence, as a sentence."""
    return _doubt(unsound_of_providers(record).removesuffix("."))


def _doubt(why: str) -> tuple[str, ...]:
    return (f"{why[0].upper()}{why[1:]}{'' if why.endswith('?') else '.'}",) if why else ()


def _words(key: str) -> str:
    return key.replace("_", " ")


def _documents(record: Record, name: str) -> list[Measure]:
    """The greatest rates of all scores: intervals hold for all together, so the greatest is between the greatest of
    their ends. Where a control tells the two sets apart, there is no number."""
    if "documents" not in record:
        return []
    scores = numbers_in(record, "documents").values()
    doubts: tuple[str, ...] = ("Values taken off its documents' pages rank first.",) if fields_known(record) else ()
    doubts += (f"{why[0].upper()}{why[1:]}.",) if (why := unsound(record)) else ()
    if differs := record["documents"]["differs"]:
        why = f"the two sets of documents differ without the release ({'; '.join(differs)})"
        told = [*OF_DOCUMENTS, *([DOCUMENT_FIELDS] if "fields" in record else [])]
        return [Measure(what, name, Estimate(None, of="documents", why=why)) for what in told]
    measures = [
        Measure(what, name, _greatest([of[rate] for of in scores if rate in of]), doubts)
        for what, rate in OF_DOCUMENTS.items()
    ]
    if "fields" in record:
        why = next(iter(record["fields"]["remarks"].values()), "not measured")
        gap = numbers_in(record, "fields").get("", {}).get("gap", Estimate(None, of="fields", why=why))
        gap = gap if gap.low is not None or gap.why else replace(gap, why="too few documents for an interval")
        measures.append(Measure(DOCUMENT_FIELDS, name, gap, doubts[1:] if fields_known(record) else doubts))
    return measures


def _greatest(rates: Sequence[Estimate], few: str = "too few documents for an interval") -> Estimate:
    """The greatest of rates whose intervals hold together; no value where one of them has none."""
    ends = [[getattr(one, end) for one in rates] for end in ("value", "low", "high")]
    if not rates or None in ends[0]:
        why = next((one.why for one in rates if one.value is None), "")
        return Estimate(None, of="documents", why=why or "no score was made")
    value, low, high = (None if None in of else max(of) for of in ends)
    why = "" if low is not None else few
    return replace(rates[0], value=value, low=low, high=high, why=why)


def _epsilon(record: Record, name: str) -> list[Measure]:
    bill, shown = record["bill"], measured_in(record)
    unit, delta = bill.get("unit", ""), bill.get("delta")
    printed = claimed_in_words(bill["epsilon"], delta, unit)
    alike = "documents" in record and unit == Unit.DOCUMENT  # the audit, too, is of single documents
    members = int(record.get("membership", {}).get("members", 0))  # no more than the training had
    of_delta = delta_warning(delta, max(members, 2), unit) if delta else ""
    doubts = doubts_of(bill["claim"], of_delta)
    measures = [claimed(name, bill["epsilon"], delta, unit, printed, doubts, of_one=alike)]
    if shown is None or worded_apart(record) or unequal(record):
        return measures
    inside, others = (int(record["membership"][side]) for side in ("members", "others"))
    said = str(record["membership"]["remarks"].get("Measured"))
    delta, called = delta or DELTA, 2 * round(CALLED * (inside + others))
    if "canaries" in said:
        most = from_one_run(inside + others, called, called, delta).epsilon
    else:  # by scores that tell every member from every other
        ranks = np.arange(inside + others, dtype=np.float64)
        split = bool(inside and others)
        most = from_scores(ranks, ranks >= others, delta, rng=np.random.default_rng(0)).epsilon if split else 0.0
    bound = LowerBound(shown, delta, CONFIDENCE, "", "")
    at, doubts = (delta, str(bound.unit), CONFIDENCE), (f"{said[0].upper()}{said[1:]}.",) if NO_GUESS in said else ()
    return [*measures, Measure(SHOWN, name, Estimate.exactly(shown), doubts, most=most, printed=bound.in_words, at=at)]
