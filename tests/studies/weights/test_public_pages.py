"""Public pages named beside a target that is trained here: they are the adversary's, and none is a private one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from docleak.attacks.weights import CdmiConfig
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.errors import DocumentError
from docleak.studies.weights.config import WeightsConfig
from docleak.studies.weights.game import game_of, shadow_of

PRIVATE, PUBLIC = make_pages(9, seed=1), make_pages(12, seed=2, split="train")


@pytest.fixture
def config(tmp_path: Path) -> WeightsConfig:
    """The private pages of one folder, the public ones of another."""
    save(PRIVATE, tmp_path / "own")
    save(PUBLIC, tmp_path / "other")
    return WeightsConfig(
        str(tmp_path / "own"), 0, public_documents=str(tmp_path / "other"), fields=3, attack=CdmiConfig(candidates=4)
    )


def test_copies_are_counted_among_the_pages_that_are_public(config: WeightsConfig) -> None:
    game = game_of(config)
    assert {*game.texts["private"]} <= {page.name for page in PRIVATE}
    assert game.texts["public"] and {*game.texts["public"]} <= {page.name for page in PUBLIC}
    assert game.split["public"] == len(game.texts["public"])


def test_the_adversary_learns_how_sure_it_is_on_its_own_pages(config: WeightsConfig) -> None:
    """It has none of the data set that the private pages are of."""
    alone, why = shadow_of(config)
    assert alone is not None and not why
    played, public = game_of(alone), {*game_of(config).texts["public"]}
    trained_on = {*played.texts["private"], *played.texts["public"]}
    assert trained_on == public and {secret.page for secret in played.secrets} <= public


def test_public_pages_that_are_private_ones_are_refused(config: WeightsConfig, tmp_path: Path) -> None:
    """A baseline trained on the fields would know what the target knows, and nothing would seem to leak."""
    save([*PUBLIC[:3], *PRIVATE], tmp_path / "overlapping")
    with pytest.raises(DocumentError, match="private and public pages overlap"):
        game_of(replace(config, public_documents=str(tmp_path / "overlapping")))
    renamed = [
        replace(page, name=f"again-{n}", document=f"again-{n}") for n, page in enumerate([*PRIVATE[3:], *PRIVATE[:3]])
    ]
    save(renamed, tmp_path / "renamed")
    with pytest.raises(DocumentError, match="private and public pages overlap"):
        game_of(replace(config, public_documents=str(tmp_path / "renamed")))
    assert game_of(replace(config, public_documents=config.documents)).secrets, "the same division: parts lie apart"
