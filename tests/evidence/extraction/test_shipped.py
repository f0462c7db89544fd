"""The shipped extraction model, and the game on its weights that ends an audit without arguments."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from docleak.evidence.extraction import game, shipped
from docleak.models.shipped import CHECKPOINTS


def test_a_game_without_training_reads_what_was_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "GAME", replace(shipped.GAME, fields=10, attempts=1))
    monkeypatch.setattr(game, "_train", lambda *_: pytest.fail("the shipped models must fit the game"))
    told: list[int] = []
    arguments = {"device": "cpu", "workers": 1, "command": "docleak audit"}
    _, table = shipped.audit_weights(tmp_path, on_field=lambda done, total, name: told.append(done), **arguments)
    assert told == list(range(1, 11)) and len(table.fields) == 10
    ours, public = (table.estimates[name].value for name in ("hamming", "baseline_hamming"))
    assert ours is not None and public is not None and ours < 0.6 < public, "pages it was trained on, against a guess"
    section = shipped.weights_section(tmp_path)
    assert section is not None and section["verdict"].severity == "severe" and len(section["exhibits"]) == shipped.SHOWN
    assert (tmp_path / section["page"]).is_file() and shipped.weights_section(tmp_path / "nowhere") is None

    told.clear()
    _, again = shipped.audit_weights(tmp_path, on_field=lambda done, total, name: told.append(done), **arguments)
    assert again.estimates == table.estimates and not told, "nothing is played twice"


def test_the_card_is_that_of_the_games_division_and_training() -> None:
    card = json.loads((CHECKPOINTS / shipped.RELEASED / "card.json").read_text())
    assert sum(card["split"].values()) == shipped.GAME.pages and not shipped.GAME.control
    assert card["target"]["epochs"][-1]["number"] == shipped.GAME.target_training.epochs
    assert card["public"]["epochs"][-1]["number"] == shipped.GAME.public_training.epochs
