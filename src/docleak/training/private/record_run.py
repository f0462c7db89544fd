"""A training by DP-SGD over single questions as a run: its one unit is what came of it, and OUT/model the model."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from docleak.errors import RunError
from docleak.files import drafted_folder, reported
from docleak.models import load_model
from docleak.models.published.made import made_at
from docleak.privacy.budget import delta_warning
from docleak.privacy.lineage import BOUND, Trained, claim_of
from docleak.privacy.mechanism import Unit
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.runs.identity import digest_of
from docleak.runs.run import Run
from docleak.training.federated.federation import Federation
from docleak.training.federated.record import KIND
from docleak.training.federated.silo import open_party
from docleak.training.federated.validation import mean_loss
from docleak.training.lineage import declared_start, keep_fingerprints, lineage_of, read_fingerprints, write_lineage
from docleak.training.private.moving import require_moving
from docleak.training.private.records import RecordOptimiser, record_claim, train_by_record
from docleak.training.private.units import unit_names

UNIT = "training"


@dataclass(frozen=True)
class RecordTrainingConfig:
    """Everything that changes a number of the training; a round of ``privacy`` is a step of its optimiser."""

    privacy: DpPlan
    model: str = "vt5-start"
    optimiser: RecordOptimiser = field(default_factory=RecordOptimiser)
    holdout: float = 0.2
    seed: int = 0
    start_is_public: bool = False


def train_records(
    config: RecordTrainingConfig,
    silo: Callable[[], Mapping[str, Path]],
    out: Path,
    *,
    device: str = "cpu",
    command: str = "",
    on_step: Callable[[int, int], None] = lambda done, of: None,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Train on the one silo's pages, and write the unit's record and OUT/model; the former's content.

    A run that was cut off begins anew: its noise and coins are kept nowhere. Its model is written at the end, whole or
    not at all, so that nothing of it was released. RunError for a finished run in ``out``. ``on_step`` is told how many
    steps of how many are done, ``say`` what should be known besides.
    """
    made_at(config.model)  # what cannot be made is refused before a run is begun
    start = lineage_of(config.model)
    start = declared_start(start) if config.start_is_public else start
    begun = (out / "run.json").is_file()
    run = Run.open(out, {"by": "record", **asdict(config)}, kind=KIND, command=command)
    if (out / "model").exists() or run.info.get("released"):
        raise RunError(f"{out} holds a finished training, whose budget is spent. Give another folder (out).")
    if begun:
        say(
            f"A training in {out} was cut off before its model was written. Nothing of it was released, so that none "
            "of its budget is spent, unless somebody saw its process. This one begins anew."
        )
    torch.set_num_threads(1)
    model, plan = load_model(config.model, device=device, seed=config.seed), config.privacy
    require_moving(model)
    (directory,) = silo().values()
    party = open_party(directory, Federation(config.model, holdout=config.holdout, seed=config.seed))
    rounds = plan.mechanism.rounds
    losses: list[float] = []

    def validate() -> None:
        if len(party.kept):
            rng = np.random.default_rng(config.seed)
            losses.append(mean_loss(model, party.kept, "qa", batch_size=16, rng=rng))

    validate()
    trained = train_by_record(
        model, party.training, plan, config.optimiser, randomness=Randomness.fresh(),
        on_step=lambda done: on_step(done, rounds),
    )  # fmt: skip
    validate()
    warning = delta_warning(plan.delta, trained.records, "record")
    if warning:
        say(f"Warning: {warning}")
    identity = secrets.token_hex(8)
    names = set(unit_names(party.training, Unit.PROVIDER))
    if "" not in names:
        keep_fingerprints(out, identity, names, start=config.model)
    known = read_fingerprints(out)
    lineage = start.after(
        Trained(
            identity, f"record-level training ({rounds} steps of DP-SGD)", plan, trained.claim.epsilon,
            f"{trained.claim.accountant} {trained.claim.version}",
            known.digest(identity) if known and identity in known.hashes else None, digest_of(plan.to_dict()),
        )
    )  # fmt: skip
    claim = claim_of(lineage, known)
    alone = claim.kind == BOUND and len(lineage.trainings) == 1
    record = {
        "model": str(out / "model"), "records": trained.records, "most_records_of_a_provider": trained.most_records,
        "epsilon_per_record": claim.epsilon, "epsilon_by_opacus": trained.counted.epsilon, "steps": rounds,
        "loss_kept_before_and_after": losses,
        "claim": " ".join(filter(None, [claim.sentence, record_claim(trained, alone=alone), warning])),
        "lineage": claim.to_dict(),
    }  # fmt: skip
    run.write_unit(UNIT, record, {})  # before the model: what is released has its record
    with reported(out), drafted_folder(out / "model") as draft:
        model.save(str(draft))
        write_lineage(draft, lineage)
    run.write_info("released", True)
    return record


def text_of_records(record: Mapping[str, Any]) -> str:
    """What came of it, for people."""
    losses = " -> ".join(f"{loss:.3f}" for loss in record["loss_kept_before_and_after"])
    return (
        f"{record['steps']} steps over {record['records']} questions; loss on kept documents "
        f"{losses or 'not measured'}.\nPrivacy: {record['claim']}\nModel: {record['model']}"
    )
