"""The study of canaries: what one private training provably leaks, beside its epsilon and a training without noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from docleak.documents.page import Image
from docleak.metrics.estimate import Estimate
from docleak.models.loading import load_model
from docleak.privacy.budget import delta_warning
from docleak.privacy.empirical import LowerBound, from_one_run, held_against
from docleak.report.measure import CLAIMED, SHOWN, Measure
from docleak.report.page import Reading, Section, run_facts
from docleak.report.severity import Part, Severity
from docleak.report.statement import Scope
from docleak.report.table import Column, Row, Table
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.studies.canaries.audit import Bench, audit_canaries
from docleak.studies.canaries.config import WITHOUT_NOISE, CanaryConfig
from docleak.studies.study import Study, Tell, Unit, one_of

COLUMNS = {"right": Column("right guesses", 0), "measured": Column("ε measured, at least", 2),
           "claimed": Column("ε claimed, at most", 2)}  # fmt: skip
LIMITS = (
    "A lower bound of 0 proves nothing: few canaries resolve little, and no attack is all attacks.",
    "The coins and the noise of the audited training come from a seed, so that it can be repeated: it protects nobody.",
)

MEANS = {
    Severity.SEVERE: "The privacy claim does not hold: more is shown to leak than the training claims at most.",
    Severity.PARTIAL: "What is shown to leak is within what the training claims at most.",
    Severity.NONE: "Nothing is shown to leak. This is no proof of the claim.",
}


class CanaryStudy(Study[CanaryConfig]):
    """A unit is one training, with the guesses about its canaries."""

    kind = "canaries"
    about = "canary providers in a private training"
    Config = CanaryConfig

    @classmethod
    def of_options(cls, given: Mapping[str, Any], fixed: Mapping[str, Any]) -> CanaryConfig:
        """Two thirds of the canaries are guessed about, if nothing else is said."""
        guesses = 2 * given.get("canaries", CanaryConfig.canaries) // 3
        return super().of_options({"guesses": guesses, **given}, fixed)

    @cached_property
    def bench(self) -> Bench:
        """The model and the pages, once in each process."""
        return Bench.of(load_model(self.config.model, device=self.device, seed=self.config.seed), self.config)

    def units(self) -> list[Unit]:
        """The training without noise, then the private one."""
        return [Unit(name, what=plan) for name, plan in self.config.plans.items()]

    def prepare(self, run: Run, say: Callable[[str], None]) -> None:
        """Warn of a delta that makes every bound worthless."""
        c = self.config
        if warning := delta_warning(c.delta, c.canaries + c.others, "provider"):
            say(f"Warning: {warning}")

    def compute(self, unit: Unit, run: Run, tell: Tell) -> tuple[dict[str, Any], dict[str, Image]]:
        """Toss the coins, train, guess, and bound."""
        audit = audit_canaries(self.bench, self.config, unit.what, seed=self.config.seed)
        return {"training": unit.id, **audit.as_json()}, {}

    def finish(self, run: Run, say: Callable[[str], None]) -> None:
        """ContradictionError where more is measured than the accountant allows."""
        for record in run.units():
            for saved in record["lower"].values():
                held_against(LowerBound(**saved), self.config.plans[record["training"]].guarantee())

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        """Both trainings, bound by bound; the verdict is on the private one."""
        run = one_of(runs)
        records = sorted(run.units(), key=lambda record: str(record["training"]) != WITHOUT_NOISE)
        parts, rows, lines = [], [], [f"The adversary {record['threat']}." for record in records[:1]]
        for record in records:
            name, claimed, bounds = record["training"], record["epsilon_claimed"], _bounds(record)
            lines += ["", f"Training {name}, {record['included']} canaries included:"]
            lines += [f"  measured, by {score}: {bound.sentence()}" for score, bound in bounds.items()]
            lines += [f"  claimed: {record['claim']}"]
            rows += [
                Row(f"{name}, by {score}", {"right": record["right"][score], "measured": bound.epsilon,
                                            "claimed": claimed}, note=bound.evidence, quiet=name == WITHOUT_NOISE)
                for score, bound in bounds.items()
            ]  # fmt: skip
            if name != WITHOUT_NOISE:
                parts.append(_part(name, record))
        table = Table("", COLUMNS, rows, "both bounds of a training hold together", first="training",
                      open=True)  # fmt: skip
        threat = {"adversary": record_threat(records), "wants": "to tell which canary providers took part",
                  "cannot": ["know the coins that included them"]}  # fmt: skip
        return Reading(
            question="What does one private training provably leak?",
            lead=f"{run.config['canaries']} canary providers, each trained on by a fair coin, beside "
            f"{run.config['others']} others; {run.config['guesses']} guesses.",
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
            measures=tuple(one for r in records if r["training"] != WITHOUT_NOISE for one in _measures(r, run.config)),
            scope=Scope(
                system=f"A private training of {run.config['model']}", adversary=record_threat(records),
                material=f"{run.config['canaries']} canary providers beside {run.config['others']} others", model=True,
                remedy="docleak budget", means=MEANS,
            ),
        )  # fmt: skip


def record_threat(records: Sequence[Mapping[str, Any]]) -> str:
    """Who the adversary is."""
    return f"someone who {records[0]['threat']}" if records else ""


def _bounds(record: Mapping[str, Any]) -> dict[str, LowerBound]:
    return {score: LowerBound(**saved) for score, saved in record["lower"].items()}


def _measures(record: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[Measure, ...]:
    """What is shown, of what so many guesses could have shown, and what is claimed."""
    name, claimed = f"training with {record['training']}", record["epsilon_claimed"]
    most = from_one_run(config["canaries"], config["guesses"], config["guesses"], config["delta"]).epsilon
    shown = Measure(SHOWN, name, Estimate.exactly(record["epsilon_at_least"]), most=most)
    return shown, Measure(CLAIMED, name, Estimate.exactly(claimed), unbounded=claimed is None)


def _part(name: str, record: Mapping[str, Any]) -> Part:
    """A bound above the claim is the worst that there is; below, what shows is what the claim allows."""
    measured, claimed = record["epsilon_at_least"], record["epsilon_claimed"]
    severity = Severity.SEVERE if claimed is not None and measured > claimed else (
        Severity.PARTIAL if measured > 0 else Severity.NONE
    )  # fmt: skip
    labels = {Severity.SEVERE: "More than it claims", Severity.PARTIAL: "Shows, within its claim",
              Severity.NONE: "Nothing shown"}  # fmt: skip
    best = max(_bounds(record).items(), key=lambda item: item[1].epsilon)
    sentence = f"At least epsilon {best[1].epsilon:.4g} is shown (by {best[0]}); claimed is {record['claim']}"
    return Part(f"training with {name}", severity, sentence, labels[severity], "canaries")
