"""Families and defences of adapters as rows of tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from docleak.errors import AttackError, DefenseError
from docleak.recipes import find_recipe
from docleak.recipes.rows import reproduce, rows_of, write_table
from docleak.studies.adapters.rounds import AdapterConfig
from docleak.studies.adapters.study import AdapterStudy
from docleak.studies.engine import carry_out
from docleak.studies.registry import read_runs

pytest.importorskip("peft", reason="the extra adapters is not installed")
SMALL = AdapterConfig(width=144, gradient=False, rounds=2, rank=48, others=1, unseen=1)


def test_a_family_is_a_row_with_all_that_comes_out_of_it(tmp_path: Path) -> None:
    run = carry_out(AdapterStudy(replace(SMALL, gradient=True)), tmp_path / "run")
    (reading,) = read_runs([run])
    values = reading.tables["adapters"].rows[0].values
    assert float(values["self_test"]) < 1e-6 and values["parameters"] > 1e5
    assert values["text"] == "33 of 33, sure" and values["words"] == "28 of 28, sure" and values["since"] == "1"
    assert values["share"] == 1 and values["false"] == 0 and values["pixels"] == "refused"
    gradient, rounds = sorted(run.units(), key=lambda record: record["unit"])
    assert "no table of positions" in gradient["pixels"]["refused"]
    residual, others = rounds["residuals"]
    assert residual < 0.1 * min(others)


@pytest.mark.parametrize(
    ("family", "text"),
    [("udop", "51 of 51; the answer in order, sure"), ("pix2struct", "8 of 8, sure; the answer in order, sure"),
     ("lilt", "63 of 63, sure; all in place, boxes and answer, sure")],
)  # fmt: skip
def test_families_in_tasks_of_their_own_are_rows(family: str, text: str, tmp_path: Path) -> None:
    settings = next(row.settings for row in find_recipe("ours/models").rows if row.name == family)
    study = AdapterStudy(AdapterConfig(**{**settings, "width": 144, "rounds": min(settings.get("rounds", 2), 2),
                                          "budget": 0, "rank": 48, "others": 1}))  # fmt: skip
    values = study.numbers(carry_out(study, tmp_path / "run"))
    assert values["text"] == text and float(values["self_test"]) < 1e-6 and values["pixels"] == "refused"
    if family != "lilt":
        assert values["share"] == 1 and values["false"] == 0 and values["words"].endswith("sure")


@pytest.mark.parametrize(
    ("change", "least", "most", "true"),
    [({"frozen_a": True, "rank": 8}, 0.0, 0.1, 28), ({"frozen_a": True}, 1.0, 1.0, 28),
     ({"defense": "noise:sigma=0.1"}, 0.0, 0.1, 28), ({"secure": True, "clients": 3}, 1.0, 1.0, 42),
     ({"clip": 0.01, "noise_multiplier": 1.0}, 0.0, 0.1, 28)],
)  # fmt: skip
def test_what_defences_leave_of_the_words(
    change: dict[str, object], least: float, most: float, true: int, tmp_path: Path
) -> None:
    """A frozen A closes the channel where fewer rows than words are sent; a sum over few clients does not."""
    study = AdapterStudy(replace(SMALL, others=0, unseen=0, **change))
    run = carry_out(study, tmp_path / "run")
    values = study.numbers(run)
    assert least <= values.get("share", 0.0) <= most and run.units()[0]["true"] == true, values
    assert "loss" not in study.shown() and "loss" in AdapterStudy(SMALL).shown()


LOUD = """
from docleak.defenses.gradients import GradientNoise

class Loud(GradientNoise):
    noise_std = 1.0
"""


def test_an_own_defences_announced_noise_is_measured_here_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loud_of_mine.py").write_text(LOUD)
    monkeypatch.syspath_prepend(str(tmp_path))
    study = AdapterStudy(replace(SMALL, defense="loud_of_mine:Loud:sigma=0.1"))
    with pytest.raises(DefenseError, match=r"Loud announces noise of standard deviation 1; two draws .* 0.1"):
        carry_out(study, tmp_path / "run")


def test_a_family_without_a_layer_of_words_is_refused_with_its_reason_in_the_table(tmp_path: Path) -> None:
    recipe = find_recipe("ours/models")
    rows = rows_of(recipe, AdapterStudy, "tiny", tmp_path, {}, only="florence2")
    for row in rows:
        object.__setattr__(row.study, "config", replace(row.study.config, budget=0, gradient=False, rounds=1, others=0))
    reproduce(recipe, rows, tmp_path, scale="tiny", workers=1)
    write_table(recipe, "tiny", rows, tmp_path, {})
    (row,) = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert row["row"] == "florence2" and row["ours"]["words"] == "refused"
    assert "mixes them with places" in (tmp_path / "table.md").read_text()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(AttackError, match=r"multiple of 12; noise_multiplier without clip.*; optimiser is 'adam'"):
        AdapterConfig(width=100, noise_multiplier=1.0, optimiser="adam")


def test_the_table_of_families_has_every_family() -> None:
    from docleak.models.vlm.tiny import KNOWN

    assert [row.settings["family"] for row in find_recipe("ours/models").rows] == list(KNOWN)
