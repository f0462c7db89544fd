"""Learning curves as TensorBoard event files, for those who watch many trainings."""

from __future__ import annotations

import shutil
from pathlib import Path

from docleak.errors import MissingExtraError
from docleak.training.federated.record import FederatedRun, RoundRow
from docleak.training.federated.scores import Scores, kept_of

FOLDER = "tensorboard"


class Board:
    """Writes OUT/tensorboard: what is on disk already, then each round as it ends.

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
        folder: Path = run.path / FOLDER
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
            self._writer.add_scalar("bytes/up", sum(client.up for client in row.clients), number)
            self._writer.add_scalar("bytes/down", sum(client.down for client in row.clients), number)
        if kept := kept_of(scores or ()):
            for name, value in (("anls", kept.anls.value), ("accuracy", kept.accuracy)):
                if value is not None:
                    self._writer.add_scalar(name, value, number)
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()
