"""A federated training on disk: resumable after every round.

    OUT/federation.json         docleak's version, the federation, its silos
    OUT/rounds/0002.json        what round 2 did: silos, losses, bytes, seconds
    OUT/rounds/0002.scores.json what its model answers on the documents that the silos keep (round 0: before training)
    OUT/rounds/0002-1.scores.json  the same of a round 2 that was lost and done again, under a privacy plan
    OUT/rounds/0002.safetensors the server's state after round 2, float64; only the last two are kept
    OUT/ledger.json             under a privacy plan: the plan, and the rounds of it that were begun
    OUT/providers.json          whose data was trained on, as keyed hashes (see ``training.lineage``); private
    OUT/history.csv             one line per round
    OUT/curves.png              loss and ANLS over rounds
    OUT/model/                  the last global model, in its own save_pretrained layout

The state of a round is written last: without it the round does not count.
"""

from __future__ import annotations

import csv
import io
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

import docleak
from docleak.errors import FederationError, PrivacyError, RunError
from docleak.files import TEMPORARY, drafted, private_folder, reported, write_atomically, write_json
from docleak.models.loading import short_name
from docleak.privacy.ledger import Ledger
from docleak.privacy.lineage import UNKNOWN, Claim, Lineage, Trained, claim_of
from docleak.privacy.plan import DpPlan
from docleak.training.federated.federation import Federation, same_training
from docleak.training.federated.fedopt import ServerState
from docleak.training.federated.party import DocumentScore, Introduction
from docleak.training.federated.scores import SiloScore, evaluation_distance, kept_of, score_of
from docleak.training.lineage import folder_of, ledger_digest, lineage_of, read_fingerprints, weights_digest

MANIFEST = "federation.json"
LEDGER = "ledger.json"
PARTS = ("parameters", "momentum", "second")
KEPT_STATES = 2
COLUMNS = ("round", "silos", "loss", "anls", "accuracy", "questions", "bytes_up", "bytes_down", "seconds_training",
           "seconds_averaging")  # fmt: skip


@dataclass(frozen=True)
class ClientRow:
    """One silo's part in a round. ``up`` and ``down`` are the bytes of its messages as they were serialised.

    Under a privacy plan a silo does not say how many examples and steps it had (1 and 0 stand there), nor its loss.
    """

    silo: str
    examples: int
    steps: int
    loss: float | None
    seconds: float
    up: int
    down: int
    compression_error: float = 0.0


@dataclass(frozen=True)
class RoundRow:
    """One round: who trained, and the seconds of training (with transport) and averaging.

    ``absent`` says what was wrong with the sampled silos that are not averaged; empty unless the federation allows it.
    ``drawn`` are the silos that were sampled; none are named in rounds of an older docleak.
    """

    round: int
    clients: tuple[ClientRow, ...]
    seconds_training: float
    seconds_averaging: float
    absent: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()

    @property
    def loss(self) -> float | None:
        """Mean training loss, weighted by examples; None where no silo says it."""
        known = [(client.loss, client.examples) for client in self.clients if client.loss is not None]
        total = sum(examples for _, examples in known)
        return sum(loss * examples for loss, examples in known) / total if known else None


