"""The adversary's own game: on public pages only, and its answers measured where nobody fitted them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docleak.attacks.weights import CdmiConfig
from docleak.documents.folder import save
from docleak.documents.game import GameSplit, shadow_split
from docleak.documents.synthetic import make_pages
from docleak.errors import DocumentError
from docleak.metrics.calibration import brier
from docleak.models.encoders.loading import load_encoder, save_encoder
from docleak.models.encoders.tasks import classes_of
from docleak.runs.run import Run
from docleak.studies.engine import carry_out
from docleak.studies.registry import report_on
from docleak.studies.weights.calibrating import CALIBRATION, calibrate, measured
from docleak.studies.weights.config import WeightsConfig
from docleak.studies.weights.game import game_of, shadow_of
from docleak.studies.weights.study import WeightsStudy
from docleak.studies.weights.table import fields_of
from docleak.training.extraction.fit import FitConfig

QUICK = FitConfig(epochs=1, batch_size=8, learning_rate=1e-3)
SMALL = WeightsConfig(
    pages=16, fields=5, attempts=2, attack=CdmiConfig(candidates=6, top_p=0.9), target_training=QUICK,
    public_training=QUICK,
)  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return carry_out(WeightsStudy(SMALL), tmp_path_factory.mktemp("shadow") / "a")


def test_the_shadow_game_is_played_on_public_pages_only(played: Run) -> None:
    alone, why = shadow_of(SMALL)
    assert alone is not None and not why
    game, shadow = game_of(SMALL), game_of(alone)
    assert set(shadow.texts["private"]) | set(shadow.texts["public"]) == set(game.texts["public"])
    assert not set(shadow.texts["private"]) & set(game.texts["private"])
    attacked = {unit["page"] for unit in fields_of(played, shadow=True)}
    assert attacked <= set(game.texts["public"])


def test_numbers_are_those_of_the_records(played: Run) -> None:
    value = json.loads((played.path / CALIBRATION).read_text())
    half = value["events"]["half"]
    units = fields_of(played)
    assert set(half["stated"]) == {unit["unit"] for unit in units} and half["count"] == 5
    tokens = sum(len(unit["tokens"]) for unit in units)
    assert value["events"]["token"]["count"] == tokens and value["shadow"] == 5
    page = report_on([played.path])[0].read_text(encoding="utf-8")
    assert "How sure can the adversary be" in page and f"{half['true']} of {half['count']}" in page


def test_the_private_truth_changes_no_statement(played: Run, tmp_path: Path) -> None:
    """With other truths in the private records the statements stay, and only their reliability moves."""
    import shutil

    shutil.copytree(played.path, tmp_path / "b")
    other = Run.load(tmp_path / "b")
    for unit in fields_of(other):
        file = other.folder(unit["unit"]) / "unit.json"
        file.write_text(json.dumps({**unit, "tokens": unit["attempts"][0]["tokens"]}))
    calibrate(other, rng=np.random.default_rng(0))
    before, after = (json.loads((run.path / CALIBRATION).read_text())["events"]["half"] for run in (played, other))
    assert before["stated"] == after["stated"] and before["true"] < after["true"]


def test_gain_over_a_constant_by_hand() -> None:
    p, y = np.array([0.9, 0.2, 0.1]), [True, False, False]
    calibration = measured(p, y, [True, False], ["a", "b", "c"], rng=np.random.default_rng(0))
    assert calibration["brier"] == pytest.approx((0.01 + 0.04 + 0.01) / 3) and calibration["constant_brier"] == 0.25
    assert calibration["gained"]["value"] == pytest.approx(0.25 - brier(p, np.array(y, dtype=float)))
    assert calibration["gained"]["low"] > 0
    liar = measured(1 - p, y, [True, False], ["a", "b", "c"], rng=np.random.default_rng(0))
    assert liar["gained"]["high"] < 0


def test_the_shadow_division_keeps_documents_whole() -> None:
    documents = ["a", "a", "b", "", "c", "c", "d", "e"]
    split = GameSplit(private=(6, 7), public=(0, 1, 2, 3, 4, 5), validation=())
    for seed in range(20):
        shadow = shadow_split(split, documents, rng=np.random.default_rng(seed))
        assert sorted((*shadow.private, *shadow.public)) == [0, 1, 2, 3, 4, 5] and shadow.validation == ()
        parts = [{documents[i] or str(i) for i in part} for part in (shadow.private, shadow.public)]
        assert not parts[0] & parts[1] and len(parts[0]) == len(parts[1]) == 2
    with pytest.raises(DocumentError, match="1 public documents"):
        shadow_split(replace(split, public=(0, 1)), documents, rng=np.random.default_rng(0))


def test_a_finished_model_is_calibrated_or_the_report_says_why_not(tmp_path: Path) -> None:
    private, public = make_pages(4, seed=1), make_pages(6, seed=2, split="train")
    save(private, tmp_path / "private")
    save(public, tmp_path / "public")
    save([replace(page, fields=(), questions=()) for page in public], tmp_path / "bare")
    start = load_encoder("layoutlm-tiny")
    save_encoder(start.for_task("ee-bio", classes_of([*private, *public]), seed=3), tmp_path / "model")
    config = WeightsConfig(
        str(tmp_path / "private"), 0, "", str(tmp_path / "model"), public_documents=str(tmp_path / "public"), fields=2,
        attempts=1, attack=CdmiConfig(candidates=4), public_training=QUICK,
    )  # fmt: skip
    for source, told in (("public", ""), ("bare", "kinds of entity")):
        study = WeightsStudy(replace(config, public_documents=str(tmp_path / source)))
        run = carry_out(study, tmp_path / f"run-{source}")
        said = run.info.get("uncalibrated", "")
        assert told in said and bool(said) == bool(told)
        page = report_on([run.path])[0].read_text(encoding="utf-8")
        assert ("No calibrated answer" in page) == bool(told)
