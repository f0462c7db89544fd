"""A federated training as a run: resumable after every round.

    OUT/run.json                            the federation (all but how many rounds), silos and digests of their pages,
                                            lineage of the start
    OUT/units/round-0002/unit.json          what round 2 did: silos, losses, bytes, seconds
    OUT/units/round-0002/state.safetensors  the server's state after it, float64; only the last two are kept
    OUT/units/scores-0002/unit.json         what its model answers on the documents that the silos keep (0: the start's)
    OUT/units/scores-0002-1/unit.json       the same of a round 2 that was lost and done again, under a privacy plan
    OUT/ledger.json                         under a privacy plan: the plan, and the rounds of it that were begun
    OUT/providers.json                      whose data was trained on, as keyed hashes (``training.lineage``); private
    OUT/silos/, OUT/silos.json              silos that were made for it, and what of (``silo.synthetic_silos``)
    OUT/history.csv, OUT/curves.png         a line per round; loss and ANLS over rounds
    OUT/model/                              the last global model, in its own save_pretrained layout

A round counts once its unit is written, after its state.
"""

from __future__ import annotations

import csv
import io
import json
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from docleak.errors import FederationError, PrivacyError, RunError
from docleak.files import drafted, read_stored, reported, shaped, write_atomically, write_json
from docleak.privacy.ledger import Ledger
from docleak.privacy.lineage import Claim, Lineage, Trained, claim_of
from docleak.privacy.mechanism import Unit
from docleak.privacy.plan import DpPlan
from docleak.runs.run import LEDGER, Run
from docleak.spec import counted_words
from docleak.training.federated.federation import Federation
from docleak.training.federated.fedopt import ServerState
from docleak.training.federated.party import DocumentScore, Introduction
from docleak.training.federated.scores import SiloScore, evaluation_distance, kept_of
from docleak.training.lineage import declared_start, ledger_digest, lineage_of, read_fingerprints

