"""The recipe of the tiny encoders, in miniature."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models.encoders import load_encoder
from docleak.training import checkpoints
from docleak.training.lineage import lineage_of


@pytest.mark.parametrize("architecture", ["layoutlm", "bros", "bert", "layoutlmv3-words"])
def test_the_recipe_runs_and_is_repeatable(architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "ENCODER_PAGES", 20)
    monkeypatch.setattr(checkpoints, "ENCODER_VALIDATION", 5)
    cards = [checkpoints.make_encoder(architecture, tmp_path / n, steps=2, seed=1, quiet=True) for n in ("a", "b")]
    folder = tmp_path / "a" / f"{architecture}-tiny"
    assert json.loads((folder / "docleak.json").read_text()) == cards[0]
    assert str(cards[0]["recipe"]).startswith("2 epochs over 20 synthetic invoices")
    one, other = (load_file(tmp_path / n / f"{architecture}-tiny" / "model.safetensors") for n in ("a", "b"))
    assert one.keys() == other.keys() and all((one[key] == other[key]).all() for key in one)
    model = load_encoder(str(folder), task="mlm")
    assert model.drawn == "" and model.task == "mlm" and len(model.encode(make_pages(1, seed=0)[0])) > 20


def test_unknown_architectures_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="layoutlm, bros, bert, layoutlmv3-words"):
        checkpoints.make_encoder("gpt", tmp_path, steps=1, seed=0)


def test_a_layoutlmv3_that_guesses_words_is_what_transformers_fine_tunes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents are trained on beside the invoices, every tenth is kept; transformers takes the backbone as it is, and
    docleak the head as well."""
    from transformers import LayoutLMv3ForTokenClassification

    monkeypatch.setattr(checkpoints, "ENCODER_PAGES", 20)
    monkeypatch.setattr(checkpoints, "ENCODER_VALIDATION", 5)
    save(make_pages(11, seed=9), tmp_path / "pages")
    make = checkpoints.make_encoder
    card = make("layoutlmv3-words", tmp_path, steps=2, seed=1, quiet=True, documents=str(tmp_path / "pages"))
    assert "20 synthetic invoices (split train) and 9 pages of documents" in str(card["recipe"])
    assert 0 <= float(str(card["masked_accuracy_of_documents"])) <= 1
    folder = tmp_path / "layoutlmv3-words-tiny"
    assert lineage_of(str(folder)).origin == "unknown"
    ours = load_encoder(str(folder), task="mlm")
    assert ours.drawn == "" and ours.bimodal and ours.task == "mlm"
    theirs, report = LayoutLMv3ForTokenClassification.from_pretrained(str(folder), output_loading_info=True)
    assert not [name for name in report["missing_keys"] if not name.startswith("classifier.")]
    page = ours.encode(make_pages(1, seed=0)[0])
    batch = ours.collate([page])
    boxes = batch.boxes.masked_fill((batch.ids == ours.tokenizer.sep_token_id)[..., None], 0)
    pixels = batch.images.float() / 127.5 - 1 if batch.images is not None else None
    with torch.no_grad():
        told = theirs.eval().layoutlmv3(batch.ids, boxes, batch.mask.long(), pixel_values=pixels).last_hidden_state
        torch.testing.assert_close(told[:, : batch.ids.shape[1]], ours.hidden(batch))
