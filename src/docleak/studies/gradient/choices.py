"""Defences side by side: what was measured of each, which dominates which, in a table, in words and in a chart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import numpy as np

from docleak.defenses import DEFENSES, TemplateDefense
from docleak.documents.pages import gathered, grouped
from docleak.errors import RunError
from docleak.files import shaped
from docleak.metrics.estimate import Estimate, by_signs
from docleak.report.pictures import new_figure, svg_figure
from docleak.report.severity import LEAKS, Cell, Judgement, Severity, routes_sentence
from docleak.report.table import Column, Row, Table, Value
from docleak.runs.run import Run
from docleak.spec import counted_words
from docleak.studies.gradient.config import NONE
from docleak.studies.gradient.measures import GIVEN, ILLEGIBLE, UNCOUNTED
from docleak.studies.gradient.results import ModelResult, model_results
from docleak.studies.gradient.utility import TEST_PAGES, Utility

#: Leakages, benefits and losses closer than this are taken to be equal.
SAME = 0.002
#: A model that answers less than this right has not learned enough for a defence to cost it answers.
LEAST_RIGHT = 0.1
#: Fewer fields are a defence's doing where one that does nothing reads as few with at most this probability.
BY_CHANCE = 0.05
AGAIN = "Run docleak defend again."
COLUMNS = {
    "read": Column("by any route"), "binary": Column("Picture: read exactly", 1, percent=True),
    "fuzz": Column("fuzz ratio"), "psnr": Column("PSNR, dB", 1), "words": Column("fields in the text", 0, percent=True),
    "kept": Column("update kept"), "anls": Column("ANLS after training"), "loss": Column("loss", 2),
    "kilobytes": Column("kB per round", 0), "milliseconds": Column("a step takes, ms", 0),
    "ssim": Column("SSIM of the template"),
}  # fmt: skip
MEANT_BY_KEPT = (
    "“Update kept” is the share of the update's direction that still arrives, 1 = all of it; it is no measure of the "
    "trained model"
)
MEANING = (
    "The attacker knows the defence and does to its own gradients what the client does. Leakage is what was read of "
    "the private fields, 0 to 1: in the picture (mean fuzz ratio, 95 % intervals over documents) or the share of "
    "fields that any route gives exactly (picture, words, answer, question), whichever is more. Update kept is the "
    "cosine between what is sent and the client's gradient. ANLS and loss are those of one model trained from the "
    f"audited weights under the defence on synthetic invoices, whatever was attacked, then asked about {TEST_PAGES} "
    "unseen ones: the interval is over these, and knows nothing of another training; a template defence leaves "
    "training alone. Quiet rows are dominated: another choice surely leaks less, as the intervals do not meet, and by "
    "its ANLS and its loss costs no more. That a defence takes fields is held against one that does nothing, each by "
    "itself: with and without it would then be exchanged in each document by a coin (exact)."
)


@dataclass(frozen=True)
class Choice:
    """One defence with what was measured of it; ``dominated`` names a choice that surely leaks less and costs no more,
    ``inapplicable`` says why the attack cannot be made under it."""

    spec: str
    context: ModelResult | None
    cost: Mapping[str, Any]
    failed: Mapping[str, str]
    dominated: str = ""
    inapplicable: str = ""

    @property
    def summary(self) -> str:
        """In words."""
        return DEFENSES.load(self.spec).summary

    @property
    def said(self) -> Judgement | None:
        """What was read of the private fields by any route; None where that is not known."""
        return self.context.findings.judgement if self.context else None

    @property
    def words(self) -> float | None:
        """Share of the private fields in the text that linear algebra reads, of those that the model saw; None where
        that was not tried."""
        routes = self.context.findings.routes if self.context else ()
        return max((r.read / r.of for r in routes if r.name in ("words", "answer") and r.of), default=None)

    @property
    def leak(self) -> Estimate:
        """The larger of the picture's mean fuzz ratio (finer than the share of exact fields where pages are few) and
        the share of fields read by any route."""
        told = (self.context.best.estimates["fuzz_ratio"], self.context.findings.share) if self.context else ()
        known = [(one.value, one) for one in told if one.value is not None]
        return max(known, key=itemgetter(0), default=(0.0, Estimate(None)))[1]

    @property
    def leakage(self) -> float | None:
        """Its value."""
        return self.leak.value

    @property
    def utility(self) -> Utility | None:
        """Of a model trained under it. RunError for a record of another shape."""
        saved = self.cost.get("utility")
        return shaped(Utility, saved, RunError, f"what {self.spec!r} costs", AGAIN) if saved else None

    @property
    def benefit(self) -> float | None:
        """ANLS of a model trained under it, or where none was trained, the share of the update's direction kept."""
        return self.cost.get("kept") if self.utility is None else self.utility.anls.value


