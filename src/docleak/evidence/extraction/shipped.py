"""The small extraction model that docleak ships, its public model, and the game on its weights: one without training.

LayoutLM (tiny) with half a million weights, trained to the last of 150 epochs to guess masked tokens of 51 synthetic
invoices: as ``docleak attack cdmi --criterion last`` trains it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from docleak.evidence.extraction.exhibits import save_exhibits
from docleak.evidence.extraction.game import GameConfig, models_of
from docleak.evidence.extraction.play import MODELS, OnField, open_game, play
from docleak.evidence.extraction.report import section, write_report
from docleak.evidence.extraction.table import GameTable, read_table
from docleak.files import drafted_folder
from docleak.models.shipped import CHECKPOINTS
from docleak.runs.run import Run

RELEASED = "layoutlm-released"
#: Folder in that of an audit.
FOLDER = "weights"
GAME = GameConfig(criterion="last", fields=60, attempts=4)
#: Fields of it that the report of an audit shows.
SHOWN = 3


def audit_weights(run: Path, *, device: str, workers: int, on_field: OnField, command: str) -> tuple[Run, GameTable]:
    """Play the game into RUN/weights, with a report of its own, and read its table.

    The model's pages, and so its fields, are fixed. ``docleak attack cdmi`` plays all that can be played.
    """
    played = open_game(GAME, run / FOLDER, command=command)
    models = models_of(GAME, played.path / MODELS)
    if not models.is_dir():
        with drafted_folder(models) as draft:
            shutil.copytree(CHECKPOINTS / RELEASED, draft, dirs_exist_ok=True)
    game = play(played, GAME, device=device, workers=workers, on_field=on_field)
    save_exhibits(played, game, table_of(played))
    write_report(played, rng=_drawn())
    return played, table_of(played)


def weights_section(run: Path) -> dict[str, Any] | None:
    """What the report of an audit in ``run`` shows of the shipped model's weights; None if they were not audited."""
    if not (run / FOLDER / "results.json").is_file():
        return None
    played = Run.load(run / FOLDER)
    found = section(played, table_of(played))
    shown = {**found, "exhibits": found["exhibits"][:SHOWN]}
    return {**shown, "model": RELEASED, "page": f"{FOLDER}/report.html"}


def table_of(played: Run) -> GameTable:
    """The numbers of the game, with the same intervals every time."""
    return read_table(played, rng=_drawn())


def _drawn() -> np.random.Generator:
    return np.random.default_rng(GAME.seed)
