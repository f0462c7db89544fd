"""Divisions and targets on disk, each made once for all who attack it; what a release cost and guarantees.

STORE/data-3f9c2a1b/                 BLUE and RED (see ``documents.blue_red_files``)
STORE/central-3f9c2a1b/central/      what all silos hold, in one place
STORE/VT5_C-8e1d0b77/card.json       what the model started from, and how it was trained (``runs.artefact``)
STORE/VT5_C-8e1d0b77/run/            the training (see ``training.federated.record``); run/model is the model, once done

Whoever wants one of them claims it first, so that tables made at the same time make it once.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from docleak.documents.blue_red_files import (
    ISSUERS,
    BlueRed,
    Divided,
    open_blue_red,
    open_issuers,
    open_own,
    read_blue_red,
    write_blue_red,
)
from docleak.documents.pages import LazyPages
from docleak.documents.partition import Share
from docleak.documents.silos import write_silos
from docleak.errors import PrivacyError, RunError
from docleak.models.loading import load_model
from docleak.privacy.accounting import guarantee
from docleak.privacy.lineage import Claim
from docleak.privacy.mechanism import Participation
from docleak.privacy.randomness import Randomness
from docleak.runs.artefact import made_once
from docleak.runs.claim import claimed
from docleak.runs.identity import digest_of
from docleak.studies.answers.shipped import DIVISION, SHIPPED, as_trained
from docleak.studies.answers.targets import CENTRAL, Data, Target
from docleak.studies.identity import weights_hash
from docleak.studies.study import DIVIDED
from docleak.training.federated.record import FederatedRun, load_run
from docleak.training.federated.summary import save_model
from docleak.training.lineage import claim_for

#: The one silo of central training.
TOGETHER = "central"


@dataclass(frozen=True)
class Bill:
    """A release: its ``model``, a directory or a name, and what its training cost and guarantees where that is known.

    ``bytes`` travelled between server and clients, both ways, as serialised. ``as_published`` is the epsilon by the
    paper's counting, which is no bound.
    """

    model: str
    claim: Claim
    bytes: int | None = None
    clients: int | None = None
    secure: bool = False
    seconds: float = 0.0
    noise_multiplier: float | None = None
    as_published: float | None = None

    def to_json(self) -> dict[str, Any]:
        """What a record says of it."""
        said = {"epsilon": self.claim.epsilon, "delta": self.claim.delta, "unit": str(self.claim.unit),
                "claim": self.claim.sentence}  # fmt: skip
        return {**{key: value for key, value in asdict(self).items() if key not in ("model", "claim")}, **said}


def bill_of(source: str) -> Bill:
    """The bill of a run directory of docleak train; of any other model what its lineage says.

    RunError for a training without a finished model.
    """
    path = Path(source)
    if not (path / "run.json").is_file():
        return Bill(source, claim_for(source))
    run = load_run(path)
    rows, model = run.rows(), path / "model"
    if not rows or not model.is_dir():
        raise RunError(f"{path} is a training without a finished model. Finish it (run the same docleak train again).")
    silos, ledger, facts = len(run.silos()), run.ledger(), {}
    if ledger is not None and (spent := ledger.spent()) is not None:
        hidden = replace(spent.mechanism, participation=Participation.HIDDEN)
        facts = {"noise_multiplier": spent.mechanism.noise_multiplier,
                 "as_published": guarantee(hidden, spent.delta).epsilon}  # fmt: skip
    return Bill(
        str(model), claim_for(str(model)),
        bytes=sum(client.up + client.down for row in rows for client in row.clients) if silos > 1 else 0,
        clients=silos, secure=run.federation.secure is not None,
        seconds=sum(row.seconds_training + row.seconds_averaging for row in rows), **facts,
    )  # fmt: skip


def issuers_of(data: Data) -> Divided:
    """The synthetic documents, divided; DocumentError where that cannot be."""
    return open_issuers(data.providers, data.per_provider, data.plan, seed=data.seed, missed=data.missed)


def division_of(division: str | Data, store: Path) -> BlueRed:
    """BLUE and RED: a folder, docleak's own (SHIPPED), or divided by these settings; made if it is not there."""
    if isinstance(division, str) and division != SHIPPED:
        return read_blue_red(Path(division))
    folder = store / (DIVISION if isinstance(division, str) else f"{DIVIDED}{digest_of(asdict(division))}")
    with claimed(folder, whole=True, wait=True):
        if not folder.is_dir():
            if isinstance(division, str):
                divided = as_trained()
            elif division.documents == ISSUERS:
                divided = issuers_of(division)
            elif division.official:
                divided = open_own(division.documents)
            else:
                divided = open_blue_red(division.documents, division.plan, seed=division.seed, count=None)
            write_blue_red(divided, folder)
    return read_blue_red(folder)


def trained(target: Target, store: Path, device: str) -> Path:
    """The target's run directory; it is trained, or its training gone on with, unless it is finished.

    RunError if its public model has changed since, or another docleak trained it.
    """
    blue_red = division_of(target.data, store)
    silos = _together(target.data, blue_red, store) if target.kind == CENTRAL else blue_red.silos
    folder = folder_of(target, store)

    def train() -> dict[str, Any]:
        from docleak.training.federated.flower.embedded import train_embedded  # needs Flower

        federation = target.training.federation(target.model, target.epsilon, target.seed)
        run = FederatedRun.open(folder / "run", federation)
        train_embedded(run, silos, device=device, evaluate_every=0, randomness=_randomness(target, run))
        save_model(run, device)
        return {"rounds": run.last_round()}

    made_once(folder, train, given=lambda: target.to_json() | {"weights": weights_hash(load_model(target.model))})
    return folder / "run"


def rounds_done(target: Target, store: Path) -> int:
    """How far the training is."""
    return FederatedRun(folder_of(target, store) / "run").last_round()


def folder_of(target: Target, store: Path) -> Path:
    """Where a target is kept."""
    name = re.sub(r"[^A-Za-z0-9_+.-]+", "-", target.name.replace(" (epsilon ", "-").rstrip(")"))
    return store / f"{name}-{digest_of(target.to_json())}"


def _randomness(target: Target, run: FederatedRun) -> Callable[[], Randomness]:
    """Fresh streams for every silo and round, or, for a repeatable training, new ones that follow from the seed.

    A resumed training draws others than the one it goes on with: the ledger counts what was begun.
    """
    if not (target.epsilon and target.training.repeatable):
        return Randomness.fresh
    ledger, number = run.ledger(), itertools.count()
    if ledger is None:
        raise PrivacyError("a private target was asked for, and its training has no plan; expected one.")
    begun = ledger.begun
    return lambda: Randomness.seeded("release", target.seed, begun, next(number))


def _together(data: Data, blue_red: BlueRed, store: Path) -> Mapping[str, Path]:
    """What the silos hold, written once more as one."""
    out = store / f"central-{digest_of(asdict(data))}"
    with claimed(out, whole=True, wait=True):
        if not out.is_dir():
            from docleak.documents.folder import load

            entries = [entry for folder in blue_red.silos.values() for entry in load(folder).entries]
            share = Share(TOGETHER, TOGETHER, tuple(range(len(entries))))
            write_silos([share], {TOGETHER: LazyPages(blue_red.path, entries)}, out, by="blue-red", seed=data.seed)
    return {TOGETHER: out / TOGETHER}
