"""Tiny vision-language models, one of each family for all tests of them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from docleak.models import load_model
from docleak.models.vlm.model import VisionLanguage
from docleak.models.vlm.tiny import make_tiny


@lru_cache(maxsize=32)
def model_of(family: str, folder: Path) -> VisionLanguage:
    make_tiny(family, folder / family, seed=0)
    model = load_model(str(folder / family))
    assert isinstance(model, VisionLanguage)
    return model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")
