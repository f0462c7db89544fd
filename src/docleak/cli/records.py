"""``docleak train central --unit record``: DP-SGD over single questions, to compare provider-level privacy with."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docleak.cli.output import counter, emit
from docleak.errors import PrivacyError, RunError
from docleak.files import drafted_folder, reported, write_json

if TYPE_CHECKING:
    from docleak.privacy.plan import DpPlan
    from docleak.training.federated.local import LocalPlan


#: In OUT while a training is under way.
BEGUN = "begun.json"


@dataclass(frozen=True)
class RecordSettings:
    """What the command says besides the plan, whose rounds are optimiser steps."""

    model: str
    holdout: float
    seed: int
    learning_rate: float
    weight_decay: float
    dropout: bool
    start_is_public: bool = False


def check_options(local: LocalPlan, *, other: Mapping[str, bool]) -> None:
    """PrivacyError for options that DP-SGD has no use for; those that only shape local rounds are not looked at."""
    given = [name for name, value in other.items() if value]
    given += [f"--objective {local.objective}"] * (local.objective != "qa")
    given += [f"--optimiser {local.optimiser}"] * (local.optimiser != "adamw")
    if given:
        raise PrivacyError(
            f"--unit record trains by DP-SGD (questions and answers, AdamW), which has no {', '.join(given)}. Leave "
            "that out; --rounds are its steps, and each draws its questions by coins (--unit-rate)."
        )


def train_records(
    settings: RecordSettings,
    plan: DpPlan,
    silo: Callable[[], Mapping[str, Path]],
    out: Path,
    device: str,
    *,
    quiet: bool,
) -> dict[str, Any]:
    """Train on the one silo's pages, and write OUT/model and OUT/records.json; the latter's content.

    A run that was cut off begins anew: its noise and coins are kept nowhere. Its model is written at the end, whole or
    not at all, so that nothing of it was released. RunError for a finished run in ``out``.
    """
    import numpy as np
    import torch

    from docleak.models import load_model
    from docleak.privacy.budget import delta_warning
    from docleak.privacy.lineage import BOUND, Trained, claim_of
    from docleak.privacy.mechanism import Unit
    from docleak.privacy.randomness import Randomness
    from docleak.training.federated.federation import Federation
    from docleak.training.federated.party import open_party
    from docleak.training.federated.validation import mean_loss
    from docleak.training.lineage import (
        keep_fingerprints,
        ledger_digest,
        lineage_of,
        read_fingerprints,
        write_lineage,
    )
    from docleak.training.private.records import RecordOptimiser, record_claim, train_by_record
    from docleak.training.private.units import unit_names

    if (out / "model").exists() or ((out / "records.json").exists() and not (out / BEGUN).exists()):
        raise RunError(f"{out} holds a finished training, whose budget is spent. Choose another --out.")
    if (out / BEGUN).exists():
        print(
            f"A training in {out} was cut off before its model was written. Nothing of it was released, so that none "
            "of its budget is spent, unless somebody saw its process. This one begins anew.", file=sys.stderr,
        )  # fmt: skip
    with reported(out):
        write_json(out / BEGUN, {"settings": asdict(settings), "plan": plan.to_dict()})
    start = lineage_of(settings.model)
    start = start.declared() if settings.start_is_public else start
    torch.set_num_threads(1)
    model = load_model(settings.model, device=device)
    (directory,) = silo().values()
    party = open_party(directory, Federation(settings.model, holdout=settings.holdout, seed=settings.seed))
    rounds = plan.mechanism.rounds
    losses: list[float] = []

    def validate() -> None:
        if len(party.kept):
            rng = np.random.default_rng(settings.seed)
            losses.append(mean_loss(model, party.kept, "qa", batch_size=16, rng=rng))

    with counter(quiet=quiet) as on_step:
        validate()
        found = train_by_record(
            model, party.training, plan,
            RecordOptimiser(settings.learning_rate, settings.weight_decay, settings.dropout),
            randomness=Randomness.fresh(), on_step=lambda done: on_step(done, rounds, "steps of DP-SGD"),
        )  # fmt: skip
        validate()
    if warning := delta_warning(plan.delta, found.records, "record"):
        print(f"Warning: {warning}", file=sys.stderr)
    with reported(out):
        identity = secrets.token_hex(8)
        names = set(unit_names(party.training, Unit.PROVIDER))
        if "" not in names:
            keep_fingerprints(out, identity, names, start=settings.model)
        known = read_fingerprints(out)
        lineage = start.after(
            Trained(
                identity, f"record-level training ({rounds} steps of DP-SGD)", plan, found.claim.epsilon,
                f"{found.claim.accountant} {found.claim.version}",
                known.digest(identity) if known and identity in known.hashes else None, ledger_digest(out / BEGUN),
            )
        )  # fmt: skip
        claim = claim_of(lineage, known)
        alone = claim.kind == BOUND and len(lineage.trainings) == 1
        value = {
            "settings": asdict(settings), "plan": plan.to_dict(), "model": str(out / "model"),
            "records": found.records, "most_records_of_a_provider": found.most_records,
            "epsilon_per_record": claim.epsilon, "epsilon_by_opacus": found.counted.epsilon,
            "loss_kept_before_and_after": losses, "claim": f"{claim.sentence} {record_claim(found, alone=alone)}",
            "lineage": claim.to_dict(),
        }  # fmt: skip
        write_json(out / "records.json", value)  # before the model: what is released has its record
        with drafted_folder(out / "model") as draft:
            model.save(str(draft))
            write_lineage(draft, lineage)
        (out / BEGUN).unlink()
    return value


def told(value: Mapping[str, Any], json_output: bool) -> None:
    """Print what ``train_records`` found."""
    losses = " -> ".join(f"{loss:.3f}" for loss in value["loss_kept_before_and_after"])
    text = (
        f"{value['plan']['mechanism']['rounds']} steps over {value['records']} questions; loss on kept documents "
        f"{losses or 'not measured'}.\nPrivacy: {value['claim']}\nModel: {value['model']}"
    )
    emit(value, text, json_output=json_output)
