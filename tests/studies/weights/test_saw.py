"""Whether a finished target saw the pages that are said to be its private ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.metrics.estimate import Estimate
from docleak.models.shipped import CHECKPOINTS
from docleak.report.severity import Severity
from docleak.studies.shipped import GAME
from docleak.studies.weights.config import WeightsConfig
from docleak.studies.weights.saw import not_shown, saw, shown
from docleak.studies.weights.verdict import advice
from docleak.training.extraction.kept import divided

TARGET = str(CHECKPOINTS / "layoutlm-released" / "target" / "last")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages that the shipped target was trained on, and two sets that it never saw."""
    out = tmp_path_factory.mktemp("pages")
    save(divided(GAME.data()).part("private"), out / "private")
    for name, seed in (("others", 71), ("public", 72)):
        save(make_pages(50, seed=seed, split="audit"), out / name)
    return out


@pytest.mark.parametrize(("pages", "known"), [("private", True), ("others", False)])
def test_a_target_is_less_surprised_by_its_own_pages(pages: str, known: bool, folders: Path) -> None:
    """The others' fields were "not read measurably better than from public data alone", an all-clear of nothing."""
    config = WeightsConfig(target=TARGET, documents=str(folders / pages), public_documents=str(folders / "public"))
    told = saw(config, "cpu")
    assert told["beyond"] and (Estimate.of_json(told["apart"]).low > 0) is known, told
    assert bool(shown(told)) is known and bool(not_shown(told)) is not known
    assert "after the loss of the model that public data begin with" in (shown(told) or not_shown(told))


def test_of_a_target_that_was_trained_here_nothing_has_to_be_shown() -> None:
    assert not_shown(None) == shown(None) == ""
    few: dict[str, Any] = {"apart": Estimate(None).to_json(), "beyond": False}
    assert "too few were asked about" in not_shown(few)
    assert "--target" in advice(Severity.UNTOLD, control=False, saw=few)[0]
    assert "more documents" in advice(Severity.UNTOLD, control=False)[0]