def choices_of(run: Run, rng: np.random.Generator) -> list[Choice]:
    """Every defence with its numbers from disk, dominated ones marked. RunError if nothing is finished."""
    records, failures = run.units(), run.failures()
    if not records:
        raise RunError(f"{run.path} has no finished unit of a comparison of defences. {AGAIN}")
    costs = {record["cost"]: record for record in records if "cost" in record}
    plain = costs.get(NONE, {}).get("utility")
    reasons, choices = run.info.get("inapplicable", {}), []
    for number, spec in enumerate(run.config["defenses"]):
        attacks = [record for record in records if record.get("defence") == spec]
        context = model_results([(run, record) for record in attacks], np.random.default_rng(0))[0] if attacks else None
        cost = dict(costs.get(spec, {}))
        if plain and not cost.get("utility") and isinstance(DEFENSES.load(spec), TemplateDefense):
            cost["utility"] = {**plain, "bytes_per_round": cost.get("bytes_per_round", plain["bytes_per_round"])}
        failed = {unit: why for unit, why in failures.items() if unit.startswith(f"{number:02d}--")}
        choices.append(Choice(spec, context, cost, failed, inapplicable=reasons.get(spec, "")))
    return [replace(choice, dominated=_dominating(choice, choices)) for choice in choices]


def _dominating(choice: Choice, others: Sequence[Choice]) -> str:
    for other in others:
        if _below(other.leak, choice.leak) and _costs_no_more(other, choice) and not _untold(other):
            return other.summary
    return ""


def _below(one: Estimate, other: Estimate) -> bool:
    return one.high is not None and other.low is not None and one.high < other.low


def _costs_no_more(other: Choice, choice: Choice) -> bool:
    """By the answers and the loss of models that were trained, or where none was, by the share of the update kept."""
    if other.benefit is None or choice.benefit is None or other.benefit < choice.benefit - SAME:
        return False
    return not (other.utility and choice.utility) or other.utility.loss <= choice.utility.loss + SAME


def table_of(choices: Sequence[Choice]) -> Table:
    """Defences side by side; dominated ones are quiet."""
    rows = []
    for number, choice in enumerate(choices):
        estimates = choice.context.best.estimates if choice.context else {}
        said, u = choice.said, choice.utility
        unread = "not tried" if choice.inapplicable else "–"
        values: dict[str, Value] = {
            "read": f"{said.read} of {said.of}" if said and said.of else unread,
            "binary": estimates.get("binary"),
            "fuzz": estimates.get("fuzz_ratio"),
            "psnr": estimates.get("psnr"),
            "words": "not tried" if choice.words is None else choice.words,
            "kept": choice.cost.get("kept"),
            "anls": "not measured" if u is None else u.anls,
            "loss": "not measured" if u is None else u.loss,
            "kilobytes": None if u is None else u.bytes_per_round / 1000,
            "milliseconds": None if u is None else 1000 * u.seconds_per_step,
            "ssim": choice.cost.get("ssim") or "",
        }
        note = f"dominated by: {choice.dominated}" if choice.dominated else ""
        note = note or (f"not tried, since it does not apply here: {choice.inapplicable}" * bool(choice.inapplicable))
        facts = {"spec": choice.spec, "leakage": choice.leakage, "benefit": choice.benefit}
        name = f"{number + 1}. {choice.summary}"
        rows.append(Row(name, values, {}, choice.failed, facts, note, bool(choice.dominated)))
    return Table("", COLUMNS, rows, MEANING, first="defence", open=True)


def row_json(choice: Choice) -> dict[str, Any]:
    """A choice for machines."""
    said = choice.said
    return {
        "spec": choice.spec, "defence": choice.summary, "leakage": choice.leakage, "benefit": choice.benefit,
        "words": choice.words, "kept": choice.cost.get("kept"), "ssim": choice.cost.get("ssim"),
        "utility": choice.cost.get("utility"),
        "severity": str(choice.context.severity) if choice.context else None,
        "read": said and said.read, "of": said and said.of,
        "estimates": {k: e.to_json() for k, e in choice.context.best.estimates.items()} if choice.context else {},
        "dominated": choice.dominated, "failed": dict(choice.failed),
        **({"inapplicable": choice.inapplicable} if choice.inapplicable else {}),
    }  # fmt: skip


