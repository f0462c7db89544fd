"""One training as a run among others: what ``docleak report`` says of it, and the picture of its rounds.

``docleak train`` carries them out (``training.federated.training``, ``training.private.records``): their units are
rounds, which follow from one another and are no work for a pool.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from docleak.documents.pages import gathered
from docleak.errors import RunError
from docleak.files import reported, write_atomically
from docleak.metrics.estimate import Estimate
from docleak.privacy.accounting import claimed_in_words
from docleak.privacy.budget import delta_warning
from docleak.privacy.second import doubts_of
from docleak.report.measure import claimed
from docleak.report.page import Reading, Section, run_facts
from docleak.report.pictures import decoded, learning_curves, picture
from docleak.report.severity import Part, Severity
from docleak.report.statement import Scope
from docleak.report.table import Column, Row, Table
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.studies.study import Study, Tell, Unit, one_of
from docleak.training.federated.federation import Federation
from docleak.training.federated.record import KIND, FederatedRun, load_run
from docleak.training.federated.scores import Kept, kept_of
from docleak.training.federated.summary import NOISED, delta_by_plan, facts_of, text_of
from docleak.training.private.records import UNIT, text_of_records

COLUMNS = {
    "loss": Column("Training loss"), "anls": Column("ANLS of what the silos keep"), "bytes_up": Column("Bytes up", 0),
    "bytes_down": Column("Bytes down", 0),
}  # fmt: skip
#: What the first page says of confidentiality, by whether a guarantee is claimed.
MEANS = {
    True: "Not attacked, so nothing was measured of confidentiality; what is claimed bounds it, under its assumptions.",
    False: "Not attacked, and no guarantee is claimed: this run says nothing about confidentiality.",
}
LIMITS = (
    "A training is no attack: what its updates and its model give away is measured by docleak audit.",
    "Losses and ANLS are of the pages that were there, and say little of others.",
)


class RoundsStudy(Study[Federation]):
    """A federated or central training, read; ``docleak train`` carries it out."""

    kind = KIND
    Config = Federation

    def units(self) -> NoReturn:
        raise RunError("rounds of a training follow from one another; carry it out with docleak train.")

    def compute(self, unit: Unit, run: Run, tell: Tell) -> NoReturn:
        self.units()

    @classmethod
    def read(cls, runs: Sequence[Run], rng: np.random.Generator, *, beside: bool = False) -> Reading:
        run = one_of(runs)
        return _read_records(run) if run.has(UNIT) else _read_rounds(run, rng)


def _read_rounds(run: Run, rng: np.random.Generator) -> Reading:
    training = load_run(run.path)
    facts = facts_of(training, {}, rng=rng)
    if not facts["rounds"]:
        raise RunError(f"{run.path} has no finished round yet. Go on with the same docleak train.")
    rows = [
        Row(
            f"round {row['round']}",
            {
                **{key: row.get(key) for key in COLUMNS},
                "anls": Estimate(row.get("anls"), row.get("low"), row.get("high")),
            },
        )
        for row in ({"round": 0, **facts["start"]}, *facts["rounds"])
    ]
    table = Table("Rounds", COLUMNS, rows, first="after", open=True)
    curves = picture(decoded(_curves(training, rng)), "Training loss and ANLS over rounds")
    body = render("training.html.j2", curves=curves, table=table)
    ledger = training.ledger()
    of_delta = delta_by_plan(ledger.plan, len(training.silos())) if ledger else ""
    return reading_of(run, facts["lineage"]["sentence"], text_of(facts), facts, {"rounds": table}, body, of_delta)


def _read_records(run: Run) -> Reading:
    record = {key: value for key, value in run.record(UNIT).items() if key not in ("images", "snapshots", "unit")}
    losses = record["loss_kept_before_and_after"]
    values = dict(zip(("loss before", "loss after"), losses, strict=False))  # none where nothing is kept
    row = Row("steps of DP-SGD", {"steps": record["steps"], "records": record["records"], **values})
    table = Table(
        "DP-SGD over questions", {key: Column(key, 0 if "loss" not in key else 3) for key in row.values}, [row],
        open=True,
    )  # fmt: skip
    body = render("table.html.j2", table=table)
    lineage, text = record["lineage"], text_of_records(record)
    of_delta = delta_warning(lineage["delta"], record["records"], "record") if lineage.get("delta") else ""
    return reading_of(run, lineage["sentence"], text, record, {"records": table}, body, of_delta)


def reading_of(
    run: Run, claim: str, text: str, facts: Mapping[str, Any], tables: Mapping[str, Table], body: Any,
    of_delta: str = "",
) -> Reading:  # fmt: skip
    """The part says what holds for the model, ``claim``, and ``of_delta`` where delta is too large for it; nothing is
    measured of what it gives away."""
    lineages = [lineage] if (lineage := facts.get("lineage")) else []  # several trainings: none in common
    means = {Severity.UNMEASURED: MEANS[lineage.get("epsilon") is not None]} if lineage else {}
    told = [f"Of the epsilon: {privacy['limit']}"] if (privacy := facts.get("privacy")) else []
    told += [NOISED] if NOISED in text else []
    part = Part("training", Severity.UNMEASURED, claim, label="Trained, not attacked")
    return Reading(
        question="What was trained, and what does that promise?",
        lead="Rounds of a training, and the guarantee that holds for its model by its whole lineage.",
        parts=(part,), counted=f"What holds for the model: {claim}",
        sections=(Section("training", "Training", "How the training went", body),), lines=tuple(text.splitlines()),
        results={"training": facts}, tables=tables, limits=(*told, *LIMITS),
        runs=(run_facts(run.path, run.manifest()),),
        measures=tuple(
            claimed("training", *at, claimed_in_words(*at), doubts_of(claim, of_delta))
            for one in lineages for at in [(one.get("epsilon"), one.get("delta"), one.get("unit", ""))]
        ),
        shows="",
        scope=Scope("A training, not attacked", "what its lineage records", "nobody: nothing was attacked", model=True,
                    remedy="docleak audit answers", means=means),
    )  # fmt: skip


def draw_curves(run: FederatedRun) -> Path | None:
    """OUT/curves.png: training loss per silo and in all, and ANLS with its interval; None before the first round."""
    if not run.last_round():
        return None
    file = run.path / "curves.png"
    with reported(file):
        write_atomically(file, _curves(run, np.random.default_rng(run.federation.seed)))
    return file


def _curves(run: FederatedRun, rng: np.random.Generator) -> bytes:
    rows = run.rows()
    kept: dict[int, Kept] = {}
    for number in range(len(rows) + 1):
        scored = kept_of(run.scores(number) or (), rng=rng)
        if scored is not None and scored.anls.value is not None:
            kept[number] = scored
    clients = [(row.round, client) for row in rows for client in row.clients]
    silos = gathered((of.silo, (number, of.loss)) for number, of in clients if of.loss is not None)
    mean = [(row.round, row.loss) for row in rows if row.loss is not None]
    return learning_curves(
        silos.values(), mean if len(mean) == len(rows) else [],
        {number: scored.anls for number, scored in kept.items()},
        noised=any(scored.noised for scored in kept.values()),
    )  # fmt: skip
