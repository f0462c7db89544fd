"""A federated training on disk: resumable after every round.

    OUT/federation.json         docleak's version, the federation, its silos
    OUT/rounds/0002.json        what round 2 did: silos, losses, bytes, seconds
    OUT/rounds/0002.scores.json what its model answers on the documents that the silos keep (round 0: before training)
    OUT/rounds/0002.safetensors the server's state after round 2, float64; only the last two are kept
    OUT/ledger.json             under a privacy plan: the plan, and the rounds of it that were begun
    OUT/history.csv             one line per round
    OUT/curves.png              loss and ANLS over rounds
    OUT/model/                  the last global model, in its own save_pretrained layout

The state of a round is written last: without it the round does not count.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

import docleak
from docleak.documents.storage import drafted, reported, write_atomically, write_json
from docleak.errors import FederationError, RunError
from docleak.privacy.ledger import Ledger
from docleak.training.federated.federation import Federation, same_training
from docleak.training.federated.fedopt import ServerState
from docleak.training.federated.party import DocumentScore, Introduction

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
    """

    round: int
    clients: tuple[ClientRow, ...]
    seconds_training: float
    seconds_averaging: float
    absent: tuple[str, ...] = ()

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
    def open(cls, path: Path, federation: Federation, *, command: str = "") -> FederatedRun:
        """Begin in an empty or new directory, or resume what is there if only the number of rounds differs.

        Raises RunError for a directory of something else, or of another federation once a round of it is done.
        """
        run = cls(Path(path), federation)
        file, silos = run.path / MANIFEST, {}
        with reported(run.path):
            run.path.mkdir(parents=True, exist_ok=True)
            if file.exists():
                before = load_run(run.path)
                silos = {key: value for key, value in _read(file).items() if key == "silos" and before.last_round()}
                if not same_training(before.federation, federation) and before.last_round() > 0:
                    raise RunError(
                        f"{run.path} holds {before.last_round()} rounds of another federation:\n  - there: "
                        f"{before.federation.to_json()}\n  - now: {federation.to_json()}\n"
                        "Give the same settings to go on, or another --out."
                    )
            elif foreign := sorted(item.name for item in run.path.iterdir()):
                raise RunError(
                    f"{run.path} is no federated training: it has no {MANIFEST} but holds {', '.join(foreign[:5])}. "
                    "Expected an empty or new directory: pass another --out."
                )
            asked = {"command": command, "federation": json.loads(federation.to_json())}
            write_json(file, {"docleak": docleak.__version__, **asked, **silos})
        return run

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
            parts[part][name] = value
        return ServerState(parts["parameters"], parts["momentum"], parts["second"], number)

    def write_round(self, row: RoundRow, state: ServerState) -> None:
        """Record a round; its state comes last and makes it count. Older states than the one before are dropped."""
        with reported(self.path):
            write_json(self._file(row.round, ".json"), asdict(row))
            arrays = {
                f"{part}/{name}": np.asarray(value) for part in PARTS for name, value in getattr(state, part).items()
            }
            with drafted(self._file(row.round, ".safetensors")) as draft:
                save_file(arrays, draft)
            for file in sorted(self._states())[:-KEPT_STATES]:
                file.unlink()

    def ledger(self) -> Ledger | None:
        """What is spent of the privacy plan, or None without one. PrivacyError if it was begun under another plan."""
        plan = self.federation.privacy
        if plan is None:
            return None
        file = self.path / LEDGER
        return Ledger.resume(_read(file), plan) if file.is_file() else Ledger(plan)

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
                found.append(RoundRow(**{**saved, "clients": clients, "absent": tuple(saved["absent"])}))
            except (KeyError, TypeError) as error:
                raise RunError(f"round {number} of {self.path} is damaged or of another version: {error}.") from error
        return found

    def write_scores(self, number: int, scores: Sequence[DocumentScore]) -> None:
        """Record what the model after round ``number`` answers on the documents that the silos keep."""
        with reported(self.path):
            write_json(self._file(number, ".scores.json"), [asdict(score) for score in scores])

    def scores(self, number: int) -> tuple[DocumentScore, ...] | None:
        """What ``write_scores`` recorded, or None."""
        file = self._file(number, ".scores.json")
        if not file.is_file():
            return None
        return tuple(DocumentScore(**score) for score in _read(file))

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
            if scores := self.scores(number):
                asked = sum(score.questions for score in scores)
                line |= {
                    "anls": sum(score.anls for score in scores) / asked,
                    "accuracy": sum(score.accuracy for score in scores) / asked,
                    "questions": asked,
                }
            writer.writerow(line)
        file = self.path / "history.csv"
        with reported(self.path):
            write_atomically(file, buffer.getvalue().encode())
        return file

    def _states(self) -> list[Path]:
        return [file for file in (self.path / "rounds").glob("*.safetensors") if file.stem.isdigit()]

    def _file(self, number: int, suffix: str) -> Path:
        return self.path / "rounds" / f"{number:04d}{suffix}"


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


def _names(silos: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{silo['name']} ({silo['pages']} pages)" for silo in silos)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{file} cannot be read ({error}). Begin again with another --out.") from error
