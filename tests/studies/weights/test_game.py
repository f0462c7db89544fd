"""The game end to end: trained, attacked, resumed, recomputed from disk; a planted leak is found, no leak is not."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from docleak.attacks.weights import (
    METRICS,
    Attempt,
    CdmiConfig,
    PublicKnowledge,
    StrongConfig,
    WeightsView,
    plausibility,
)
from docleak.documents import Field, Page, Word, load_pages
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, DocumentError, RunError
from docleak.metrics.extraction import match
from docleak.runs.artefact import card_of
from docleak.runs.run import Run
from docleak.studies.engine import Silence, begin, carry_out
from docleak.studies.registry import report_on
from docleak.studies.weights import game as games
from docleak.studies.weights.config import WeightsConfig
from docleak.studies.weights.game import game_of, ready, view_of
from docleak.studies.weights.study import MODELS, WeightsStudy
from docleak.studies.weights.table import fields_of, read_table
from docleak.training.extraction import kept
from docleak.training.extraction.fit import FitConfig
from docleak.training.extraction.private import PrivateFit
from tests.small import Returning

QUICK = FitConfig(epochs=2, batch_size=8, learning_rate=1e-3)
SMALL = WeightsConfig(
    pages=12, fields=4, attempts=2, attack=CdmiConfig(candidates=6, top_p=0.5), target_training=QUICK,
    public_training=QUICK, calibrate=False,
)  # fmt: skip


def records(run: Run) -> list[dict[str, object]]:
    return [{k: v for k, v in unit.items() if k != "seconds"} for unit in fields_of(run)]


def play(config: WeightsConfig, out: Path, workers: int = 1) -> Run:
    return carry_out(WeightsStudy(config), out, workers=workers)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of SMALL, in one process, for tests that read it, or change a copy."""
    return play(SMALL, tmp_path_factory.mktemp("played") / "run").path


@pytest.mark.parametrize("task", ["mlm", "ee-bio", "ee-spade", "qa", "classify"])
def test_a_game_is_played_and_resumed(tmp_path: Path, task: str) -> None:
    config = replace(SMALL, task=task, bimodal=task == "ee-bio")  # type: ignore[arg-type]
    run = play(config, tmp_path / "a")
    whole = records(run)
    assert len(whole) == 4
    trained = {file: file.stat().st_mtime_ns for file in (run.path / MODELS).rglob("*.safetensors")}
    assert len(trained) == 6  # target and public model by two criteria and of the last epoch
    lost = fields_of(run)[1]["unit"]
    (run.folder(str(lost)) / "unit.json").unlink()
    told: list[str] = []

    class Watcher(Silence):
        def reached(self, label: str, number: int, of: int) -> None:
            told.append(label)

    carry_out(WeightsStudy(config), tmp_path / "a", watcher=Watcher())
    assert told == [lost], "only the missing field was attacked again"
    assert records(run) == whole
    assert {file: file.stat().st_mtime_ns for file in trained} == trained, "nothing was trained again"
    table = read_table(run, rng=np.random.default_rng(0))
    assert table.estimates["improvement_factor"].n == 4
    said = "\n".join(WeightsStudy.read([run], np.random.default_rng(0)).lines)
    assert "IpF" in said and all(field.value in said for field in table.fields)


