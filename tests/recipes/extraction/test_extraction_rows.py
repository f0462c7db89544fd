"""Real games of tiny targets: trained once for all tables, resumed, measured, drawn; each factor does what it says."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from docleak.errors import RecipeError, RunError
from docleak.metrics.extraction import Match, as_array, improvement_factor
from docleak.models.encoders.loading import load_encoder
from docleak.recipes import Recipe, Row
from docleak.recipes.extraction import measures
from docleak.recipes.extraction.config import ExtractionConfig
from docleak.recipes.extraction.experiment import STORE, experiments, facts_of, plan
from docleak.recipes.extraction.factors import Member, levels, mean_over_rows
from docleak.recipes.extraction.measures import Measured, Outcome, attack_folder, measured, three_distances
from docleak.recipes.extraction.store import divided, encoded, fitted
from docleak.recipes.extraction.table import write_table
from docleak.recipes.runner import reproduce
from docleak.runs.run import Run

SMALL = {
    "pages": 12, "fields": 4, "attempts": 2, "candidates": 6, "epochs_mlm": 4, "epochs": 4, "public_epochs": 2,
    "learning_rate": 1e-3, "validate_every": 2, "keep_every": 2, "dropout": 0.0,
}  # fmt: skip
ROWS = (
    Row("MLM, bimodal", ("layoutlm",), {"bimodal": True}, {"layoutlm": {"ipf": 1.395, "accuracy": 0.538}}),
    Row("MLM, epoch 2", ("layoutlm",), {"bimodal": True, "criterion": "epoch-2"}),
    Row("EL", ("layoutlm",), {"task": "el", "data": "funsd"}, {"layoutlm": {"ipf": 1.164}}),
)


def recipe(shows: str, rows: tuple[Row, ...] = ROWS) -> Recipe:
    scales = {"tiny": {"models": {"layoutlm": "layoutlm-tiny"}}}
    return Recipe(shows, "A test", "nobody", "none", rows, {**SMALL, "shows": shows}, scales, kind="extraction")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extraction")


@pytest.fixture(scope="module")
def config() -> ExtractionConfig:
    return ExtractionConfig("layoutlm-tiny", documents={"sroie": "synthetic"}, **SMALL)  # type: ignore[arg-type]


def times(home: Path) -> dict[str, int]:
    """When the files of the store were written; a run's own manifest is looked at, not rewritten."""
    return {str(f): f.stat().st_mtime_ns for f in (home / STORE).rglob("*") if f.is_file() and f.suffix != ".lock"}


@pytest.mark.parametrize("shows", ["attack", "validation", "examples", "curves", "epochs"])
def test_a_whole_table(shows: str, home: Path) -> None:
    out = home / shows
    planned = experiments(recipe(shows), "tiny", out, {})
    before = times(home)
    reproduce(recipe(shows), planned, out, scale="tiny", device="cpu", workers=1)
    if before:
        assert times(home) == before, "models and attacks are computed once for all tables"
    write_table(recipe(shows), "tiny", planned, out, {"Command": "test"})
    saved = json.loads((out / "table.json").read_text())["rows"]
    assert [row["failed"] for row in saved] == [{}, {}, {}]
    assert [bool(row["ours"]) for row in saved] == [True, True, False], "no pages with links were given"
    text = (out / "table.md").read_text()
    if shows == "attack":
        assert "(paper 1.395)" in text and "- (paper 1.164)" in text and "Mean IpF, task: mlm" in text
        assert saved[0]["ours"]["ipf"]["n"] == 4
    if shows != "examples":
        assert saved[1]["ours"]["epoch"]["value"] == 2
    assert (out / "pictures.png").stat().st_size > 2000
    assert all(re.search("0 models to be trained|not given", row.words) for row in plan(planned)), "nothing is left"


