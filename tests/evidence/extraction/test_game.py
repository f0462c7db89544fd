"""The game end to end: trained, attacked, resumed, recomputed from disk; a planted leak is found, no leak is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from docleak.attacks.weights import CdmiConfig, StrongConfig
from docleak.documents import Field, Page, Word, load_pages
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, DocumentError, RunError
from docleak.evidence.extraction import game as games
from docleak.evidence.extraction.game import GameConfig, set_up
from docleak.evidence.extraction.play import MODELS, open_game, play, view_of
from docleak.evidence.extraction.table import as_text, read_table
from docleak.metrics.extraction import match
from docleak.runs.run import Run
from docleak.training.extraction.fit import FitConfig

QUICK = FitConfig(epochs=2, batch_size=8, learning_rate=1e-3)
SMALL = GameConfig(
    pages=12, fields=4, attempts=2, attack=CdmiConfig(candidates=6, top_p=0.5), target_training=QUICK,
    public_training=QUICK,
)  # fmt: skip


def records(run: Run) -> list[dict[str, object]]:
    return [{k: v for k, v in unit.items() if k != "seconds"} for unit in run.units()]


@pytest.mark.parametrize("task", ["mlm", "ee-bio", "ee-spade", "qa", "classify"])
def test_a_game_is_played_and_resumed(tmp_path: Path, task: str) -> None:
    config = replace(SMALL, task=task, bimodal=task == "ee-bio")  # type: ignore[arg-type]
    run = open_game(config, tmp_path / "a")
    play(run, config)
    whole = records(run)
    assert len(whole) == 4
    trained = {file: file.stat().st_mtime_ns for file in (run.path / MODELS).rglob("*.safetensors")}
    assert len(trained) == 4  # target by two criteria and of the last epoch, public model
    lost = run.units()[1]["unit"]
    (run.folder(str(lost)) / "unit.json").unlink()
    told: list[tuple[int, int, str]] = []
    play(open_game(config, tmp_path / "a"), config, on_field=lambda *each: told.append(each))
    assert told == [(4, 4, lost)], "only the missing field was attacked again"
    assert records(run) == whole
    assert {file: file.stat().st_mtime_ns for file in trained} == trained, "nothing was trained again"
    table = read_table(run, rng=np.random.default_rng(0))
    assert table.estimates["improvement_factor"].n == 4
    assert "IpF" in as_text(table) and all(field.value in as_text(table) for field in table.fields)


def test_the_last_epoch_is_what_training_left(tmp_path: Path) -> None:
    """Of several epochs, each validated: the card's last one, and other weights than an earlier best's."""
    training = replace(QUICK, epochs=12, learning_rate=3e-2)
    config = replace(SMALL, target_training=training, criterion="last")
    game = set_up(config, tmp_path)
    best = set_up(replace(config, criterion="loss"), tmp_path)
    card = game.card["target"]
    assert isinstance(card, dict) and card["epochs"][-1]["number"] == 12
    assert card["best"]["loss"]["number"] < 12, "else this shows nothing"
    ours, theirs = (list(g.target.module.parameters()) for g in (game, best))
    assert any(not a.equal(b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("task", ["mlm", "ee-bio"])
def test_the_stronger_variant_is_played_and_read_from_disk(tmp_path: Path, task: str) -> None:
    config = replace(SMALL, task=task, attack=StrongConfig(candidates=8, beam=2))  # type: ignore[arg-type]
    run = open_game(config, tmp_path / "a")
    play(run, config)
    assert read_table(run, rng=np.random.default_rng(0)).estimates["improvement_factor"].n == 4
    with pytest.raises(RunError, match="attack"):
        open_game(SMALL if task == "mlm" else replace(SMALL, task="ee-bio"), tmp_path / "a")


def test_workers_give_the_same_numbers(tmp_path: Path) -> None:
    alone, together = (open_game(SMALL, tmp_path / name) for name in ("a", "b"))
    play(alone, SMALL)
    play(together, SMALL, workers=2)
    for one, other in zip(records(alone), records(together), strict=True):
        assert one["attempts"] == other["attempts"] and one["baseline"] == other["baseline"]


def test_numbers_are_recomputed_from_disk(tmp_path: Path) -> None:
    run = open_game(SMALL, tmp_path / "a")
    play(run, SMALL)
    table = read_table(Run.load(tmp_path / "a"), rng=np.random.default_rng(0))
    units = run.units()
    perfect = [match(u["tokens"], u["attempts"][0]["tokens"]).hamming for u in units]
    assert table.estimates["hamming"].value == pytest.approx(np.mean(perfect))
    file = run.folder(units[0]["unit"]) / "unit.json"
    saved = json.loads(file.read_text())
    saved["attempts"][0]["tokens"] = saved["tokens"]
    file.write_text(json.dumps(saved))
    better = read_table(run, rng=np.random.default_rng(0))
    assert (better.estimates["perfect"].value or 0) == 0.25 > (table.estimates["perfect"].value or 0)


def test_other_settings_do_not_join_a_run(tmp_path: Path) -> None:
    play(open_game(SMALL, tmp_path / "a"), SMALL)
    with pytest.raises(RunError, match="weight"):
        open_game(replace(SMALL, attack=replace(SMALL.attack, weight=0.1)), tmp_path / "a")
    with pytest.raises(RunError, match="no finished field"):
        read_table(Run.open(tmp_path / "empty", {}), rng=np.random.default_rng(0))


def test_the_view_holds_no_truth(tmp_path: Path) -> None:
    config = replace(SMALL, repeats=True)
    game = set_up(config, tmp_path)
    for secret in game.secrets:
        view = view_of(game, secret)
        shown = view.page.ids.tolist()
        mask = game.target.tokenizer.mask_token_id
        assert all(shown[i] == mask for i in (*secret.positions, *secret.repeats))
        assert not hasattr(view, "tokens") and secret.value not in repr(view.page)


def test_private_and_public_pages_are_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    real = games.fit

    def spy(model, train, held_out, *rest, **more):  # type: ignore[no-untyped-def]
        seen.extend([[p.document for p in train], [p.document for p in held_out]])
        return real(model, train, held_out, *rest, **more)

    monkeypatch.setattr(games, "fit", spy)
    game = set_up(SMALL, tmp_path / "a")
    target, validation, public, again = map(set, seen)
    assert validation == again and not (target & public or target & validation or public & validation)
    assert {secret.document for secret in game.secrets} <= target
    seen.clear()
    control = set_up(replace(SMALL, control=True), tmp_path / "a")
    assert set(seen[0]) == public, "the control's target never sees the private pages"
    assert control.secrets == game.secrets


def test_what_cannot_be_played_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="links between entities"):
        set_up(replace(SMALL, task="el"), tmp_path)
    bare = [replace(page, fields=(), questions=(), template=None, provider="") for page in make_pages(6, seed=0)]
    save(bare, tmp_path / "bare")
    with pytest.raises(DocumentError, match="none of the"):
        set_up(replace(SMALL, documents=str(tmp_path / "bare"), pages=0), tmp_path / "m")
    for task, what in (("qa", "answer is printed"), ("classify", "template or an issuer")):
        with pytest.raises(DocumentError, match=f"0 of 6 pages have words and a.*{what}"):
            set_up(replace(SMALL, task=task, documents=str(tmp_path / "bare"), pages=0), tmp_path / "m")  # type: ignore[arg-type]
    with pytest.raises(AttackError, match="criterion is 'recall'"):
        replace(SMALL, criterion="recall")  # type: ignore[arg-type]


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
    every, fewer = (set_up(replace(config, task=task), tmp_path / "m") for task in ("mlm", "classify"))  # type: ignore[arg-type]
    gone = {s.name: s for s in every.secrets if s.name not in {s.name for s in fewer.secrets}}
    assert gone and {s.value for s in gone.values()} == {"KONTOR-9417"}
    assert fewer.left_out["that name the page's class"] == len(gone)


@pytest.mark.parametrize("task", ["el", "mlm"])
def test_forms_are_played(tmp_path: Path, shared_data: Path, task: str) -> None:
    config = replace(SMALL, task=task, documents=f"funsd:{shared_data / 'funsd'}", pages=8, fields=2)  # type: ignore[arg-type]
    run = open_game(config, tmp_path / "a")
    play(run, config)
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
    monkeypatch.setattr(games, "_pages", lambda config: pages)
    monkeypatch.setattr(games, "split_game", lambda *_, **__: games.GameSplit(
        tuple(range(45)), tuple(range(45, 70)), tuple(range(70, 79))))  # fmt: skip
    training = FitConfig(epochs=60, learning_rate=1e-3, validate_every=60)
    config = GameConfig(fields=0, attempts=1, target_training=training, public_training=training)
    game = set_up(config, tmp_path / "m")
    one_copy = [s for s in game.secrets if s.document != "canary" or s.page == "canary-0"]
    monkeypatch.setattr(games, "extract", lambda page, tokens: [s for s in one_copy if s.page == page.name])
    run = open_game(config, tmp_path / "a")
    play(run, config)
    ranked = read_table(run, rng=np.random.default_rng(0)).fields
    places = [place for place, field in enumerate(ranked) if field.value == CANARY]
    assert len(places) == 1 and len(ranked) >= 60
    assert ranked[places[0]].match.perfect == 1
    assert places[0] < 0.05 * len(ranked), f"place {places[0]} of {len(ranked)}"


@pytest.mark.slow
def test_a_model_that_never_saw_the_pages_gives_nothing(tmp_path: Path) -> None:
    """The control's IpF is 1 within its interval; the same game on the private pages is above 1."""
    training = FitConfig(epochs=60, learning_rate=1e-3, validate_every=10)
    config = GameConfig(
        pages=60, fields=50, attempts=1, control=True, target_training=training, public_training=training
    )
    found = {}
    for control in (True, False):
        own = replace(config, control=control, target_training=replace(training, epochs=60 if control else 200))
        run = open_game(own, tmp_path / str(control))
        play(run, own)
        found[control] = read_table(run, rng=np.random.default_rng(0)).estimates["improvement_factor"]
    none, some = found[True], found[False]
    assert none.low is not None and none.high is not None and none.low <= 1 <= none.high, none
    assert some.low is not None and some.low > 1, some


def test_pages_of_a_folder_are_played(tmp_path: Path) -> None:
    save(load_pages("synthetic", count=9, seed=2), tmp_path / "mine")
    config = replace(SMALL, documents=str(tmp_path / "mine"), pages=0, fields=1)
    run = open_game(config, tmp_path / "a")
    play(run, config)
    assert len(run.units()) == 1