def said_of(choices: Sequence[Choice]) -> list[str]:
    """What the comparison shows, in sentences."""
    plain, tried = choices[0], [choice for choice in choices[1:] if choice.leakage is not None]
    if plain.leakage is None or not tried:
        return [_uncompared(plain, tried, choices[1:]), *_lost(choices[1:])]
    lines = [*_compared(plain, tried), *_lost(choices)]
    if all(choice.utility is None for choice in choices):
        lines.append(
            f"What a defence costs in right answers was not measured here. {MEANT_BY_KEPT}. docleak defend "
            "--utility-steps 400 trains under each defence and measures it."
        )
    elif plain.utility and (plain.benefit or 0.0) < LEAST_RIGHT:
        lines.append(
            f"Without a defence, too, training taught next to nothing here (ANLS {plain.utility.anls.text()} after "
            f"{counted_words(plain.utility.steps, 'step')}), so what a defence costs in right answers cannot be seen: "
            "compare the losses."
        )
    return lines


def _uncompared(plain: Choice, tried: Sequence[Choice], others: Sequence[Choice]) -> str:
    """What is known where there are no two to compare."""
    if plain.leakage is not None:
        lost = any(choice.failed or choice.inapplicable for choice in others)
        tries = "could be measured" if lost else "was measured yet"
        return f"Without a defence: {_read(plain)}; no other defence {tries if others else 'was measured'}."
    if not tried:
        return "Nothing was measured, with a defence or without one."
    return f"The attack without a defence was not measured, so no defence could be compared. Measured: {_named(tried)}."


def _lost(choices: Sequence[Choice]) -> list[str]:
    """What was to be measured, and was not."""
    unmeasured = [choice for choice in choices if choice.leakage is None and not choice.inapplicable]
    waiting = [choice for choice in unmeasured if choice.context is None and not choice.failed]
    lines = [
        f"{words}, so nothing is known of it: {'; '.join(choice.summary for choice in group)}."
        for words, group in (
            ("Could not be measured", [choice for choice in unmeasured if choice not in waiting]),
            ("Not measured yet", waiting),
        )
        if group
    ]
    return lines + [
        "Not tried, since the attack does not apply under it, so nothing is known of it: "
        f"{choice.summary} ({choice.inapplicable})."
        for choice in choices
        if choice.inapplicable
    ]


def effects(choices: Sequence[Choice]) -> list[str]:
    """What each defence did to what was read, and what it cost, a line for each, the most effective first."""
    plain, tried = choices[0], [choice for choice in choices[1:] if choice.context is not None]
    if plain.context is None or not tried:
        return []
    without, pages = plain.context.findings.judgement, len(plain.context.pages)
    lines = [f"Without a measure {without.read} of {without.of} private fields of {plain.context.title} were read"
             f"{f', on {pages} pages.' if pages > 1 else ', on one page: an example, not a rate.'}"]  # fmt: skip
    for row in sorted(tried, key=_read_count):
        assert row.said is not None
        said = row.said
        doubt = f"; it could not be told whether it helps: {_why(row)}" if not said.read and _untold(row) else ""
        summary = f"{row.summary[0].upper()}{row.summary[1:]}"
        lines.append(f"{summary}: {said.read} of {said.of} read; {_cost(row)}{doubt}.")
    if any(row.cost.get("kept") is not None for row in tried):
        lines.append(f"{MEANT_BY_KEPT}.")
    return lines


#: What a defence did -> the words for it, in the order in which they are told.
EFFECTS = {
    "stopped": "Would have stopped what was tried here",
    "in part": "Kept every field that counts from being read exactly, and not from being read in part",
    "lowered": "Lowered what was read",
    "chance": "Read less or nothing, but by no more than chance explains",
    "few": "Read less or nothing, on too few documents to tell that from chance (it takes five)",
    "useless": "Did not lower what was read",
    "unsure": "Nothing was read, but it could not be told whether it helps",
}


def _effect(plain: Choice, choice: Choice) -> str:
    """What a defence that was tried did to what is read without one: a key of EFFECTS."""
    assert choice.context is not None
    if not _read_count(choice) and _untold(choice):
        return "unsure"
    taken = _taken(plain, choice)
    if sum(taken) > 0:
        surely = by_signs(taken) <= BY_CHANCE
    elif sum(taken) == 0 and (choice.leakage or 0.0) < (plain.leakage or 0.0) - SAME:  # more than a rounding
        surely = _read_count(choice) == _read_count(plain) and _below(choice.leak, plain.leak)  # of the same documents
    else:
        return "useless"
    if not surely:
        return "few" if 2.0 ** -len(taken) > BY_CHANCE else "chance"
    if _read_count(choice) or not _read_count(plain):
        return "lowered"
    return "stopped" if choice.context.severity is Severity.NONE else "in part"


def _taken(plain: Choice, choice: Choice) -> list[int]:
    """How many fields fewer are read under the defence, of each document that was attacked both with and without it."""
    fields = [gathered((one.document, one.cell is Cell.READ) for one in side.context.findings.fields)
              for side in (plain, choice) if side.context]  # fmt: skip
    return [sum(fields[0][name]) - sum(fields[1][name]) for name in fields[0] if name in fields[1]]