def test_a_lost_field_is_attacked_again_and_is_the_same(home: Path, config: ExtractionConfig, tmp_path: Path) -> None:
    whole = measured(config, tmp_path / STORE, "cpu")
    run = Run(attack_folder(config, tmp_path / STORE))
    lost = run.folder(str(run.units()[1]["unit"]))
    shutil.rmtree(lost)
    again = measured(config, tmp_path / STORE, "cpu")
    assert lost.is_dir()
    assert {**asdict(again), "facts": 0} == {**asdict(whole), "facts": 0}
    assert measures.from_json(json.loads(json.dumps(measures.to_json(whole)))) == whole
    fresh = experiments(recipe("attack"), "tiny", tmp_path / "new" / "table", {})
    assert [re.findall(r"(\d) models", row.words) for row in plan(fresh)] == [["2"], ["0"], []]


def test_a_folder_of_another_row_is_refused(tmp_path: Path) -> None:
    (first, *_) = experiments(recipe("attack"), "tiny", tmp_path, {})
    first.open(device="cpu", command="")
    (other, *_) = experiments(recipe("attack"), "tiny", tmp_path, {"seed": 3})
    with pytest.raises(RunError, match="seed is 0 there, 3 now"):
        other.open(device="cpu", command="")


def test_rows_that_show_different_things_make_no_table(tmp_path: Path) -> None:
    rows = (ROWS[0], replace(ROWS[1], settings={"shows": "validation"}))
    planned = experiments(recipe("attack", rows), "tiny", tmp_path, {})
    with pytest.raises(RecipeError, match="show different things"):
        write_table(recipe("attack", rows), "tiny", planned, tmp_path, {})


def test_public_pages_are_left_out_by_pattern_and_none_left_is_refused(
    config: ExtractionConfig, tmp_path: Path
) -> None:
    whole = divided(config.target().data)
    key = whole.part("public")[0].fields[0].key
    value = whole.part("public")[0].fields[0].value
    shifted = replace(config, public_without={key: f"^{value}$"})
    folder = fitted(shifted.public(), tmp_path, "cpu")
    left = json.loads((folder / "card.json").read_text())["pages"]["train"]
    expected = [page for page in whole.part("public") if not any((f.key, f.value) == (key, value) for f in page.fields)]
    assert left == len(expected) < len(whole.part("public"))
    with pytest.raises(RecipeError, match="none of 5 pages is left"):
        fitted(replace(config, public_without={key: "."}).public(), tmp_path, "cpu")


def test_dropout_and_length_are_the_settings(config: ExtractionConfig, tmp_path: Path) -> None:
    shorter = replace(config, max_tokens=40, dropout=0.25)
    assert shorter.target().training.max_tokens == 40
    saved = load_encoder(str(fitted(shorter.target(), tmp_path, "cpu") / "last"))
    assert saved.config.backbone["hidden_dropout_prob"] == saved.config.backbone["attention_probs_dropout_prob"] == 0.25
    kept = load_encoder(str(fitted(replace(config, dropout=-1.0).target(), tmp_path, "cpu") / "last"))
    assert kept.config.backbone == load_encoder("layoutlm-tiny").config.backbone
    pages = divided(config.target().data).part("private")
    lengths = [[len(page) for page in encoded(load_encoder("layoutlm-tiny"), pages, most)] for most in (40, 0)]
    assert max(lengths[0]) == 40 < max(lengths[1])


def test_noise_takes_the_place_of_the_picture_only(config: ExtractionConfig, home: Path) -> None:
    seeing = replace(config, bimodal=True)
    plain, noisy = (measures._game(replace(seeing, noise=on), home / STORE, "cpu") for on in (False, True))
    for name, page in plain.pages.items():
        other = noisy.pages[name]
        assert torch.equal(page.ids, other.ids) and torch.equal(page.boxes, other.boxes)
        assert page.image is not None and other.image is not None
        pixels, noise = page.image.float(), other.image.float()
        assert abs(float(np.corrcoef(pixels.flatten(), noise.flatten())[0, 1])) < 0.02
        assert 0.4 < float(noise.std() / pixels.std()) < 1, "cut to the range of pixels, and most of a page is white"
        assert abs(float(noise.mean() - pixels.mean())) < 0.5 * float(pixels.std())


