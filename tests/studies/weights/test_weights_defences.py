"""Defences as settings of a row: what they train on, what they claim, and that the public model is none of theirs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, PrivacyError, RunError
from docleak.files import read_stored, write_json
from docleak.models.encoders.loading import load_encoder, named_weights
from docleak.privacy.lineage import BOUND, NO_GUARANTEE, claim_of
from docleak.recipes import Recipe, Row, find_recipe
from docleak.recipes.rows import reproduce, rows_of, write_table
from docleak.runs.artefact import CARD, card_of
from docleak.studies.weights.config import WeightsConfig
from docleak.studies.weights.rows import asked_of, game_asked
from docleak.studies.weights.study import STORE, WeightsStudy
from docleak.training.extraction.kept import BEST, divided, fitted, with_copies, without_duplicates
from docleak.training.lineage import lineage_of

SMALL = {
    "pages": 12, "fields": 3, "attempts": 2, "candidates": 6, "epochs_mlm": 2, "public_epochs": 2, "keep_every": 0,
    "learning_rate": 1e-3, "validate_every": 2, "dropout": 0.0, "criterion": "last",
}  # fmt: skip
CHANGES: tuple[dict[str, object], ...] = (
    {}, {"answers_only": True}, {"copies": 2}, {"copies": 2, "deduplicate": True}, {"epsilon": 8.0, "rounds": 3},
)  # fmt: skip


def row(**change: object) -> WeightsConfig:
    return game_asked(asked_of("layoutlm-tiny", {**SMALL, **change}, {"sroie": "synthetic"}))


def test_planted_scans_are_found_and_nothing_else_is() -> None:
    pages = list(make_pages(8, seed=1))
    more = with_copies(pages, 2, np.random.default_rng(0))
    assert len(more) == 8 + 4 * 2 and len({page.document for page in more}) == len({p.document for p in pages}) + 8
    slips = sum(a.text != b.text for a, b in zip(more[8].words, pages[0].words, strict=True))
    assert slips > 0, "a second scan is no exact copy"
    assert [page.name for page in without_duplicates(more)] == [page.name for page in pages]


def test_deduplicated_training_is_the_one_without_copies(tmp_path: Path) -> None:
    def weights(**changes: object) -> dict[str, torch.Tensor]:
        folder = fitted(row(**changes).target_fitting(), tmp_path)
        return dict(named_weights(load_encoder(str(folder / "last"))))

    alone, copied, mended = weights(), weights(copies=2), weights(copies=2, deduplicate=True)
    assert all(torch.equal(value, mended[name]) for name, value in alone.items())
    assert any(not torch.equal(value, copied[name]) for name, value in alone.items())
    card = card_of(fitted(row(copies=2, deduplicate=True).target_fitting(), tmp_path))
    private = len(divided(row().data()).part("private"))
    assert card["pages"]["train"] == private
    assert card["duplicates"] == 2 * len(range(0, private, 2))


def test_no_defence_touches_the_public_model() -> None:
    changed = [row(**change) for change in CHANGES]
    assert len({c.public_fitting() for c in changed}) == 1
    assert [c.target_fitting() == row().target_fitting() for c in changed] == [True, True, False, False, False]
    assert len({c.target_fitting().name for c in changed}) == 4


def test_wrong_privacy_settings_are_refused_with_the_row() -> None:
    with pytest.raises(PrivacyError, match="unit is 'record'"):
        row(epsilon=8.0, unit="record")
    for beside in ({"copies": 2}, {"deduplicate": True}):
        with pytest.raises(AttackError, match="depends on other pages"):
            row(epsilon=8.0, **beside)


def test_a_private_model_says_what_it_comes_from_and_what_was_taken_as_given(tmp_path: Path) -> None:
    folder = fitted(row(epsilon=8.0, rounds=3).target_fitting(), tmp_path)
    claim = claim_of(lineage_of(str(folder / "last")))
    assert claim.kind == BOUND and claim.epsilon is not None and 7.9 < claim.epsilon <= 8
    card = card_of(folder)
    assert card["claim"].startswith(claim.sentence)
    assert "taken as public" in card["claim"] and "holds against nobody who knows it" in card["claim"]
    for criterion in BEST:
        assert lineage_of(str(folder / criterion)) == lineage_of(str(folder / "last"))
    open_ = fitted(row().target_fitting(), tmp_path)
    assert claim_of(lineage_of(str(open_ / "last"))).kind == NO_GUARANTEE
    again = fitted(replace(row(epsilon=8.0, rounds=3), model=str(open_ / "last")).target_fitting(), tmp_path)
    assert card_of(again)["claim"].startswith("no guarantee: its start was trained without privacy")


def test_a_model_of_another_version_is_not_taken_over(tmp_path: Path) -> None:
    folder = fitted(row().target_fitting(), tmp_path)
    write_json(folder / CARD, {**read_stored(folder / CARD), "docleak": "0.0.1"})
    with pytest.raises(RunError, match=r"begun by docleak 0\.0\.1"):
        fitted(row().target_fitting(), tmp_path)


def test_the_table_prints_the_claim_and_what_was_taken_out(tmp_path: Path) -> None:
    names = ("none", "hidden", "copies", "deduplicated", "private")
    rows = tuple(Row(name, ("layoutlm",), change) for name, change in zip(names, CHANGES, strict=True))
    scales = {"tiny": {"models": {"layoutlm": "layoutlm-tiny"}}}
    recipe = Recipe("d", "A test", "nobody", "none", rows, {**SMALL, "shows": "defences"}, scales, kind="weights")
    out = tmp_path / "d"
    planned = rows_of(recipe, WeightsStudy, "tiny", out, {})
    reproduce(recipe, planned, out, scale="tiny", workers=1)
    facts = WeightsStudy.row_facts(planned)
    claim = facts["Claim, private"]
    assert claim.startswith("epsilon ") and "per document" in claim and "PLD accountant of dp-accounting" in claim
    assert facts["Near-duplicates, deduplicated"].startswith("6 pages taken out, 5 trained on")
    write_table(recipe, "tiny", planned, out, {})
    text = (out / "table.md").read_text()
    assert "Claim, private" in text and text.count("| -") == 0, "every row has its numbers"
    runs = len(list((tmp_path / STORE).glob("attack-*")))
    assert runs == 5, "hidden confidences are another game on the same target"


def test_the_shipped_recipe_measures_all_of_them(tmp_path: Path) -> None:
    planned = [r.study.config for r in rows_of(find_recipe("cdmi/defences"), WeightsStudy, "tiny", tmp_path, {})]
    assert {c.criterion for c in planned} == {"last", "precision", "loss"}
    assert any(c.answers_only for c in planned) and any(c.private and c.private.epsilon == 8 for c in planned)
    assert sum(c.deduplicate for c in planned) == 1 and sum(c.copies > 0 for c in planned) == 2
