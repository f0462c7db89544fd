"""The study of canaries: what one private training provably leaks, beside its epsilon and a training without noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from docleak.documents.page import Image
from docleak.metrics.estimate import Estimate
from docleak.models.loading import load_model
from docleak.privacy.accounting import claimed_in_words, rounded_down, rounded_up
from docleak.privacy.budget import delta_warning
from docleak.privacy.empirical import LowerBound, held_against, in_digits, jointly
from docleak.privacy.second import doubts_of
from docleak.report.measure import SHOWN, Measure, claimed
from docleak.report.page import Reading, Section, run_facts
from docleak.report.severity import Part, Severity
from docleak.report.statement import Scope
from docleak.report.table import Column, Row, Table, Value
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.spec import counted_words
from docleak.studies.canaries.audit import Bench, audit_canaries
from docleak.studies.canaries.config import DIRAC, PAGE, USUAL, WITHOUT_NOISE, CanaryConfig
from docleak.studies.identity import model_title
from docleak.studies.study import Done, Needed, Settings, TableRow, TableStudy, Tell, Unit, one_of

COLUMNS = {"right": Column("right guesses", 0), "measured": Column("ε measured, at least", 2, bound="least"),
           "claimed": Column("ε claimed, at most", 2, bound="most")}  # fmt: skip
#: Of a row in a table: of its training with a claim, and of the score with the highest bound.
ROW = {
    "canaries": Column("canaries", 0), "guesses": Column("guesses", 0), "right": Column("right", 0),
    "any": Column("ε at least, any mechanism", 2, bound="least"),
    "measured": Column("ε at least, Gaussian noise", 2, bound="least"),
    "fitted": Column("ε at least, independent normal scores", 2, bound="least"),
    "claimed": Column("ε claimed, at most", 2, bound="most"),
}  # fmt: skip
#: Canaries of a rehearsal. Of those that train, each costs a step; to those that do not, a curve is fitted.
FEWEST = {PAGE: 4, DIRAC: 32}
LIMITS = (
    "A lower bound of 0 proves nothing: few canaries resolve little, and no attack is all attacks.",
    "The coins and the noise of the audited training come from a seed, so that it can be repeated: it protects nobody.",
)

MEANS = {
    Severity.SEVERE: "The privacy claim does not hold: more is shown to leak than the training claims at most.",
    Severity.PARTIAL: "What is shown to leak is within what the training claims at most.",
    Severity.UNTOLD: "Could not tell whether the privacy claim holds: repeat with more canaries.",
    Severity.NONE: "Nothing is shown to leak. This is no proof of the claim.",
}


#: The one without noise, and the private one.
TRAININGS = 2
POWERLESS = "Of the training without noise these guesses show nothing, either, or it is not finished"


class CanaryStudy(TableStudy[CanaryConfig]):
    """A unit is one training, with the guesses about its canaries."""

    kind = "canaries"
    Config = CanaryConfig
    columns = ROW
    of_model = ("model",)
    options = ("seed",)

    @classmethod
    def footnote_of(cls, rows: Sequence[TableRow]) -> str:
        """With the confidence that the rows are computed with."""
        used = dict.fromkeys(row.study.config.confidence for row in rows)
        whole, half = (" or ".join(map(in_digits, of)) for of in (used, [(1 + one) / 2 for one in used]))
        return (
            f"Of the training with a claim, and of the score that shows most. All at the row's delta, with {whole} "
            f"confidence ({half} for each of two scores). Any mechanism: nothing is taken for granted. Gaussian noise: "
            "the claimed mechanism's trade-off curve with unknown noise (f-DP), from the same guesses. Independent "
            "normal scores: a fit, of dirac canaries that are in every round, whose scores are that if the noise is "
            "what it says."
        )

    @classmethod
    def of_options(cls, given: Settings, fixed: Settings) -> CanaryConfig:
        """How many canaries there are, and are guessed about, follows from their kind, if nothing else is said."""
        asked = {"canaries": USUAL.get(given.get("canary", ""), CanaryConfig.canaries), **fixed, **given}
        config = super().of_options({"guesses": 2, **asked}, {})
        return config if "guesses" in asked else replace(config, guesses=config.planned_guesses)

    @classmethod
    def of_row(cls, source: str, settings: Settings, changes: Settings, *, device: str) -> CanaryStudy:
        """A row's settings are options."""
        return cls(cls.of_options({**settings, "model": source}, {}), device=device)

    @cached_property
    def bench(self) -> Bench:
        """The model and the pages, once in each process."""
        return Bench.of(load_model(self.config.model, device=self.device, seed=self.config.seed), self.config)

    def check(self, say: Callable[[str], None]) -> None:
        """ModelError where there is no such model."""
        load_model(self.config.model, device=self.device, seed=self.config.seed)

    def units(self) -> list[Unit]:
        """The training without noise, then the private one."""
        return [Unit(name, what=plan) for name, plan in self.config.plans.items()]

    def prepare(self, run: Run, say: Callable[[str], None]) -> None:
        """Warn of a delta that makes every bound worthless."""
        if warning := self._of_delta():
            say(f"Warning: {warning}")

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Image]]:
        """Toss the coins, train, guess, and bound."""
        audit = audit_canaries(self.bench, self.config, unit.what, seed=self.config.seed)
        record = audit.as_json()
        if record["epsilon_claimed"] is not None:
            record["claim"] = " ".join(filter(None, [record["claim"], self._of_delta()]))
        return {"training": unit.id, **record}, {}

    def _of_delta(self) -> str:
        return delta_warning(self.config.delta, self.config.canaries + self.config.others, "provider")

    def finish(self, run: Run, say: Callable[[str], None]) -> None:
        """ContradictionError where more is measured than the accountant allows."""
        for record in run.units():
            for bound in jointly(_bounds(record)).values():
                held_against(bound, self.config.plans[record["training"]].guarantee())

    def numbers(self, run: Run) -> dict[str, Value]:
        """Of the training with a claim; {} while it is not finished."""
        private = [record for record in run.units() if record["training"] != WITHOUT_NOISE]
        return _row(private[0], run.config) if private else {}

    def title(self) -> str:
        """The checkpoint's title."""
        return model_title(self.config.model, None)

    def needed(self, model: str) -> tuple[Needed, ...]:
        """The model."""
        return (Needed("model", self.config.model, f"--model {model}=DIR"),)

    def planned(self) -> str:
        """The two trainings."""
        c = self.config
        return f"2 trainings with {c.canaries} canaries ({c.canary}), {c.guesses} guesses"

    def least(self) -> CanaryStudy:
        """A round with the fewest others, and canaries of which some are in and some are out."""
        canaries = min(self.config.canaries, FEWEST[self.config.canary])
        few = replace(self.config, others=1, canaries=canaries, guesses=2, rounds=1)
        return CanaryStudy(few, device=self.device)

    def work(self) -> dict[str, int]:
        """How often a provider trains, in both trainings."""
        return {"trainings of a provider": self.config.provider_trainings}

    def done(self, unit: Unit, run: Run, seconds: float) -> dict[str, Done]:
        """Trainings of a provider, loading included; each of the two trainings has half of them."""
        ((kind, of),) = self.work().items()
        return {kind: Done(self.least().config.provider_trainings / 2, seconds, of)}

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """Both trainings, bound by bound; the verdict is on the private one."""
        run = one_of(runs)
        records = sorted(run.units(), key=lambda record: str(record["training"]) != WITHOUT_NOISE)
        powerless = _powerless(records)
        parts, rows, lines = [], [], [f"The adversary {record['threat']}." for record in records[:1]]
        for record in records:
            name, claimed, bounds = record["training"], record["epsilon_claimed"], _bounds(record)
            lines += ["", f"Training {name}, {record['included']} canaries included:"]
            lines += [f"  measured, by {score}: {bound.sentence()}" for score, bound in bounds.items()]
            also = _bounds(record, "also")
            lines += [f"  from the same, {name}: {bound.sentence()}" for name, bound in also.items()]
            lines += [f"  claimed: {record['claim']}"]
            rows += [
                Row(f"{name}, by {score}", {"right": record["right"][score], "measured": bound.epsilon,
                                            "claimed": claimed}, note=bound.evidence, quiet=name == WITHOUT_NOISE)
                for score, bound in bounds.items()
            ] + [
                Row(f"{name}, by {what}", {"measured": bound.epsilon, "claimed": claimed},
                    note=f"{bound.evidence}; {bound.assumes}", quiet=True) for what, bound in also.items()
            ]  # fmt: skip
            if name != WITHOUT_NOISE:
                parts.append(_part(name, record, run.config["guesses"], powerless=powerless))
        others = counted_words(run.config["others"], "other")
        together = "bounds by the scores of a training hold together, each other row by itself"
        table = Table("", COLUMNS, rows, together, first="training", open=True)
        threat = {"adversary": record_threat(records), "wants": "to tell which canary providers took part",
                  "cannot": ["know the coins that included them"]}  # fmt: skip
        return Reading(
            question="What does one private training provably leak?",
            lead=f"{run.config['canaries']} canary providers ({run.config['canary']}), each included by a fair coin, "
            f"beside {others}; {run.config['guesses']} guesses.",
            parts=tuple(parts),
            counted=parts[0].sentence if parts else "The private training is not finished.",
            sections=(
                Section("canaries", "Canaries", "Measured beside claimed", render("table.html.j2", table=table)),
                Section("threat-canaries", "Threat model", "Threat model: who could do this",
                        render("threat.html.j2", model=threat), open=True),
            ),
            lines=tuple(lines),
            results={"audits": {record["training"]: record for record in records}},
            tables={"canaries": table},
            limits=LIMITS,
            runs=(run_facts(run.path, run.manifest()),),
            synthetic=True,
            measures=tuple(
                one for record in records if record["training"] != WITHOUT_NOISE
                for one in _measures(record, run.config, powerless=powerless)
            ),
            scope=Scope(
                system=f"A private training of {run.config['model']}", adversary=record_threat(records),
                material=f"{run.config['canaries']} canary providers beside {others}", model=True,
                remedy="docleak budget", means=MEANS,
                unfinished="" if len(records) == TRAININGS else f"{len(records)} of {TRAININGS} trainings",
            ),
        )  # fmt: skip