@dataclass(frozen=True)
class FederatedRun:
    """A directory of a federated training. Everything is read from disk when asked for."""

    path: Path
    federation: Federation = field(default_factory=Federation)

    @classmethod
    def open(
        cls, path: Path, federation: Federation, *, command: str = "", start_is_public: bool = False
    ) -> FederatedRun:
        """Begin in an empty or new directory, or resume what is there if only the number of rounds differs.

        The manifest keeps the lineage of the model that the training starts from; ``start_is_public`` declares one of
        which nothing is known. Raises RunError for a directory of something else, or of another federation once a round
        of it is done or, under a privacy plan, begun; PrivacyError for a ledger that does not fit its rounds.
        """
        run = cls(Path(path), federation)
        file, kept = run.path / MANIFEST, {}
        with reported(run.path):
            private_folder(run.path)
            if file.exists():
                before = load_run(run.path)
                begun = before.ledger()  # refuses one that is gone, or does not fit its rounds
                done, same = max(before.rounds_seen(), begun.begun if begun else 0), before.same_as(federation)
                begun_at_all = bool(done) or before.released()
                names = ("silos",) * bool(before.last_round()) + ("identity", "ledger", "repeatable") * same
                names += ("start", "start_weights") * (same and begun_at_all)  # else it may have been trained on since
                kept = {key: value for key, value in _read(file).items() if key in names}
                if not same and not begun_at_all:
                    (run.path / LEDGER).unlink(missing_ok=True)
                if not same and begun_at_all:
                    holds = f"{done} rounds" if done else "scores or updates"
                    raise RunError(
                        f"{run.path} holds {holds} of another federation:\n  - there: "
                        f"{before.federation.to_json()}\n  - now: {federation.to_json()}\n"
                        "Give the same settings to go on, or another --out."
                    )
            elif foreign := sorted(f.name for f in run.path.iterdir() if not f.name.startswith(TEMPORARY)):
                raise RunError(
                    f"{run.path} is no federated training: it has no {MANIFEST} but holds {', '.join(foreign[:5])}. "
                    "Expected an empty or new directory: pass another --out."
                )
            weights = _start_weights(federation.model)
            if kept.setdefault("start_weights", weights) != weights:
                raise RunError(
                    f"{run.path} began with other weights than {federation.model!r} has now. Put those back, or begin "
                    "again with another --out."
                )
            started = kept.get("start") or lineage_of(federation.model).to_dict()
            if start_is_public:
                started = Lineage.from_dict(started).declared().to_dict()
            asked = {
                "command": command, "federation": json.loads(federation.to_json()),
                "identity": kept.get("identity") or secrets.token_hex(8), "start": started,
            }  # fmt: skip
            write_json(file, {"docleak": docleak.__version__, **kept, **asked})
            if (ledger := run.ledger()) is not None and not (run.path / LEDGER).is_file():
                run.write_ledger(ledger)
                run.note(ledger=True)
        return run

    def note(self, **facts: Any) -> None:
        """Put something about this training into its manifest."""
        with reported(self.path):
            write_json(self.path / MANIFEST, {**_read(self.path / MANIFEST), **facts})

    def rounds_seen(self) -> int:
        """The highest number of a round that left anything here, whether it counts or not."""
        numbers = [file.name.partition(".")[0] for file in (self.path / "rounds").glob("*.*")]
        return max((int(number) for number in numbers if number.isdigit()), default=0)

    def released(self) -> bool:
        """Whether anything of the silos is here, be it scores of the start or updates of a round that was lost."""
        return any(any((self.path / part).glob("**/*.*")) for part in ("rounds", "updates"))

    def same_as(self, federation: Federation) -> bool:
        """Whether this run may be continued by those settings."""
        return same_training(self.federation, federation)

    def last_round(self) -> int:
        """The number of the last round whose state is here; 0 if none is."""
        return max((int(file.stem) for file in self._states()), default=0)

    def state(self) -> ServerState | None:
        """The server's state after the last round, or None before the first. RunError if its file is damaged."""
        number = self.last_round()
        if not number:
            return None
        file = self._file(number, ".safetensors")
        try:
            arrays = load_file(file)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{file} cannot be read ({error}). Delete it: the round before is tried then.") from error
        parts: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
        for key, value in arrays.items():
            part, _, name = key.partition("/")
            if part not in parts:
                raise RunError(
                    f"{file} holds {key[:60]!r}; expected parts of {', '.join(PARTS)}: it is damaged. Delete it: the "
                    "round before is tried then."
                )
            parts[part][name] = value
        return ServerState(parts["parameters"], parts["momentum"], parts["second"], number)

    def write_round(self, row: RoundRow, state: ServerState) -> None:
        """Record a round; its state comes last and makes it count. Older states than the one before are dropped."""
        with reported(self.path):
            if self.federation.privacy is not None:
                self._set_aside(row.round)
            write_json(self._file(row.round, ".json"), asdict(row))
            arrays = {
                f"{part}/{name}": np.asarray(value) for part in PARTS for name, value in getattr(state, part).items()
            }
            with drafted(self._file(row.round, ".safetensors")) as draft:
                save_file(arrays, draft)
            for file in sorted(self._states())[:-KEPT_STATES]:
                file.unlink()

    def ledger(self) -> Ledger | None:
        """What is spent of the privacy plan, or None without one.

        PrivacyError if it was begun under another plan, is gone, or counts fewer rounds than there are.
        """
        plan = self.federation.privacy
        if plan is None:
            return None
        file, manifest, seen = self.path / LEDGER, self.path / MANIFEST, self.rounds_seen()
        if file.is_file():
            ledger = Ledger.resume(_read(file), plan)
            if ledger.begun < seen:
                raise PrivacyError(
                    f"{file} says that {ledger.begun} rounds were begun, and there is a round {seen}: it was changed "
                    f"or is an older one. {_spent_at_most(plan, seen)}"
                )
            return ledger
        if seen or (manifest.is_file() and _read(manifest).get("ledger")):
            raise PrivacyError(f"{file} is gone, and with it what was spent. {_spent_at_most(plan, seen)}")
        return Ledger(plan)

    def lineage(self) -> Lineage:
        """What the model of the last round comes from: the start's lineage, and this training once it began."""
        manifest = _read(self.path / MANIFEST)
        if "start" not in manifest or "identity" not in manifest:
            start = Lineage(UNKNOWN, f"{short_name(self.federation.model)!r}, as a run of an older docleak had it")
            manifest = {**manifest, "identity": self.path.name}
        else:
            start = Lineage.from_dict(manifest["start"])
        ledger, identity = self.ledger(), str(manifest["identity"])
        rounds = self.last_round() if ledger is None else ledger.begun
        if not rounds:
            return start
        kind = "federated" if len(manifest.get("silos", ())) > 1 else "central"
        what = f"{kind} training ({self.federation.local.objective}, {rounds} round{'s' * (rounds != 1)})"
        known = read_fingerprints(self.path)
        providers = known.digest(identity) if known and identity in known.hashes else None
        spent = ledger.spent() if ledger else None
        if ledger is None or spent is None:
            return start.after(Trained(identity, what, None, providers=providers))
        counted = ledger.plan.bound(ledger.begun) if ledger.plan.published_counting else spent
        distance = evaluation_distance(self.federation, self.evaluations())  # infinite only where there is no bound
        return start.after(
            Trained(
                identity, what, replace(ledger.plan, mechanism=spent.mechanism), counted.epsilon,
                f"{counted.accountant} {counted.version}", providers, ledger_digest(self.path / LEDGER),
                bool(manifest.get("repeatable")), distance if math.isfinite(distance) else 0.0,
            )
        )  # fmt: skip

    @property
    def identity(self) -> str:
        """What tells this training from others in a lineage; says nothing else."""
        return str(_read(self.path / MANIFEST).get("identity", self.path.name))

    def claim(self) -> Claim:
        """What holds for the model of the last round, composed over its lineage."""
        return claim_of(self.lineage(), read_fingerprints(self.path))

    def write_ledger(self, ledger: Ledger) -> None:
        """Record what is spent; before anything of the round leaves."""
        with reported(self.path):
            write_json(self.path / LEDGER, ledger.to_dict())

    def rows(self) -> list[RoundRow]:
        """The rounds that count, in order."""
        found = []
        for number in range(1, self.last_round() + 1):
            saved = _read(self._file(number, ".json"))
            try:
                clients = tuple(ClientRow(**client) for client in saved["clients"])
                names = {part: tuple(saved.get(part, ())) for part in ("absent", "drawn")}
                found.append(RoundRow(**{**saved, "clients": clients, **names}))
            except (KeyError, TypeError) as error:
                raise RunError(f"round {number} of {self.path} is damaged or of another version: {error}.") from error
        return found

    def write_scores(self, number: int, scores: Sequence[DocumentScore | SiloScore]) -> None:
        """Record what the model after round ``number`` answers on the documents that the silos keep."""
        with reported(self.path):
            write_json(self._file(number, ".scores.json"), [asdict(score) for score in scores])

    def scores(self, number: int) -> tuple[DocumentScore | SiloScore, ...] | None:
        """What ``write_scores`` recorded, or None; nothing where silos were asked and no answer arrived."""
        file = self._file(number, ".scores.json")
        if not file.is_file():
            return None
        return tuple(score_of(score) for score in _read(file))

    def evaluations(self) -> int:
        """How often silos were asked for scores."""
        return len(list((self.path / "rounds").glob("*.scores.json")))

    def write_silos(self, silos: Sequence[Introduction]) -> None:
        """Record who takes part; a resumed training must have the same silos. RunError where they differ."""
        manifest = _read(self.path / MANIFEST)
        now = [asdict(silo) for silo in sorted(silos, key=lambda silo: silo.name)]
        before = manifest.get("silos")
        if before not in (None, now) and self.last_round():
            raise RunError(
                f"{self.path} was trained by other silos:\n  - there: {_names(before)}\n  - now: {_names(now)}\n"
                "A training goes on with the silos it began with, and their pages; or pass another --out."
            )
        with reported(self.path):
            write_json(self.path / MANIFEST, {**manifest, "silos": now})

    def silos(self) -> tuple[Introduction, ...]:
        """Who takes part, as ``write_silos`` recorded."""
        return tuple(Introduction(**silo) for silo in _read(self.path / MANIFEST).get("silos", ()))

    def write_table(self) -> Path:
        """OUT/history.csv: a line per round; what is not known is empty."""
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, COLUMNS, restval="")
        writer.writeheader()
        for number, row in enumerate([None, *self.rows()]):
            line: dict[str, Any] = {"round": number}
            if row is not None:
                line |= {
                    "silos": " ".join(client.silo for client in row.clients),
                    "loss": row.loss,
                    "bytes_up": sum(client.up for client in row.clients),
                    "bytes_down": sum(client.down for client in row.clients),
                    "seconds_training": row.seconds_training,
                    "seconds_averaging": row.seconds_averaging,
                }
            if kept := kept_of(self.scores(number) or ()):
                questions = None if kept.noised else kept.anls.n
                line |= {"anls": kept.anls.value, "accuracy": kept.accuracy, "questions": questions}
            writer.writerow(line)
        file = self.path / "history.csv"
        with reported(self.path):
            write_atomically(file, buffer.getvalue().encode())
        return file

    def _set_aside(self, number: int) -> None:
        """Scores of a round that is done again are of another model, and were released: ``evaluations`` counts them."""
        scores = self._file(number, ".scores.json")
        if scores.is_file():
            earlier = len(list(scores.parent.glob(f"{number:04d}-*.scores.json")))
            scores.rename(self._file(number, f"-{earlier + 1}.scores.json"))

    def _states(self) -> list[Path]:
        return [file for file in (self.path / "rounds").glob("*.safetensors") if file.stem.isdigit()]

    def _file(self, number: int, suffix: str) -> Path:
        return self.path / "rounds" / f"{number:04d}{suffix}"


def _spent_at_most(plan: DpPlan, seen: int) -> str:
    return (
        f"At least {seen} and at most all {plan.mechanism.rounds} rounds of the plan were begun: "
        f"{plan.guarantee().sentence()} Put the ledger back, or count all of it as spent and begin with another --out."
    )


def load_run(path: Path) -> FederatedRun:
    """The federated training in ``path``; RunError if there is none, or it is damaged."""
    file = Path(path) / MANIFEST
    if not file.is_file():
        raise RunError(f"{path} is no federated training: it has no {MANIFEST}. Pass the --out of docleak train.")
    saved = _read(file)
    try:
        return FederatedRun(Path(path), Federation.from_json(json.dumps(saved["federation"])))
    except (KeyError, TypeError, FederationError) as error:
        raise RunError(f"{file} is damaged or of another version of docleak: {error}.") from error


def _start_weights(source: str) -> str:
    """What tells whether a start is still the same; "" for a hub name."""
    folder = folder_of(source)
    return "" if folder is None else weights_digest(folder)


def _names(silos: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{silo['name']} ({silo['pages']} pages)" for silo in silos)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read ({error}). Begin again with another --out.") from error
