"""The shipped extraction model, and the game on its weights that ends an audit without arguments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docleak.models.shipped import CHECKPOINTS
from docleak.runs.artefact import card_of
from docleak.studies import shipped
from docleak.studies.engine import Silence, carry_out
from docleak.studies.registry import report_on
from docleak.studies.weights import reading
from docleak.studies.weights.study import WeightsStudy
from docleak.studies.weights.table import read_table
from docleak.training.extraction import kept

RELEASED = CHECKPOINTS / shipped.GAME.trained


def test_a_game_without_training_reads_what_was_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_train", lambda *_: pytest.fail("the shipped models must fit the game"))
    study, told = WeightsStudy(replace(shipped.GAME, fields=10, attempts=1)), []

    class Watcher(Silence):
        def reached(self, label: str, number: int, of: int) -> None:
            told.append(label)

    run = carry_out(study, tmp_path / "weights", watcher=Watcher())
    table = read_table(run, rng=np.random.default_rng(0))
    assert len(set(told)) == 12 and len(table.fields) == 10, "two models that are there, and ten fields"
    ours, public = (table.estimates[name].value for name in ("hamming", "baseline_hamming"))
    assert ours is not None and public is not None and ours < 0.6 < public, "pages it was trained on, against a guess"
    page, _ = report_on([run.path])
    said = WeightsStudy.read([run], np.random.default_rng(0), beside=True)
    assert said.parts[0].severity == "severe"
    (section,) = said.sections
    assert section.body.count("For the owner only") == reading.SHOWN_BESIDE
    assert 'href="weights/report.html"' in section.body and page == tmp_path / "weights" / "report.html"

    told.clear()
    again = read_table(carry_out(study, run.path, watcher=Watcher()), rng=np.random.default_rng(0))
    assert again.estimates == table.estimates and not told, "nothing is played twice"


def test_the_cards_are_those_of_the_games_division_and_training() -> None:
    target, public = (card_of(RELEASED / which) for which in ("target", "public"))
    pages = target["pages"]["train"] + public["pages"]["train"] + target["pages"]["validation"]
    assert pages == shipped.GAME.pages and not shipped.GAME.control
    assert target["epochs"][-1]["number"] == shipped.GAME.target_training.epochs
    assert public["epochs"][-1]["number"] == shipped.GAME.public_training.epochs
