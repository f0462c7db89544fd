"""A federated training in one process, from its settings to the finished model."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from docleak.errors import MissingExtraError
from docleak.models.published.made import made_at
from docleak.privacy.budget import delta_warning
from docleak.training.federated.capture import UPDATES
from docleak.training.federated.federation import Federation
from docleak.training.federated.flower.embedded import train_embedded
from docleak.training.federated.flower.grid import TURN_SECONDS, OnSilo
from docleak.training.federated.record import FederatedRun, RoundRow
from docleak.training.federated.scores import Scores, kept_of
from docleak.training.federated.silo import private_units
from docleak.training.federated.summary import save_model


class Board:
    """TensorBoard's event files in OUT/tensorboard: what is on disk already, then each round as it ends.

    An older board of the run is replaced, so that a resumed training shows every round once. MissingExtraError without
    the package tensorboardX.
    """

    def __init__(self, run: FederatedRun) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise MissingExtraError(
                f"TensorBoard files need tensorboardX ({error}). Install it with: pip install 'docleak[curves]'"
            ) from error
        folder: Path = run.path / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)
        self._writer = SummaryWriter(str(folder))
        for number, row in enumerate([None, *run.rows()]):
            self.add(number, row, run.scores(number))

    def add(self, number: int, row: RoundRow | None, scores: Scores | None) -> None:
        """One round: loss in all and per silo, ANLS, accuracy, bytes."""
        if row is not None:
            if row.loss is not None:
                self._writer.add_scalar("loss/mean", row.loss, number)
            for client in row.clients:
                if client.loss is not None:
                    self._writer.add_scalar(f"loss/{client.silo}", client.loss, number)
            for way in ("up", "down"):
                self._writer.add_scalar(f"bytes/{way}", row.facts()[f"bytes_{way}"], number)
        if kept := kept_of(scores or ()):
            for name, value in (("anls", kept.anls.value), ("accuracy", kept.accuracy)):
                if value is not None:
                    self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


@dataclass(frozen=True)
class Training:
    """``federation``, and what of a training changes none of its numbers.

    ``evaluate_every`` so many rounds, and after the last, silos are asked for scores (0: never). ``capture`` records
    what the server receives, for ``docleak audit updates``, ``board`` writes TensorBoard's files. A silo has
    ``timeout`` seconds for a message, and, with ``guard``, inspects a model before it trains it. ``start_is_public``
    declares a start of which nothing is recorded.
    """

    federation: Federation
    evaluate_every: int = 1
    capture: bool = False
    board: bool = False
    timeout: float = TURN_SECONDS
    start_is_public: bool = False
    guard: bool = False


def train(
    training: Training, silos: Callable[[], Mapping[str, Path]], out: Path, *, device: str = "cpu", command: str = "",
    on_begin: Callable[[FederatedRun, Mapping[str, Path]], OnSilo] = lambda run, silos: lambda number, silo, kind: None,
    say: Callable[[str], None] = lambda text: None,
) -> FederatedRun:  # fmt: skip
    """Train, or go on, in ``out``, and leave the table of its rounds and the model of the last one.

    ``silos`` finds or makes the silos' folders, by name, once the run is open. ``on_begin`` is told of both and gives
    what is told of every silo's turn; ``say`` is told what should be known besides. Raises what ``FederatedRun.open``
    and ``train_embedded`` raise.
    """
    torch.set_num_threads(1)
    federation = training.federation
    made_at(federation.model)  # what cannot be made is refused before a run is begun
    run = FederatedRun.open(out, federation, command=command, start_is_public=training.start_is_public)
    folders = silos()
    if (there := run.last_round()) > federation.rounds:
        say(f"Warning: {out} has {there} rounds, more than the {federation.rounds} asked for: nothing is trained.")
    plan = federation.privacy
    if plan is not None and (
        warning := delta_warning(plan.delta, private_units(folders, federation), plan.mechanism.unit)
    ):
        say(f"Warning: {warning}")
    board = Board(run) if training.board else None

    def on_round(row: RoundRow | None, scores: Scores | None) -> None:
        run.write_table()
        if board is not None:
            board.add(row.round if row else 0, row, scores)

    train_embedded(
        run, folders, device=device, evaluate_every=training.evaluate_every,
        capture=out / UPDATES if training.capture else None, on_silo=on_begin(run, folders), on_round=on_round,
        timeout=training.timeout, guard=training.guard,
    )  # fmt: skip
    if board is not None:
        board.close()
    run.write_table()
    save_model(run, device)
    return run