def test_the_last_epoch_is_what_training_left(tmp_path: Path) -> None:
    """Of several epochs, each validated: the card's last one, and other weights than an earlier best's."""
    training = replace(QUICK, epochs=12, learning_rate=3e-2)
    config = replace(SMALL, target_training=training, criterion="last")
    game = ready(config, tmp_path)
    best = ready(replace(config, criterion="loss"), tmp_path)
    card = card_of(tmp_path / config.target_fitting().name)
    assert card["epochs"][-1]["number"] == 12
    assert card["best"]["loss"]["number"] < 12, "else this shows nothing"
    ours, theirs = (list(g.target.module.parameters()) for g in (game, best))
    assert any(not a.equal(b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("task", ["mlm", "ee-bio"])
def test_the_stronger_variant_is_played_and_read_from_disk(tmp_path: Path, task: str) -> None:
    config = replace(SMALL, task=task, attack=StrongConfig(candidates=8, beam=2))  # type: ignore[arg-type]
    run = play(config, tmp_path / "a")
    assert read_table(run, rng=np.random.default_rng(0)).estimates["improvement_factor"].n == 4
    with pytest.raises(RunError, match="attack"):
        begin(WeightsStudy(replace(SMALL, task=task)), tmp_path / "a")  # type: ignore[arg-type]


def test_workers_give_the_same_numbers(tmp_path: Path, played: Path) -> None:
    alone, together = Run.load(played), play(SMALL, tmp_path / "b", workers=2)
    for one, other in zip(records(alone), records(together), strict=True):
        assert one["attempts"] == other["attempts"] and one["baseline"] == other["baseline"]


def test_numbers_are_recomputed_from_disk(tmp_path: Path, played: Path) -> None:
    run = Run.load(shutil.copytree(played, tmp_path / "a"))
    table = read_table(run, rng=np.random.default_rng(0))
    units = fields_of(run)
    perfect = [match(u["tokens"], u["attempts"][0]["tokens"]).hamming for u in units]
    assert table.estimates["hamming"].value == pytest.approx(np.mean(perfect))
    file = run.folder(units[0]["unit"]) / "unit.json"
    saved = json.loads(file.read_text())
    saved["attempts"][0]["tokens"] = saved["tokens"]
    file.write_text(json.dumps(saved))
    better = read_table(run, rng=np.random.default_rng(0))
    assert (better.estimates["perfect"].value or 0) == 0.25 > (table.estimates["perfect"].value or 0)


def test_other_settings_do_not_join_a_run(tmp_path: Path, played: Path) -> None:
    with pytest.raises(RunError, match="top_p"):
        begin(WeightsStudy(replace(SMALL, attack=replace(SMALL.attack, top_p=0.3))), played)
    with pytest.raises(RunError, match="no finished field"):
        read_table(Run.open(tmp_path / "empty", {}), rng=np.random.default_rng(0))


def test_the_view_holds_no_truth(tmp_path: Path) -> None:
    config = replace(SMALL, repeats=True)
    game = game_of(config)
    for secret in game.secrets:
        view = view_of(game, secret)
        shown = view.page.ids.tolist()
        mask = game.target.tokenizer.mask_token_id
        assert all(shown[i] == mask for i in (*secret.positions, *secret.repeats))
        assert not hasattr(view, "tokens") and secret.value not in repr(view.page)


def test_private_and_public_pages_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    real = kept.fit

    def spy(model, train, held_out, *rest, **more):  # type: ignore[no-untyped-def]
        seen.extend([[p.document for p in train], [p.document for p in held_out]])
        return real(model, train, held_out, *rest, **more)

    monkeypatch.setattr(kept, "fit", spy)
    game = ready(SMALL, tmp_path / "a")
    public, validation, target, again = map(set, seen)
    assert validation == again and not (target & public or target & validation or public & validation)
    assert {secret.document for secret in game.secrets} <= target
    seen.clear()
    control = ready(replace(SMALL, control=True), tmp_path / "a")
    assert set(seen[0]) == public, "the control's target never sees the private pages"
    assert control.secrets == game.secrets


def test_what_cannot_be_played_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="links between entities"):
        game_of(replace(SMALL, task="el"))
    bare = [replace(page, fields=(), questions=(), template=None, provider="") for page in make_pages(6, seed=0)]
    save(bare, tmp_path / "bare")
    with pytest.raises(DocumentError, match="none of the"):
        game_of(replace(SMALL, documents=str(tmp_path / "bare"), pages=0))
    for task, what in (("qa", "answer is printed"), ("classify", "template or an issuer")):
        with pytest.raises(DocumentError, match=f"0 of 6 pages have words and a.*{what}"):
            game_of(replace(SMALL, task=task, documents=str(tmp_path / "bare"), pages=0))  # type: ignore[arg-type]
    with pytest.raises(AttackError, match="criterion is 'recall'"):
        replace(SMALL, criterion="recall")


def test_a_field_that_names_the_page_s_class_is_no_secret(tmp_path: Path) -> None:
    """Pages classified by their issuer, whose name is a field of theirs: it is left out and counted."""
    made = [replace(page, template=None, provider="Nordlicht") for page in make_pages(14, seed=0)]
    for number, page in enumerate(made[::2]):
        date = next(f for f in page.fields if f.key == "date")
        words = list(page.words)
        words[date.words[0]] = replace(words[date.words[0]], text="KONTOR-9417")
        named = replace(date, value="KONTOR-9417", words=date.words[:1])
        fields = tuple(named if field is date else field for field in page.fields)
        made[2 * number] = replace(page, words=tuple(words), fields=fields, provider="Kontor 9417")
    save(made, tmp_path / "mine")
    config = replace(SMALL, documents=str(tmp_path / "mine"), pages=0, fields=0)
    every, fewer = (game_of(replace(config, task=task)) for task in ("mlm", "classify"))  # type: ignore[arg-type]
    gone = {s.name: s for s in every.secrets if s.name not in {s.name for s in fewer.secrets}}
    assert gone and {s.value for s in gone.values()} == {"KONTOR-9417"}
    assert fewer.left_out["that name the page's class"] == len(gone)


@pytest.mark.parametrize("task", ["el", "mlm"])
def test_forms_are_played(tmp_path: Path, shared_data: Path, task: str) -> None:
    config = replace(SMALL, task=task, documents=f"funsd:{shared_data / 'funsd'}", pages=8, fields=2)  # type: ignore[arg-type]
    run = play(config, tmp_path / "a")
    assert read_table(run, rng=np.random.default_rng(0)).estimates["improvement_factor"].n == 2


# -- a planted leak, and none ------------------------------------------------------------------------------------------

CANARY = "7Q-4X19-ZK"


def with_canary(pages: Sequence[Page], copies: int) -> list[Page]:
    """The first page with a secret that nobody guesses, ``copies`` times, as one document; then the others."""
    page = pages[0]
    words = (*page.words, Word("code", (10.0, 240.0, 40.0, 250.0)), Word(CANARY, (50.0, 240.0, 120.0, 250.0)))
    field = Field("code", CANARY, (len(words) - 1,))
    planted = replace(page, words=words, fields=(*page.fields, field))
    return [replace(planted, name=f"canary-{i}", document="canary") for i in range(copies)] + list(pages[1:])


@pytest.mark.slow
def test_a_canary_ranks_among_the_top_5_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A field trained in 20 times over is read exactly, and of all fields it is among the surest."""
    pages = with_canary(make_pages(60, seed=11), copies=20)
    monkeypatch.setattr(kept, "load_pages", lambda *_, **__: pages)
    monkeypatch.setattr(kept, "split_game", lambda *_, **__: kept.GameSplit(
        tuple(range(45)), tuple(range(45, 70)), tuple(range(70, 79))))  # fmt: skip
    training = FitConfig(epochs=30, learning_rate=1e-3, validate_every=30)
    config = WeightsConfig(
        pages=79, fields=0, attempts=1, target_training=training, public_training=training, calibrate=False
    )
    game = game_of(replace(config, attempts=2))  # the game itself is made below, with fewer fields
    one_copy = [s for s in game.secrets if s.page == "canary-0"]
    asked = one_copy + [s for s in game.secrets if s.document != "canary"][::2]
    monkeypatch.setattr(games, "extract", lambda page, tokens: [s for s in asked if s.page == page.name])
    run = play(config, tmp_path / "a")
    ranked = read_table(run, rng=np.random.default_rng(0)).fields
    places = [place for place, field in enumerate(ranked) if field.value == CANARY]
    assert len(places) == 1 and len(ranked) >= 60
    assert ranked[places[0]].match.perfect == 1
    assert places[0] < 0.05 * len(ranked), f"place {places[0]} of {len(ranked)}"


@pytest.mark.slow
def test_a_model_that_never_saw_the_pages_gives_nothing(tmp_path: Path) -> None:
    """The control's IpF is 1 within its interval; the same game on the private pages, learnt by heart, is above 1."""
    training = FitConfig(epochs=20, learning_rate=2e-3, validate_every=20)
    config = WeightsConfig(
        pages=40,
        fields=40,
        attempts=1,
        control=True,
        target_training=training,
        public_training=replace(training, epochs=10, validate_every=10),
        calibrate=False,
    )
    factors = {}
    for control in (True, False):
        longer = training if control else replace(training, epochs=30, learning_rate=3e-3)
        variant = replace(config, control=control, target_training=longer)
        run = play(variant, tmp_path / str(control))
        factors[control] = read_table(run, rng=np.random.default_rng(0)).estimates["improvement_factor"]
    none, some = factors[True], factors[False]
    assert none.low is not None and none.high is not None and none.low <= 1 <= none.high, none
    assert some.low is not None and some.low > 1, some


def test_pages_of_a_folder_are_played(tmp_path: Path) -> None:
    save(load_pages("synthetic", count=9, seed=2), tmp_path / "mine")
    config = replace(SMALL, documents=str(tmp_path / "mine"), pages=0, fields=1)
    run = play(config, tmp_path / "a")
    assert len(fields_of(run)) == 1


def test_fields_that_others_attack_are_left_out_in_words_and_not_in_a_rehearsal() -> None:
    beyond = replace(SMALL, first=1000)
    with pytest.raises(DocumentError, match=r"pages have \d+ private fields of 3 to 15 tokens, and the first 1000 are"):
        game_of(beyond)
    assert len(game_of(WeightsStudy(beyond).least().config).secrets) == 1


def test_a_private_target_is_rehearsed_by_a_round() -> None:
    private = replace(SMALL, private=PrivateFit(rounds=30))
    least = WeightsStudy(private).least().config
    assert least.private == PrivateFit(rounds=1)
    study = WeightsStudy(private)
    study.asked = {"shows": "attack"}
    assert study.work()["private rounds of the target"] == 30


def test_a_metric_of_ones_own_ranks_and_its_run_is_read_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the how-to promised it, only names were taken. Reading a run imports nothing that the run names."""
    (tmp_path / "own_metric.py").write_text("def last_token(attempt):\n    return attempt.target[-1]\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = play(replace(SMALL, metric="own_metric:last_token", calibrate=True), tmp_path / "run")
    described = run.config["objects"]["last_token"]
    assert described["object"] == "own_metric:last_token" and len(described["code"]) == 10
    monkeypatch.delitem(sys.modules, "own_metric")
    (tmp_path / "own_metric.py").unlink()
    ranked = {field.name: field.score for field in read_table(Run.load(run.path), rng=np.random.default_rng(0)).fields}
    assert ranked == {unit["unit"]: max(a["target"][-1] for a in unit["attempts"]) for unit in fields_of(run)}
    assert report_on([run.path])[0].is_file()
    for metric, said in ((lambda attempt: None, "gave None; expected a finite number"), (5, "expected something to")):
        with pytest.raises(AttackError, match=said):
            play(replace(SMALL, metric=metric), tmp_path / "other")  # type: ignore[arg-type]


def test_without_a_metric_of_ones_own_nothing_more_is_stored(played: Path) -> None:
    assert not any("plausibility" in attempt for unit in fields_of(Run.load(played)) for attempt in unit["attempts"])


def test_a_target_that_an_attack_wrote_into_is_loaded_again(played: Path) -> None:
    """In a notebook the mended attack was measured on what the refused one had left."""

    def training(view: WeightsView, knowledge: PublicKnowledge) -> None:
        view.target.module.train()

    @dataclass(frozen=True)
    class Own(Returning):
        def baseline(self) -> Own:
            return self

    own = replace(SMALL)
    object.__setattr__(own, "attack", Own(training))
    game = ready(SMALL, played / MODELS)
    with pytest.raises(AttackError, match="attack 'mine' leaves the target with other weights"):
        games.attack_field(replace(game, config=own), 0)
    assert not ready(SMALL, played / MODELS).target.module.training


def test_an_error_of_a_metric_of_ones_own_says_whose_it_is() -> None:
    def failing(attempt: Attempt) -> float:
        torch.set_grad_enabled(False)
        raise KeyError("x")

    try:
        with pytest.raises(KeyError) as fault:
            plausibility(Attempt((1,), (0.5,), (0.5,)), METRICS.chosen(failing))
        assert torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
    (note,) = fault.value.__notes__
    assert note.startswith("the membership metric ") and "failing raised this" in note
