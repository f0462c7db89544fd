"""Targets on disk, each once for all tables that attack it.

STORE/data-3f9c2a1b/                 BLUE and RED (see ``documents.blue_red_files``)
STORE/central-3f9c2a1b/central/      what all silos hold, in one place
STORE/VT5_C-8e1d0b77/target.json     what the model started from, and how it was trained
STORE/VT5_C-8e1d0b77/run/            the training (see ``training.federated.record``); run/model is the model
STORE/VT5_C-8e1d0b77/trained.json    bytes, seconds, and what the training guarantees: it is finished

Whoever wants a target takes its lock first, so that tables made at the same time train it once.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import docleak
from docleak.documents.blue_red_files import (
    ISSUERS,
    BlueRed,
    open_blue_red,
    open_issuers,
    open_official,
    read_blue_red,
    write_blue_red,
)
from docleak.documents.pages import LazyPages
from docleak.documents.partition import Share
from docleak.documents.silos import write_silos
from docleak.errors import PrivacyError, RunError
from docleak.files import reported, write_json
from docleak.models.loading import load_model
from docleak.privacy.accounting import guarantee
from docleak.privacy.mechanism import Participation
from docleak.privacy.randomness import Randomness
from docleak.recipes.manifest import require_version
from docleak.recipes.releases.config import Target
from docleak.recipes.releases.presets import CENTRAL, NONE, Data
from docleak.runs.claim import claimed
from docleak.runs.identity import digest_of
from docleak.studies.identity import weights_hash
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.record import FederatedRun
from docleak.training.federated.summary import save_model

TARGET, TRAINED = "target.json", "trained.json"
#: The one silo of central training.
TOGETHER = "central"


@dataclass(frozen=True)
class Trained:
    """A finished target. ``model`` is a directory, or the public model's own name where nothing was trained.

    ``bytes`` travelled between server and clients, both ways, as serialised. ``claim`` is the guarantee as a sentence,
    ``epsilon`` its number and ``as_published`` what the paper's counting would call it; all empty without privacy.
    """

    model: str
    bytes: int = 0
    seconds: float = 0.0
    epsilon: float | None = None
    delta: float | None = None
    noise_multiplier: float | None = None
    claim: str = ""
    as_published: float | None = None


def documents_of(data: Data, store: Path) -> BlueRed:
    """BLUE and RED of these settings, made if they are not there."""
    folder = store / f"data-{digest_of(asdict(data))}"
    with claimed(folder, whole=True, wait=True):
        if not folder.is_dir():
            if data.documents == ISSUERS:
                divided = open_issuers(data.providers, data.per_provider, data.plan, seed=data.seed)
            elif data.official:
                divided = open_official(data.documents, allow_pickle=data.allow_pickle)
            else:
                divided = open_blue_red(
                    data.documents, data.plan, seed=data.seed, count=None, allow_pickle=data.allow_pickle
                )
            write_blue_red(divided, folder)
    return read_blue_red(folder)


def trained(target: Target, store: Path, device: str) -> Trained:
    """Train the target, or go on with it, unless it is finished. RunError if its public model has changed since."""
    if target.kind == NONE:
        return Trained(target.model)
    blue_red = documents_of(target.data, store)
    silos = _together(target.data, blue_red, store) if target.kind == CENTRAL else blue_red.silos
    folder = folder_of(target, store)
    with claimed(folder, whole=True, wait=True):
        _claim(target, folder)
        if (found := finished(target, store)) is not None:
            return found
        federation = target.training.federation(target.model, target.epsilon, target.seed)
        run = FederatedRun.open(folder / "run", federation)
        train_embedded(run, silos, device=device, evaluate_every=0, randomness=_randomness(target, run))
        return _finish(target, run, folder, device)


def finished(target: Target, store: Path) -> Trained | None:
    """What ``trained`` left, or None while it is not finished."""
    if target.kind == NONE:
        return Trained(target.model)
    file = folder_of(target, store) / TRAINED
    if not file.is_file():
        return None
    return Trained(str(file.parent / "run" / "model"), **json.loads(file.read_text(encoding="utf-8")))


def rounds_done(target: Target, store: Path) -> int:
    """How far the training is."""
    return 0 if target.kind == NONE else FederatedRun(folder_of(target, store) / "run").last_round()


def folder_of(target: Target, store: Path) -> Path:
    """Where a target is kept."""
    name = re.sub(r"[^A-Za-z0-9_+.-]+", "-", target.name.replace(" (epsilon ", "-").rstrip(")"))
    return store / f"{name}-{digest_of(target.to_json())}"


def _finish(target: Target, run: FederatedRun, folder: Path, device: str) -> Trained:
    save_model(run, device)
    rows = run.rows()
    facts: dict[str, Any] = {
        "bytes": sum(client.up + client.down for row in rows for client in row.clients) * (target.kind != CENTRAL),
        "seconds": sum(row.seconds_training + row.seconds_averaging for row in rows),
    }
    ledger, claim = run.ledger(), run.claim()
    if ledger is not None and (spent := ledger.spent()) is not None:
        hidden = replace(spent.mechanism, participation=Participation.HIDDEN)
        facts |= {
            "epsilon": claim.epsilon,
            "delta": spent.delta,
            "noise_multiplier": spent.mechanism.noise_multiplier,
            "claim": claim.sentence,
            "as_published": guarantee(hidden, spent.delta).epsilon,
        }
    with reported(folder):
        write_json(folder / TRAINED, facts)
    return Trained(str(folder / "run" / "model"), **facts)


def _claim(target: Target, folder: Path) -> None:
    """Note what the target is; RunError if the public model it starts from is another one by now."""
    file = folder / TARGET
    now = {**target.to_json(), "weights": weights_hash(load_model(target.model)), "docleak": docleak.__version__}
    if file.is_file():
        before = json.loads(file.read_text(encoding="utf-8"))
        require_version(before, folder)
        if before.get("weights") != now["weights"]:
            raise RunError(
                f"{folder} was trained from another {target.model!r} (weights {before.get('weights')}, now "
                f"{now['weights']}). Delete the folder, or give another --out."
            )
        return
    with reported(folder):
        write_json(file, now)


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
