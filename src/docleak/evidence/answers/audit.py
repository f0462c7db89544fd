"""The audit of released models: memorisation and membership of each, what it is good for, what it cost and claims.

OUT/releases.json                 what is audited
OUT/replies/                      what the models said; keep it as you keep the pages
OUT/LABEL/membership/, memorisation/   see ``play``
OUT/LABEL/record.json             one release's numbers: it is finished
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import docleak
from docleak.attacks.registries import ANSWERS
from docleak.documents.blue_red import TEST, VALIDATION
from docleak.documents.blue_red_files import BlueRed, read_blue_red
from docleak.documents.files import read_json
from docleak.errors import AttackError, RunError
from docleak.evidence.answers.play import (
    DELTA,
    MembershipPlan,
    OnProgress,
    Release,
    ask_all,
    attack_membership,
    attack_memorisation,
    told,
)
from docleak.evidence.answers.red import draw_providers, outcomes, replies_to
from docleak.files import TEMPORARY, private_folder, reported, write_json
from docleak.metrics.memorisation import remembered
from docleak.privacy.empirical import LowerBound, held_against
from docleak.privacy.lineage import Claim
from docleak.privacy.mechanism import Unit
from docleak.registry import Choice
from docleak.runs.identity import changed_sources, sources_of
from docleak.runs.pool import OnProgress as OnUnit
from docleak.runs.pool import compute
from docleak.training.federated.record import load_run
from docleak.training.lineage import claim_for

CONFIG, RECORD = "releases.json", "record.json"
#: What a label may be: it names a folder.
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,60}")
#: The release that is the public model itself, audited as a control.
CONTROL = "public model"


@dataclass(frozen=True)
class ReleasesConfig:
    """What is audited. ``releases`` are (label, source) pairs: a model as ``load_model`` takes it, or a run directory
    of docleak train, which also says what was sent and what is guaranteed. ``public`` "" is not known. ``attacks`` are
    names of ANSWERS, or attacks, made on ``providers`` of the division, drawn by the seed; 0: on all."""

    blue_red: str
    releases: tuple[tuple[str, str], ...]
    public: str = ""
    keys: tuple[str, ...] = ("provider_name", "provider_email", "provider_tax_number", "registration_id")
    attacks: tuple[Choice, ...] = tuple(ANSWERS.entries)
    providers: int = 0
    minimum: tuple[int, ...] = (0, 5, 10)
    known: float = 0.15
    searched: int = 0
    seeds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        labels = [label for label, _ in self.releases]
        wrong = [label for label in labels if not LABEL.fullmatch(label) or label == CONTROL]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if not labels or wrong or twice:
            raise AttackError(
                f"releases are called {', '.join(map(repr, labels)) or '(none)'}; expected at least one, each with a "
                f"name of its own of letters, digits, spaces and '. _ + -', and none called {CONTROL!r}."
            )
        if not self.keys or self.seeds < 1:
            raise AttackError(f"keys are {self.keys} and seeds {self.seeds}; expected at least one of each.")
        if not self.attacks:
            raise AttackError(f"there are no attacks; expected some of {', '.join(ANSWERS)}.")
        object.__setattr__(self, "attacks", ANSWERS.all_chosen(self.attacks))
        if self.providers < 0:
            raise AttackError(f"providers is {self.providers}; expected how many to attack, or 0 for all.")

    def plan(self, delta: float) -> MembershipPlan:
        """The membership attacks; ``delta`` is that of the measured epsilon."""
        attacks = {name: told(name, self.known, self.searched) for name in self.attacks}
        return MembershipPlan(attacks, self.minimum, self.seeds, self.seed, self.keys[0], delta)


@dataclass(frozen=True)
class Bill:
    """What a release cost and guarantees, as its run directory says: bytes both ways, and the claimed epsilon."""

    model: str
    bytes: int | None = None
    clients: int | None = None
    secure: bool = False
    claim: Claim | None = None


def bill_of(source: str) -> Bill:
    """The bill of a run directory of docleak train; of any other model its name, and what its lineage says."""
    path = Path(source)
    if not (path / "run.json").is_file():
        return Bill(source, claim=claim_for(source))
    run = load_run(path)
    rows = run.rows()
    if not rows or not (path / "model").is_dir():
        raise RunError(f"{path} is a training without a finished model. Finish it (run the same docleak train again).")
    silos = len(run.silos())
    sent = sum(client.up + client.down for row in rows for client in row.clients) if silos > 1 else 0
    model = str(path / "model")
    return Bill(model, sent, silos, run.federation.secure is not None, claim_for(model))


def run_releases(
    config: ReleasesConfig, out: Path, *, device: str, on_progress: OnProgress, workers: int = 1
) -> list[dict[str, Any]]:
    """Audit every release, and the public model as a control; what is finished in ``out`` is not done again.

    With several ``workers``, as many models are asked at a time. Returns a record per release, the control first.
    Raises ContradictionError where a measured epsilon exceeds what a release claims, AttackError and DocumentError for
    data that cannot be attacked, RunError for another audit's folder.
    """
    _claim_folder(config, out)
    blue_red = read_blue_red(Path(config.blue_red))
    sources = [(CONTROL, config.public)] if config.public else []
    sources += config.releases
    todo = [source for label, source in sources if not (_folder(out, label) / RECORD).is_file()]
    if workers > 1 and len(todo) > 1:
        compute(
            partial(_asked, config, blue_red, out, device), todo, workers=workers,
            on_progress=lambda source, done, _: on_progress(source, done),
        )  # fmt: skip
    return [_audited(config, label, source, blue_red, out, device, on_progress) for label, source in sources]


def _asked(config: ReleasesConfig, blue_red: BlueRed, out: Path, device: str, source: str, report: OnUnit) -> None:
    """Ask one release everything, in a worker process; what it said is found on disk by ``_audited``."""
    release = _release(config, bill_of(source), blue_red, out, device)
    ask_all(release, config.plan(DELTA), config.keys, _useful_part(blue_red), out,
            lambda model, done: report(model, done, 0))  # fmt: skip


def _release(config: ReleasesConfig, bill: Bill, blue_red: BlueRed, out: Path, device: str) -> Release:
    chosen = draw_providers(blue_red, config.providers, seed=config.seed) if config.providers else None
    return Release(bill.model, config.public, blue_red, device, out / "replies", chosen)


def _folder(out: Path, label: str) -> Path:
    return out / label.replace(" ", "-")


def _claim_folder(config: ReleasesConfig, out: Path) -> None:
    wanted = json.loads(json.dumps({**asdict(config), "docleak": docleak.__version__}))
    sources = sources_of(asdict(config), apart_from=out)
    with reported(out):
        private_folder(out)
        file = out / CONFIG
        foreign = sorted(item.name for item in out.iterdir() if not item.name.startswith(TEMPORARY))
        if foreign and not file.exists():
            raise RunError(f"{out} holds {', '.join(foreign[:3])} and no {CONFIG}; give an empty or new --out.")
        before = read_json(file) if file.exists() else {**wanted, "releases": []}
        assert isinstance(before, dict)
        known: dict[str, str] = dict(before["releases"])
        moved = [label for label, source in config.releases if known.get(label, source) != source]
        if moved or {**before, "releases": [], "sources": {}} != {**wanted, "releases": [], "sources": {}}:
            by = before.get("docleak", "older")
            raise RunError(
                f"{out} is an audit of other releases or settings, or by another docleak ({by} "
                f"there, {docleak.__version__} now); give the same ones, or another --out."
            )
        kept_sources = {name: value for name, value in before.get("sources", {}).items() if name in sources}
        if changed := changed_sources(kept_sources, {name: sources[name] for name in kept_sources}):
            raise RunError(
                f"{out} holds results of other weights or pages under the same names:{changed}\n"
                "Pass another --out, or delete the folder."
            )
        kept = {**known, **dict(config.releases)}
        pairs = [list(pair) for pair in kept.items()]
        write_json(file, {**wanted, "releases": pairs, "sources": {**before.get("sources", {}), **sources}})


def _audited(
    config: ReleasesConfig, label: str, source: str, blue_red: BlueRed, out: Path, device: str, on_progress: OnProgress
) -> dict[str, Any]:
    folder = _folder(out, label)
    if (folder / RECORD).is_file():
        saved = read_json(folder / RECORD)
        assert isinstance(saved, dict)
        return saved
    bill = bill_of(source)
    release = _release(config, bill, blue_red, out, device)
    plan = config.plan(bill.claim.delta if bill.claim and bill.claim.delta else DELTA)
    member = attack_membership(release, plan, folder / "membership", on_progress)
    memory = attack_memorisation(release, config.keys, folder / "memorisation", on_progress, seed=config.seed)
    _hold(bill, blue_red, member)
    record = {
        "label": label,
        "source": source,
        "control": label == CONTROL,
        "utility": utility_of(release, out, on_progress, seed=config.seed),
        "membership": {name: value for name, value in member.items() if name != "text"},
        "memorisation": {name: value for name, value in memory.items() if name != "text"},
        "bytes": bill.bytes,
        "clients": bill.clients,
        "secure": bill.secure,
        "epsilon": bill.claim.epsilon if bill.claim else None,
        "claim": bill.claim.sentence if bill.claim else "",
    }
    with reported(folder):
        write_json(folder / RECORD, record)
    return record


def _hold(bill: Bill, blue_red: BlueRed, member: Mapping[str, Any]) -> None:
    """ContradictionError where what was measured exceeds what a private release claims of its providers."""
    claim, measured = bill.claim, member["epsilon_measured"]
    if claim is None or claim.epsilon is None or claim.delta is None or claim.unit != Unit.PROVIDER:
        return
    if measured is None or blue_red.coins != 0.5:
        return
    bound = LowerBound(measured, claim.delta, 0.95, "one-run audit of the release", "see its membership/table.md")
    held_against(bound, claim)


def utility_of(release: Release, out: Path, on_progress: OnProgress, *, seed: int) -> dict[str, Any] | None:
    """Accuracy and ANLS on BLUE's test documents, or those kept for validation; None where there are neither."""
    part = _useful_part(release.blue_red)
    pages = release.pages(part)
    if not len(pages):
        return None
    found = outcomes(replies_to(pages, release.asker(release.model, out, on_progress)), {})
    both = remembered([replace(o, member=True) for o in found], rng=np.random.default_rng(seed)).positive
    return {"part": part, "accuracy": asdict(both[0]), "anls": asdict(both[1])}


def _useful_part(blue_red: BlueRed) -> str:
    return TEST if TEST in blue_red.parts else VALIDATION