def _compared(plain: Choice, tried: Sequence[Choice]) -> list[str]:
    groups = grouped(tried, lambda choice: _effect(plain, choice))
    lines = [f"Without a defence: {_read(plain)}."]
    for effect, words in EFFECTS.items():
        if group := groups.get(effect):
            lines.append(f"{words}: {_named(group, plain, why=effect == 'unsure')}.")
    failed = [choice for choice in tried if choice.context and choice.context.severity in LEAKS]
    other = "other " * (len(failed) < len(tried))
    if not _read_count(plain):
        lines.append("Nothing was read without a defence, so this comparison cannot say what would have stopped it.")
    elif "stopped" not in groups and len(failed) == 1:
        lines.append(f"The {other}defence measured here would not have stopped it.")
    elif "stopped" not in groups and failed:
        lines.append(f"None of the {other}{len(failed)} defences measured here would have stopped it.")
    return lines


def _named(group: Sequence[Choice], plain: Choice | None = None, *, why: bool = False) -> str:
    """The choices with what was read under each and what it costs, how probable that is where a defence does nothing
    (beside ``plain``), and ``why`` that is no finding."""
    return "; ".join(
        f"{row.summary} ({_read(row)}; {_cost(row)}{f'; why: {_why(row)}' if why else _odds(plain, row)})"
        for row in group
    )


def _odds(plain: Choice | None, choice: Choice) -> str:
    if plain is None or sum(taken := _taken(plain, choice)) <= 0:
        return ""
    documents, percent = counted_words(len(taken), "document"), max(0.1, math.ceil(1000 * by_signs(taken)) / 10)
    return f"; chance takes as many off {documents} with {percent:g} % probability"


def _why(choice: Choice) -> str:
    """What stands against calling unread what was not read."""
    assert choice.said is not None
    said = choice.said
    doubts = [*said.doubts, *([ILLEGIBLE] if said.illegible else [])] or [GIVEN if said.of else UNCOUNTED]
    return "; ".join(f"{doubt[0].lower()}{doubt[1:].rstrip('.')}" for doubt in doubts)


def _read_count(choice: Choice) -> int:
    return choice.said.read if choice.said else 0


def _untold(choice: Choice) -> bool:
    return choice.context is not None and choice.context.severity in (Severity.UNTOLD, Severity.UNMEASURED)


def _read(choice: Choice) -> str:
    assert choice.context is not None and choice.leakage is not None
    said = choice.context.findings
    if said.judgement.of:
        routes = routes_sentence(said.routes)
        return f"{said.judgement.read} of {said.judgement.of} private fields read by any route: {routes}"
    return f"{100 * choice.leakage:.0f} % of the private text read"


def _cost(choice: Choice) -> str:
    kept = choice.cost.get("kept")
    costs = [f"update kept {kept:.3f}"] if kept is not None else []
    if (utility := choice.utility) is not None:
        after = f"{counted_words(utility.steps, 'training step')} on synthetic invoices"
        costs.append(f"right answers after {after}, ANLS {utility.anls.text()} on {TEST_PAGES} unseen ones")
    return ", ".join(costs) or "cost not measured"


def chart(choices: Sequence[Choice]) -> str:
    """Leakage against utility as SVG; dominated choices grey. Empty where no utility was measured."""
    shown = [c for c in choices if c.leakage is not None and c.benefit is not None]
    if not shown:
        return ""
    figure = new_figure(7.5, 4.6)
    axes = figure.add_subplot()
    for place, numbers in _places(choices).items():
        colour = "#9aa3af" if all(choices[n].dominated for n in numbers) else "#0b6e4f"
        axes.scatter(*place, s=60, color=colour, zorder=3)
        label = ", ".join(str(n + 1) for n in numbers)
        axes.annotate(label, place, xytext=(7, 5), textcoords="offset points", color=colour, fontsize=11)
    trained = any(c.utility for c in shown)
    axes.set_xlabel(
        "utility: ANLS on unseen pages after training under the defence (right is better)"
        if trained
        else "share of the update's direction that arrives (cosine; right is better)"
    )
    axes.set_ylabel("leakage: private text read, 0 to 1 (low is better)")
    axes.set_ylim(-0.04, 1.08)
    axes.set_xlim(-0.04, 1.08)
    axes.grid(alpha=0.3)
    return svg_figure(figure, {"svg.fonttype": "none"})


def _places(choices: Sequence[Choice]) -> dict[tuple[float, float], list[int]]:
    """(benefit, leakage) -> the numbers of the choices that lie there, to three digits."""
    return gathered(
        ((round(c.benefit, 3), round(c.leakage, 3)), number)
        for number, c in enumerate(choices)
        if c.leakage is not None and c.benefit is not None
    )