def record_threat(records: Sequence[Mapping[str, Any]]) -> str:
    """Who the adversary is."""
    return f"someone who {records[0]['threat']}" if records else ""


def _bounds(record: Mapping[str, Any], of: str = "lower") -> dict[str, LowerBound]:
    return {score: LowerBound(**saved) for score, saved in record[of].items()}


def _row(record: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Value]:
    """The numbers of a private training, by the score that shows most."""
    bounds, also = _bounds(record), _bounds(record, "also")
    best = max(bounds, key=lambda score: bounds[score].epsilon)
    row: dict[str, Value] = {
        "canaries": config["canaries"], "guesses": config["guesses"], "right": record["right"][best],
        "any": also[f"{best}, any mechanism"].epsilon, "measured": bounds[best].epsilon,
        "claimed": record["epsilon_claimed"],
    }  # fmt: skip
    if fitted := also.get(f"{best}, fitted"):
        row["fitted"] = fitted.epsilon
    return row


def _powerless(records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether nothing shows of the training without noise, either, or that is not known."""
    return not any(record["training"] == WITHOUT_NOISE and _shows(record) for record in records)


def _shows(record: Mapping[str, Any]) -> bool:
    return record["epsilon_at_least"] > 0 or _fitted(record) > 0


def _measures(record: Mapping[str, Any], config: Mapping[str, Any], *, powerless: bool) -> tuple[Measure, ...]:
    """What is shown, of what so many guesses could have shown, and what is claimed."""
    name = f"training with {record['training']}"
    doubts = [_fit(record)] if _above_claim(record) else []
    doubts += [POWERLESS] if powerless and not _shows(record) else []
    best = max(jointly(_bounds(record)).values(), key=lambda bound: bound.epsilon)
    shown = Measure(SHOWN, name, Estimate.exactly(record["epsilon_at_least"]), tuple(f"{doubt}." for doubt in doubts),
                    most=record["most"], printed=best.in_words,
                    at=(best.delta, str(best.unit), best.confidence))  # fmt: skip
    epsilon = record["epsilon_claimed"]
    of_delta = delta_warning(best.delta, config["canaries"] + config["others"], best.unit)
    printed = claimed_in_words(epsilon, best.delta, best.unit)
    return shown, claimed(name, epsilon, best.delta, best.unit, printed, doubts_of(record["claim"], of_delta))


def _fitted(record: Mapping[str, Any]) -> float:
    """The bound of a fit, where it is above that of the guesses; else 0. No other that grants less is."""
    most = max((bound.epsilon for bound in _bounds(record, "also").values()), default=0.0)
    return most if most > record["epsilon_at_least"] else 0.0


def _above_claim(record: Mapping[str, Any]) -> bool:
    """Whether a fit alone is above the claim."""
    measured, claimed = record["epsilon_at_least"], record["epsilon_claimed"]
    return claimed is not None and measured <= claimed < _fitted(record)


def _fit(record: Mapping[str, Any]) -> str:
    """What a fit shows, beside the claim."""
    said = f"By a fit that assumes independent normal scores epsilon is at least {rounded_down(_fitted(record))}"
    claim = f"the claim of {rounded_up(record['epsilon_claimed'])}"
    return f"{said}, above {claim}: repeat with more canaries" if _above_claim(record) else f"{said}, within {claim}"


def _part(name: str, record: Mapping[str, Any], guesses: int, *, powerless: bool) -> Part:
    """A bound above the claim is the worst that there is; below, what shows is what the claim allows. It could not be
    told where a fit alone is above the claim, where all guesses right would have shown nothing, or where nothing shows
    without noise, either."""
    measured, claimed, fitted = record["epsilon_at_least"], record["epsilon_claimed"], _fitted(record)
    if claimed is not None and measured > claimed:
        severity, label = Severity.SEVERE, "More than it claims"
    elif _above_claim(record):
        severity, label = Severity.UNTOLD, "Could not tell: a fit is above the claim"
    elif _shows(record):
        severity, label = Severity.PARTIAL, f"Shows{'' if measured > 0 else ' by a fit'}, within its claim"
    elif record["most"] <= 0:
        severity, label = Severity.UNTOLD, "Could not tell: too few guesses"
    elif powerless:
        severity, label = Severity.UNTOLD, "Could not tell whether these guesses see anything"
    else:
        severity, label = Severity.NONE, "Nothing shown"
    nothing = f"By guesses nothing is shown ({guesses} guesses could show {rounded_up(record['most'])} at most)."
    first = [*([nothing] if measured == 0 else []), *([f"{_fit(record)}."] if fitted else [])]
    first += [f"{POWERLESS}."] if powerless and not _shows(record) else []
    score, best = max(jointly(_bounds(record)).items(), key=lambda item: item[1].epsilon)
    chosen = f" (the higher of {len(record['lower'])} bounds)" if len(record["lower"]) > 1 else ""
    by = f"By {score}{chosen}: {best.sentence()} The adversary {record['threat']}. Claimed is {record['claim']}"
    return Part(f"training with {name}", severity, " ".join([*first, by]), label, "canaries",
                chance=1 - float(best.confidence))  # fmt: skip
