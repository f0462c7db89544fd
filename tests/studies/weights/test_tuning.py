"""Settings sought on a tiny target: the best by IpF, found once, gone on with, and used by other rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from docleak.attacks.weights import CdmiConfig
from docleak.errors import AttackError
from docleak.metrics.extraction import as_array, improvement_factor
from docleak.recipes import Recipe, Row
from docleak.recipes.rows import reproduce, rows_of, write_table
from docleak.studies.weights import tuning
from docleak.studies.weights.config import Tuning, WeightsConfig
from docleak.studies.weights.game import attack_field, ready
from docleak.studies.weights.study import WeightsStudy
from docleak.studies.weights.table import first_matches
from docleak.training.extraction.fit import FitConfig

SHORT = FitConfig(epochs=2, learning_rate=1e-3, validate_every=2)
GAME = WeightsConfig(
    pages=12, fields=3, attempts=2, task="ee-bio", attack=CdmiConfig(candidates=6), target_training=SHORT,
    public_training=SHORT, criterion="loss", tuning=Tuning("layoutlm-tiny", most=3), calibrate=False,
)  # fmt: skip


def test_the_best_setting_is_found_once_and_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = tuning.sought(GAME, tmp_path, device="cpu")
    tried = tuning.settings_of(GAME)
    assert len(tried) == len(card["ipf"]) == 3 and card["ipf"][card["best"]] == max(card["ipf"])
    game = ready(replace(tuning.sought_on(GAME), attack=tried[1]), tmp_path)
    records = [attack_field(game, number) for number in range(len(game.secrets))]
    ours, theirs = (as_array(first_matches(records, side)) for side in ("attempts", "baseline"))
    assert card["ipf"][1] == improvement_factor(ours, theirs)
    chosen = tuning.tuned(GAME, tmp_path, device="cpu")
    assert chosen == replace(GAME, attack=tried[card["best"]], tuning=None)
    other = replace(GAME, criterion="precision", attempts=1)
    monkeypatch.setattr(tuning, "attack_field", pytest.fail)
    assert tuning.sought(other, tmp_path, device="cpu") == card, "one search for all rows of a configuration"
    (folder,) = tmp_path.glob("settings-*")
    whole = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({key: value for key, value in whole.items() if key != "made"}))
    assert tuning.sought(GAME, tmp_path, device="cpu")["ipf"] == card["ipf"], "finished settings are not tried again"
    assert tuning.tuned(chosen, tmp_path, device="cpu") is chosen


def test_ranges_are_those_of_appendix_a() -> None:
    every = tuning.settings_of(replace(GAME, tuning=Tuning("layoutlm-tiny")))
    assert {(one.weight, one.target_temperature.last, one.top_p) for one in every} == {
        (w, t, p) for w in (0.2, 0.4, 0.6) for t in (0.2, 0.3, 0.4) for p in (0.10, 0.12)
    }
    assert all(one.public_temperature.steps == 3 and one.target_temperature.steps == 0 for one in every)
    assert all(one.candidates == 6 and one.mean == "geometric" for one in every)
    masked = tuning.settings_of(replace(GAME, task="mlm", tuning=Tuning("layoutlm-tiny")))
    assert len(masked) == 6, "a target that guesses tokens is read without a weight"
    with pytest.raises(AttackError, match="settings are sought for CDMI, and the attack is 'cdmi-strong'"):
        tuning.settings_of(replace(GAME, attack="cdmi-strong"))


def test_a_table_says_which_settings_were_sought_and_that_the_truth_was_looked_at(tmp_path: Path) -> None:
    fixed = {
        "pages": 12, "fields": 3, "attempts": 1, "candidates": 6, "epochs_mlm": 2, "public_epochs": 2,
        "learning_rate": 1e-3, "validate_every": 2, "dropout": 0.0, "tuned_on": "layoutlm-tiny",
    }  # fmt: skip
    rows = (Row("MLM", ("layoutlm",), {}), Row("MLM, Loss", ("layoutlm",), {"criterion": "loss"}))
    scales = {"tiny": {"models": {"layoutlm": "layoutlm-tiny"}}}
    recipe = Recipe("tuned", "A test", "nobody", "none", rows, fixed, scales, kind="weights")
    planned = rows_of(recipe, WeightsStudy, "tiny", tmp_path / "out", {})
    reproduce(recipe, planned, tmp_path / "out", scale="tiny", workers=1)
    write_table(recipe, "tiny", planned, tmp_path / "out", {"Command": "test"})
    page = (tmp_path / "out" / "table.md").read_text()
    assert "Settings: mlm of sroie, unimodal: temperature 0." in page and "that looks at the truth" in page
    assert "weight of the target" not in page and "candidates 6" in page
    cards = [json.loads(path.read_text()) for path in tmp_path.rglob("units/settings/unit.json")]
    assert len(cards) == 2 and cards[0]["ipf"] == cards[1]["ipf"] and len(cards[0]["ipf"]) == 6
