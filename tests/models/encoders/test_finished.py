"""Trained extraction models by path: the same scores as transformers' own classes give, and clear refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from docleak.documents.synthetic import make_pages
from docleak.errors import ModelError
from docleak.models.encoders import load_encoder
from docleak.models.encoders.finished import load_finished
from docleak.models.encoders.loading import save_encoder
from docleak.models.encoders.tasks import classes_of
from docleak.models.encoders.tiny import shipped_tokenizer, tiny_encoder

#: As a framework might have sorted them: not in the order of docleak's tags.
LABELS = ["I-TOTAL", "B-DATE", "O", "B-TOTAL", "I-DATE"]


def saved(folder: Path, kind: str, family: str, labels: list[str] | None = None) -> transformers.PreTrainedModel:
    """A model of ``transformers`` with random weights, in a tiny encoder's size, as save_pretrained writes it."""
    shape = tiny_encoder(kind, shipped_tokenizer(), seed=0).config.backbone
    names = labels or LABELS
    values = {key: value for key, value in shape.items() if key not in ("model_type", "id2label", "label2id")}
    base = {"layoutlm": "LayoutLM", "bros": "Bros", "bert": "Bert"}[kind]
    config = getattr(transformers, f"{base}Config")(**values, id2label=dict(enumerate(names)))
    torch.manual_seed(1)
    model = getattr(transformers, f"{base}{family}")(config).eval()
    model.save_pretrained(folder)
    shipped_tokenizer().save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", ["layoutlm", "bros", "bert"])
def test_token_classification_is_ee_bio_with_rows_in_our_order(tmp_path: Path, kind: str) -> None:
    theirs = saved(tmp_path, kind, "ForTokenClassification")
    model = load_finished(str(tmp_path))
    assert model.task == "ee-bio" and model.config.classes == ("DATE", "TOTAL") and model.drawn == ""
    page = load_encoder("bert-tiny").encode(make_pages(1, seed=0)[0])
    batch = model.collate([page])
    boxes = {} if kind == "bert" else {"bbox": batch.boxes.float() / 1000 if kind == "bros" else batch.boxes}
    with torch.no_grad():
        expected = theirs(input_ids=batch.ids, attention_mask=batch.mask.long(), **boxes).logits
        scores = model.module.head.scores(model.hidden(batch), batch)["tag"]
    order = [LABELS.index(name) for name in ("O", "B-DATE", "I-DATE", "B-TOTAL", "I-TOTAL")]
    assert torch.allclose(scores, expected[..., order], atol=1e-4)


def test_masked_language_models_keep_their_head(tmp_path: Path) -> None:
    theirs = saved(tmp_path, "layoutlm", "ForMaskedLM")
    model = load_finished(str(tmp_path))
    assert model.task == "mlm"
    batch = model.collate([load_encoder("bert-tiny").encode(make_pages(1, seed=0)[0])])
    with torch.no_grad():
        expected = theirs(input_ids=batch.ids, bbox=batch.boxes, attention_mask=batch.mask.long()).logits
        scores = model.token_scores(model.hidden(batch)[0])
    assert torch.allclose(scores, expected[0], atol=1e-4)


def test_docleaks_own_are_loaded_as_they_are(tmp_path: Path) -> None:
    model = load_encoder("layoutlm-tiny").for_task("ee-spade", classes_of(make_pages(3, seed=0)), seed=1)
    save_encoder(model, tmp_path / "m")
    again = load_finished(str(tmp_path / "m"))
    assert again.task == "ee-spade"
    assert all(torch.equal(a, b) for a, b in zip(model.module.parameters(), again.module.parameters(), strict=True))


def test_what_is_no_finished_model_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "bare", "layoutlm", "Model")
    with pytest.raises(ModelError, match=r"has no head that docleak can attack.*classifier .*token classification"):
        load_finished(str(tmp_path / "bare"))
    saved(tmp_path / "spade", "bros", "SpadeEEForTokenClassification")
    with pytest.raises(ModelError, match="initial_token_classifier"):
        load_finished(str(tmp_path / "spade"))
    saved(tmp_path / "io", "bert", "ForTokenClassification", labels=["O", "TOTAL"])
    with pytest.raises(ModelError, match="expected O and, for each kind of entity, B-KIND and I-KIND"):
        load_finished(str(tmp_path / "io"))
    saved(tmp_path / "other", "bert", "ForTokenClassification")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    with pytest.raises(ModelError, match="architecture 'gpt2'"):
        load_finished(str(tmp_path / "other"))
    with pytest.raises(ModelError, match="no encoder"):
        load_finished(str(tmp_path / "nowhere"))


def test_a_strangers_tokenizer_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, "bert", "ForTokenClassification")
    words = shipped_tokenizer()
    words.add_tokens([f"stranger{i}" for i in range(9)])
    words.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="tokenizer belongs to another model"):
        load_finished(str(tmp_path))
