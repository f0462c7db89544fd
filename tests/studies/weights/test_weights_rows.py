"""Real games of tiny targets: trained once for all tables, resumed, measured, drawn; each factor does what it says."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import linregress

from docleak.errors import AttackError, DocumentError, RecipeError
from docleak.metrics.extraction import EPSILON, Match, as_array, improvement_factor
from docleak.models.encoders.loading import load_encoder
from docleak.recipes import Recipe, Row, find_recipe
from docleak.recipes.rows import reproduce, rows_of, write_table
from docleak.runs.artefact import card_of
from docleak.studies.study import TableRow
from docleak.studies.weights.config import WeightsConfig
from docleak.studies.weights.factors import Outcome, levels, mean_over_rows, three_distances
from docleak.studies.weights.game import game_of
from docleak.studies.weights.rows import asked_of, game_asked
from docleak.studies.weights.study import STORE, WeightsStudy
from docleak.studies.weights.table import fields_of
from docleak.studies.weights.verdict import EXCLUDED
from docleak.training.extraction.kept import divided, encoded, fitted

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
    return Recipe(shows, "A test", "nobody", "none", rows, {**SMALL, "shows": shows}, scales, kind="weights")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("extraction")


def asked(**change: object) -> dict[str, object]:
    return asked_of("layoutlm-tiny", {**SMALL, **change}, {"sroie": "synthetic"})


def row(**change: object) -> WeightsConfig:
    return game_asked(asked(**change))


def planned_of(table: Recipe, out: Path, **changes: object) -> list[TableRow]:
    return rows_of(table, WeightsStudy, "tiny", out, changes)


def times(home: Path) -> dict[str, int]:
    """When the files of the store were written, beside what a run says of itself."""
    return {str(f): f.stat().st_mtime_ns for f in (home / STORE).rglob("*") if f.is_file() and f.name != "run.json"}


@pytest.mark.parametrize("shows", ["attack", "validation", "examples", "curves", "epochs"])
def test_a_whole_table(shows: str, home: Path) -> None:
    out = home / shows
    planned = planned_of(recipe(shows), out)
    before = times(home)
    reproduce(recipe(shows), planned, out, scale="tiny", workers=1)
    after = times(home)
    assert all(after[file] == when for file, when in before.items()), "models and attacks are computed once"
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


def test_a_lost_field_is_attacked_again_and_is_the_same(tmp_path: Path) -> None:
    planned = planned_of(recipe("attack", ROWS[:1]), tmp_path / "t")
    reproduce(recipe("attack"), planned, tmp_path / "t", scale="tiny", workers=1)
    run, whole = planned[0].run, planned[0].study.numbers(planned[0].run)
    lost = run.folder(str(fields_of(run)[1]["unit"]))
    shutil.rmtree(lost)
    assert planned[0].study.numbers(run) != whole
    reproduce(recipe("attack"), planned, tmp_path / "t", scale="tiny", workers=1)
    assert lost.is_dir() and planned[0].study.numbers(run) == whole


def test_rows_take_turns_and_those_of_one_target_train_it_once(tmp_path: Path) -> None:
    planned = planned_of(recipe("attack"), tmp_path)
    units = [row.study.units() for row in planned]
    assert [[unit.id for unit in row][:2] for row in units] == [["target", "public"], ["target", "public"], []]
    assert [row[0].turn for row in units[:2]] == [0, 1], "the second waits for what the first trains"
    assert all(unit.turn > 100 for row in units for unit in row[2:])
    assert planned[0].run.path != planned[1].run.path, "another epoch is another game"
    other = planned_of(recipe("curves"), tmp_path)
    assert [row.run.path for row in other] == [row.run.path for row in planned], "tables share what they ask for"


def test_rows_that_show_different_things_make_no_table(tmp_path: Path) -> None:
    rows = (ROWS[0], replace(ROWS[1], settings={"shows": "validation"}))
    with pytest.raises(RecipeError, match="show different things"):
        planned_of(recipe("attack", rows), tmp_path)


def test_public_pages_are_left_out_by_pattern_and_none_left_is_refused(tmp_path: Path) -> None:
    whole = divided(row().data())
    key = whole.part("public")[0].fields[0].key
    value = whole.part("public")[0].fields[0].value
    folder = fitted(row(public_without={key: f"^{value}$"}).public_fitting(), tmp_path)
    left = card_of(folder)["pages"]["train"]
    expected = [page for page in whole.part("public") if not any((f.key, f.value) == (key, value) for f in page.fields)]
    assert left == len(expected) < len(whole.part("public"))
    with pytest.raises(DocumentError, match="none of 5 pages is left"):
        fitted(row(public_without={key: "."}).public_fitting(), tmp_path)


def test_dropout_and_length_are_the_settings(tmp_path: Path) -> None:
    shorter = row(max_tokens=40, dropout=0.25).target_fitting()
    saved = load_encoder(str(fitted(shorter, tmp_path) / "last"))
    assert saved.config.backbone["hidden_dropout_prob"] == saved.config.backbone["attention_probs_dropout_prob"] == 0.25
    kept = load_encoder(str(fitted(row(dropout=-1.0).target_fitting(), tmp_path) / "last"))
    assert kept.config.backbone == load_encoder("layoutlm-tiny").config.backbone
    pages = divided(row().data()).part("private")
    lengths = [
        [len(page) for page in encoded(replace(shorter, max_tokens=most).start("cpu"), pages)] for most in (40, 0)
    ]
    assert max(lengths[0]) == 40 < max(lengths[1])


def test_noise_takes_the_place_of_the_picture_only() -> None:
    plain, noisy = (game_of(row(bimodal=True, noise=on)) for on in (False, True))
    for name, page in plain.pages.items():
        other = noisy.pages[name]
        assert torch.equal(page.ids, other.ids) and torch.equal(page.boxes, other.boxes)
        assert page.image is not None and other.image is not None
        pixels, noise = page.image.float(), other.image.float()
        assert abs(float(np.corrcoef(pixels.flatten(), noise.flatten())[0, 1])) < 0.02
        assert 0.4 < float(noise.std() / pixels.std()) < 1, "cut to the range of pixels, and most of a page is white"
        assert abs(float(noise.mean() - pixels.mean())) < 0.5 * float(pixels.std())


def outcome(document: str, ours: float, theirs: float) -> Outcome:
    return document, Match(0.0, ours, ours, ours), Match(0.0, theirs, theirs, theirs)


def found(ours: float, theirs: float, documents: int = 12) -> list[Outcome]:
    """Every field is read the same, so that IpF is known and its interval is a point."""
    return [outcome(f"d{i}", ours, theirs) for i in range(documents)]


def test_means_over_rows_are_ipf_for_one_row_and_the_mean_of_two() -> None:
    rng = np.random.default_rng(0)
    one = [outcome(f"d{i % 5}", *rng.random(2)) for i in range(20)]
    ours, theirs = (as_array([o[side] for o in one]) for side in (1, 2))
    mean = mean_over_rows([one], improvement_factor, rng=rng)
    assert mean.value == pytest.approx(improvement_factor(ours, theirs)) and (mean.n, mean.groups) == (
        20,
        5,
    )
    assert mean.low is not None and mean.high is not None and mean.low < mean.value < mean.high
    both = mean_over_rows([found(0.4, 0.8), found(0.8, 0.8)], improvement_factor, rng=rng)
    expected = (improvement_factor(*(as_array([Match(0, x, x, x)]) for x in (0.4, 0.8))) + 1) / 2
    assert (both.value, both.low, both.high) == pytest.approx((expected, expected, expected))
    assert mean_over_rows([], improvement_factor, rng=rng).value is None
    lone = mean_over_rows([[outcome for outcome in one if outcome[0] == one[0][0]]], improvement_factor, rng=rng)
    assert lone.groups == 1 and lone.value is not None and (lone.low, lone.high) == (None, None)
    assert three_distances(*(as_array([Match(0, x, x, x)]) for x in (0.4, 0.8))) == pytest.approx(2)
    assert three_distances(*(as_array([Match(p, 0.4, 0.4, 0.4)]) for p in (1, 0))) == pytest.approx(1, abs=1e-6)


def test_levels_tell_a_factor_that_matters_from_one_that_does_not() -> None:
    members = [
        (asked(bimodal=bimodal, criterion=criterion), found(0.4 if bimodal else 0.8, 0.8), 1.2)
        for bimodal in (False, True)
        for criterion in ("precision", "loss")
    ]
    by = {(level.factor, level.value): level for level in levels(members)}
    assert {factor for factor, _ in by} == {"all rows", "modality", "criterion"}
    means = {name: level.distances.value for (_, name), level in by.items()}
    assert means == pytest.approx({"all rows": 1.5, "bimodal": 2, "unimodal": 1, "loss": 1.5, "precision": 1.5})
    assert by["all rows", "all rows"].printed == pytest.approx(1.2) and "over 4 rows" in by["all rows", "all rows"].text
    last = [(asked(bimodal=bimodal, criterion="last"), found(0.8, 0.8), None) for bimodal in (False, True)]
    texts = {(level.factor, level.value): level.text for level in levels([*members, *last])}
    assert "(paper 1.200 over 4) over 6 rows" in texts["all rows", "all rows"], "the paper has no last epoch"
    assert "(paper 1.200 over 2) over 3 rows" in texts["modality", "bimodal"]
    assert "(paper 1.200) over 2 rows" in texts["criterion", "loss"] and "paper" not in texts["criterion", "last"]
    nothing = levels([(asked(), (), 1.1), (asked(task="el"), (), None)])
    assert [level.text for level in nothing] == ["- (paper 1.100)", "- (paper 1.100)", "-"]


def test_the_papers_table_5_tells_the_epsilon_of_ipf() -> None:
    """In it IpF is linear in AccAt 100 % over FUNSD's rows; the term of exact readings alone has the slope
    1 / (4 (PR of the baseline + epsilon)). The baseline reads 0.77 % (section 6)."""
    rows = [row for row in find_recipe("cdmi/table5").rows if row.settings.get("data") == "funsd"]
    printed = [numbers for row in rows for numbers in row.printed.values()]
    x, y = (np.array([numbers[name] for numbers in printed]) for name in ("at100", "ipf"))
    line = linregress(x, y)
    assert len(printed) == 20 and line.rvalue > 0.97 and abs(line.intercept - 1) < 0.03

    def slope(epsilon: float) -> float:
        return 1 / (4 * (0.0077 + epsilon))

    assert abs(slope(EPSILON) - line.slope) < 2 * line.stderr
    assert abs(slope(1e-3) - line.slope) > 10 * line.stderr and abs(slope(5e-2) - line.slope) > 10 * line.stderr


def test_epsilon_of_ipf_is_a_setting_of_the_whole_table(tmp_path: Path) -> None:
    """All fields are read, the baseline reads none: IpF's first term is 1 / epsilon, whatever the distances are."""
    members = [(asked(ipf_epsilon=epsilon), [("d", Match(1, 0, 0, 0), Match(0, 1, 1, 1))] * 2, None)
               for epsilon in (1e-2, 1e-3)]  # fmt: skip
    assert [levels([one, one])[0].ipf.value for one in members] == pytest.approx([101, 1001])
    first, other = planned_of(recipe("attack"), tmp_path)[:2]
    assert "epsilon of IpF 0.01" in WeightsStudy.row_facts([first])["Attack"]
    other.study.asked = {**other.study.asked, "ipf_epsilon": 1e-3}
    with pytest.raises(RecipeError, match="several ipf_epsilon"):
        WeightsStudy.check_rows([first, other])
    with pytest.raises(AttackError, match=r"ipf_epsilon is 0, expected above 0"):
        WeightsConfig(ipf_epsilon=0)
    with pytest.raises(AttackError, match=r"ipf_epsilon is 1.0, expected above 0 and up to 0.05: .* hides a leak"):
        WeightsConfig(ipf_epsilon=1.0)
    tenth = np.array([[1.0, 0, 0, 0]] + [[0.0, 1, 1, 1]] * 9)
    least = improvement_factor(tenth * [1, 0, 0, 0] + [0, 1, 1, 1], np.tile([0.0, 1, 1, 1], (10, 1)), epsilon=0.05)
    assert least == pytest.approx(1.5) == EXCLUDED, "a tenth of the fields read whole, and else nothing gained"


def test_facts_say_what_was_left_out(tmp_path: Path) -> None:
    planned = planned_of(recipe("attack"), tmp_path)
    facts = WeightsStudy.row_facts(planned)
    assert facts["Left out"] == "1 rows, whose pages were not given (--documents funsd:DIR)"
    assert facts["Documents"] == "synthetic for sroie (12 pages)"


def test_a_control_is_no_copy_of_the_public_model() -> None:
    control = row(control=True, epochs_mlm=SMALL["public_epochs"], keep_every=0)
    target, public = control.target_fitting(), control.public_fitting()
    assert target.part == public.part == "public" and target.data == public.data
    assert target.training == public.training and target.seed != public.seed