#: Of the runs of all trainings.
KIND = "training"
STATE = "state.safetensors"
PARTS = ("parameters", "momentum", "second")
KEPT_STATES = 2
AGAIN = "It was changed. Begin again in another folder (out)."
SAME_SILOS = "A training goes on with the silos it began with, and their pages; or give another folder (out)."
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
    ``drawn`` are the silos that were sampled.
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

    def facts(self) -> dict[str, Any]:
        """The round in all, for tables: loss, bytes and seconds."""
        return {
            "round": self.round, "silos": [client.silo for client in self.clients], "loss": self.loss,
            "bytes_up": sum(client.up for client in self.clients),
            "bytes_down": sum(client.down for client in self.clients),
            "seconds_training": self.seconds_training, "seconds_averaging": self.seconds_averaging,
        }  # fmt: skip


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

        The run keeps the lineage of the model that the training starts from; ``start_is_public`` declares one of which
        nothing is known. Raises RunError as ``Run.open``, also for another federation whose round was lost after
        something of it was spent or sent; PrivacyError for a ledger that does not fit its rounds.
        """
        training = cls(Path(path), federation)
        if (training.path / "run.json").is_file() and training.run.kind == KIND and "rounds" in training.run.info:
            load_run(path).ledger()  # refuses one that is gone, or does not fit its rounds
        config = json.loads(federation.to_json())
        rounds = config.pop("rounds")
        run = Run.open(training.path, config, kind=KIND, command=command)
        start = Lineage.from_dict(run.info["start"]) if "start" in run.info else lineage_of(federation.model)
        run.write_info("rounds", rounds)
        run.write_info("identity", run.info.get("identity") or secrets.token_hex(8))
        run.write_info("start", (declared_start(start) if start_is_public else start).to_dict())
        if ledger := training.ledger():
            sessions = run.info.get("sessions", [])
            run.write_info("sessions", [*sessions, [ledger.begun, secrets.token_hex(4)]] if ledger.left else sessions)
        return training

    @property
    def run(self) -> Run:
        """The directory as any run."""
        return Run(self.path)

    def rounds_seen(self) -> int:
        """The highest number of a round that left anything here, whether it counts or not."""
        folders = [*(self.path / "units").glob("round-*"), *(self.path / "units").glob("scores-*")]
        return max((int(folder.name.split("-")[1]) for folder in folders), default=0)

    def last_round(self) -> int:
        """The number of the last round whose state is here; 0 if none is."""
        return max((int(file.parent.name.removeprefix("round-")) for file in self._states()), default=0)

    def state(self) -> ServerState | None:
        """The server's state after the last round, or None before the first. RunError if its file is damaged."""
        number = self.last_round()
        if not number:
            return None
        file = self.run.folder(_round(number)) / STATE
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
        """Record a round, its state first. Older states than the one before are dropped."""
        arrays = {f"{part}/{name}": np.asarray(value) for part in PARTS for name, value in getattr(state, part).items()}
        with reported(self.path):
            if self.federation.privacy is not None:
                self._set_aside(row.round)
            with drafted(self.run.folder(_round(row.round)) / STATE) as draft:
                save_file(arrays, draft)
            self.run.write_unit(_round(row.round), asdict(row), {})
            for file in sorted(self._states())[:-KEPT_STATES]:
                file.unlink()

    def ledger(self) -> Ledger | None:
        """What is spent of the privacy plan, or None without one.

        PrivacyError if it was begun under another plan, is gone, or counts fewer rounds than there are.
        """
        plan = self.federation.privacy
        if plan is None:
            return None
        file, seen = self.path / LEDGER, self.rounds_seen()
        if file.is_file():
            ledger = Ledger.resume(read_stored(file), plan)
            if ledger.begun < seen:
                raise PrivacyError(
                    f"{file} says that {ledger.begun} rounds were begun, and there is a round {seen}: it was changed "
                    f"or is an older one. {_spent_at_most(plan, seen)}"
                )
            return ledger
        if seen or ((self.path / "run.json").is_file() and self.run.info.get("ledger")):
            raise PrivacyError(f"{file} is gone, and with it what was spent. {_spent_at_most(plan, seen)}")
        return Ledger(plan)

    def write_ledger(self, ledger: Ledger) -> None:
        """Record what is spent; before anything of the round leaves."""
        with reported(self.path):
            write_json(self.path / LEDGER, ledger.to_dict())
        if not self.run.info.get("ledger"):
            self.run.write_info("ledger", True)

    def lineage(self) -> Lineage:
        """What the model of the last round comes from: the start's lineage, and this training once it began."""
        info, ledger, identity = self.run.info, self.ledger(), self.identity
        start = Lineage.from_dict(info["start"])
        rounds = self.last_round() if ledger is None else ledger.begun
        if not rounds:
            return start
        kind = "federated" if len(info.get("silos", ())) > 1 else "central"
        what = f"{kind} training ({self.federation.local.objective}, {counted_words(rounds, 'round')})"
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
                bool(info.get("repeatable")), distance if math.isfinite(distance) else 0.0,
                bool(info.get("deployed")) and kind == "federated" and spent.mechanism.unit is not Unit.CLIENT,
                tuple((int(begun), str(name)) for begun, name in info.get("sessions", ())),
            )
        )  # fmt: skip

    @property
    def identity(self) -> str:
        """What tells this training from others in a lineage; says nothing else."""
        return str(self.run.info["identity"])

    def claim(self) -> Claim:
        """What holds for the model of the last round, composed over its lineage."""
        return claim_of(self.lineage(), read_fingerprints(self.path))

    def rows(self) -> list[RoundRow]:
        """The rounds that count, in order."""
        records = [self.run.record(_round(number)) for number in range(1, self.last_round() + 1)]
        names = [field.name for field in fields(RoundRow)]
        rows = [{name: record[name] for name in names if name in record} for record in records]
        return shaped(list[RoundRow], rows, RunError, f"{self.path}: what its rounds left", AGAIN)

    def write_scores(self, number: int, scores: Sequence[DocumentScore | SiloScore]) -> None:
        """Record what the model after round ``number`` answers on the documents that the silos keep."""
        self.run.write_unit(_scores(number), {"scores": [asdict(score) for score in scores]}, {})

    def scores(self, number: int) -> tuple[DocumentScore | SiloScore, ...] | None:
        """What ``write_scores`` recorded, or None; nothing where silos were asked and no answer arrived."""
        if not self.run.has(_scores(number)):
            return None
        saved = self.run.record(_scores(number)).get("scores")
        kinds = tuple[DocumentScore | SiloScore, ...]
        return shaped(kinds, saved, RunError, f"{self.path}: the scores of round {number}", AGAIN)

    def evaluations(self) -> int:
        """How often silos were asked for scores."""
        return len(list((self.path / "units").glob("scores-*/unit.json")))

    def write_silos(self, silos: Sequence[Introduction]) -> None:
        """Record who takes part; a resumed training must have the same silos. RunError where they differ."""
        now = [asdict(silo) for silo in sorted(silos, key=lambda silo: silo.name)]
        before = self.run.info.get("silos")
        if before not in (None, now) and self.last_round():
            raise RunError(
                f"{self.path} was trained by other silos:\n  - there: {_names(before)}\n  - now: {_names(now)}\n"
                + SAME_SILOS
            )
        self.run.write_info("silos", now)

    def write_contents(self, digests: Mapping[str, str]) -> None:
        """Record what the silos' folders hold; RunError where one that was trained on holds something else now."""
        before = self.run.info.get("contents", {})
        changed = [name for name, digest in digests.items() if before.get(name, digest) != digest]
        if changed and self.last_round():
            raise RunError(
                f"{self.path} was trained on other pages of {', '.join(changed)}: pages.jsonl, or the names or sizes "
                f"of its pictures, are not what they were. {SAME_SILOS}"
            )
        self.run.write_info("contents", dict(digests))

    def silos(self) -> tuple[Introduction, ...]:
        """Who takes part, as ``write_silos`` recorded."""
        saved = self.run.info.get("silos", [])
        return shaped(tuple[Introduction, ...], saved, RunError, f"{self.path}: who takes part", AGAIN)

    def write_table(self) -> Path:
        """OUT/history.csv: a line per round; what is not known is empty."""
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, COLUMNS, restval="")
        writer.writeheader()
        for number, row in enumerate([None, *self.rows()]):
            line: dict[str, Any] = {"round": number} if row is None else row.facts()
            line["silos"] = " ".join(line.get("silos", ()))
            if kept := kept_of(self.scores(number) or ()):
                line |= {"anls": kept.anls.value, "accuracy": kept.accuracy, "questions": kept.anls.n or None}
            writer.writerow(line)
        file = self.path / "history.csv"
        with reported(self.path):
            write_atomically(file, buffer.getvalue().encode())
        return file

    def _set_aside(self, number: int) -> None:
        """Scores of a round that is done again are of another model, and were released: ``evaluations`` counts them."""
        scores = self.run.folder(_scores(number))
        if scores.is_dir():
            earlier = len(list(scores.parent.glob(f"{scores.name}-*")))
            scores.rename(scores.with_name(f"{scores.name}-{earlier + 1}"))

    def _states(self) -> list[Path]:
        files = (self.path / "units").glob(f"round-*/{STATE}")
        return [file for file in files if file.with_name("unit.json").is_file()]


def _spent_at_most(plan: DpPlan, seen: int) -> str:
    return (
        f"At least {seen} and at most all {plan.mechanism.rounds} rounds of the plan were begun: "
        f"{plan.guarantee().sentence()} Put the ledger back, or count all of it as spent and begin in another "
        "folder (out)."
    )


def load_run(path: Path) -> FederatedRun:
    """The federated training in ``path``; RunError if there is none, or it is damaged."""
    run = Run.load(Path(path))
    if run.kind == KIND and "rounds" not in run.info:
        raise RunError(f"{path} is a training that was ended before it began. Give the same docleak train again.")
    try:
        settings = {**run.config, "rounds": run.info["rounds"]}
        return FederatedRun(run.path, Federation.from_json(json.dumps(settings)))
    except (KeyError, TypeError, FederationError) as error:
        raise RunError(f"{path} is a run of the kind {run.kind!r}; expected a federated training ({error}).") from error


def _round(number: int) -> str:
    return f"round-{number:04d}"


def _scores(number: int) -> str:
    return f"scores-{number:04d}"


def _names(silos: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{silo['name']} ({silo['pages']} pages)" for silo in silos)