def outcome(document: str, ours: float, theirs: float) -> Outcome:
    return Outcome(document, Match(0.0, ours, ours, ours), Match(0.0, theirs, theirs, theirs))


def found(ours: float, theirs: float, documents: int = 12) -> Measured:
    """Every field is read the same, so that IpF is known and its interval is a point."""
    return Measured({}, {}, tuple(outcome(f"d{i}", ours, theirs) for i in range(documents)))


def test_means_over_rows_are_ipf_for_one_row_and_the_mean_of_two() -> None:
    rng = np.random.default_rng(0)
    one = Measured({}, {}, tuple(outcome(f"d{i % 5}", *rng.random(2)) for i in range(20)))
    ours, theirs = (as_array([getattr(o, side) for o in one.outcomes]) for side in ("ours", "theirs"))
    mean = mean_over_rows([one], "ipf", rng=rng)
    assert mean.value == pytest.approx(improvement_factor(ours, theirs)) and (mean.n, mean.groups) == (
        20,
        5,
    )
    assert mean.low is not None and mean.high is not None and mean.low < mean.value < mean.high
    both = mean_over_rows([found(0.4, 0.8), found(0.8, 0.8)], "ipf", rng=rng)
    expected = (improvement_factor(*(as_array([Match(0, x, x, x)]) for x in (0.4, 0.8))) + 1) / 2
    assert (both.value, both.low, both.high) == pytest.approx((expected, expected, expected))
    assert mean_over_rows([], "ipf", rng=rng).value is None
    assert three_distances(*(as_array([Match(0, x, x, x)]) for x in (0.4, 0.8))) == pytest.approx(2)
    assert three_distances(*(as_array([Match(p, 0.4, 0.4, 0.4)]) for p in (1, 0))) == pytest.approx(1, abs=1e-6)


def test_levels_tell_a_factor_that_matters_from_one_that_does_not(config: ExtractionConfig) -> None:
    members = [
        Member(replace(config, bimodal=bimodal, criterion=criterion), found(0.4 if bimodal else 0.8, 0.8), 1.2)
        for bimodal in (False, True)
        for criterion in ("precision", "loss")
    ]
    by = {(level.factor, level.value): level for level in levels(members)}
    assert {factor for factor, _ in by} == {"all rows", "modality", "criterion"}
    means = {name: level.distances.value for (_, name), level in by.items()}
    assert means == pytest.approx({"all rows": 1.5, "bimodal": 2, "unimodal": 1, "loss": 1.5, "precision": 1.5})
    assert by["all rows", "all rows"].printed == pytest.approx(1.2) and "over 4 rows" in by["all rows", "all rows"].text
    nothing = levels([Member(config, None, 1.1), Member(replace(config, task="el"), None, None)])
    assert [level.text for level in nothing] == ["- (paper 1.100)", "- (paper 1.100)", "-"]


def test_facts_say_what_was_left_out(tmp_path: Path) -> None:
    planned = experiments(recipe("attack"), "tiny", tmp_path, {})
    assert facts_of(planned)["Left out"] == "1 rows, whose pages were not given (--documents funsd:DIR)"
    assert facts_of(planned)["Documents"] == "synthetic for sroie; the first 12 pages of each"
    assert list(facts_of([e for e in planned if not e.config.given])) == ["Left out"]


def test_a_control_is_no_copy_of_the_public_model(config: ExtractionConfig) -> None:
    control = replace(config, control=True, epochs_mlm=config.public_epochs, keep_every=0)
    target, public = control.target(), control.public()
    assert target.part == public.part == "public" and target.data == public.data
    assert target.training == public.training and target.seed != public.seed
