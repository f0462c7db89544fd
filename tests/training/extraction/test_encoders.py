"""The recipe of the tiny encoders, in miniature."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models.encoders import load_encoder
from docleak.training import checkpoints


@pytest.mark.parametrize("architecture", ["layoutlm", "bros", "bert"])
def test_the_recipe_runs_and_is_repeatable(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "ENCODER_PAGES", 20)
    monkeypatch.setattr(checkpoints, "ENCODER_VALIDATION", 5)
    cards = [checkpoints.make_encoder(architecture, tmp_path / n, steps=2, seed=1, quiet=True) for n in ("a", "b")]
    folder = tmp_path / "a" / f"{architecture}-tiny"
    assert json.loads((folder / "docleak.json").read_text()) == cards[0]
    assert str(cards[0]["recipe"]).startswith("2 epochs over 20 synthetic invoices")
    one, other = (load_file(tmp_path / n / f"{architecture}-tiny" / "model.safetensors") for n in ("a", "b"))
    assert one.keys() == other.keys() and all((one[key] == other[key]).all() for key in one)
    model = load_encoder(str(folder))
    assert model.task == "mlm" and len(model.encode(make_pages(1, seed=0)[0])) > 20


def test_unknown_architectures_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="layoutlm, bros, bert"):
        checkpoints.make_encoder("gpt", tmp_path, steps=1, seed=0)
