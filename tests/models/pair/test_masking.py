"""Masked words: what a small text classifier for pairs is trained on before anything attacks it."""

from pathlib import Path

import torch

from docleak.documents.pairs import make_scenes
from docleak.models.pair.shapes import build_pair, text_classifier
from scripts.masking import MaskingConfig, guessed, train_masked


def test_a_classifier_learns_to_guess_and_is_read_as_a_text_model(tmp_path: Path) -> None:
    classifier, tokenizer = text_classifier("bert-tiny", torch.Generator().manual_seed(0))
    before = {name: value.clone() for name, value in classifier.state_dict().items()}
    texts = [pair.text for pair in make_scenes(200, seed=3)]
    unseen = [pair.text for pair in make_scenes(50, seed=4)]
    losses: list[float] = []
    masked = train_masked(
        classifier, texts, tokenizer, MaskingConfig(steps=60, batch_size=32), seed=0,
        on_step=lambda step, loss: losses.append(loss),
    )  # fmt: skip
    assert len(losses) == 60 and losses[-1] < losses[0] / 2
    assert guessed(masked, unseen, tokenizer, MaskingConfig(), seed=1) > 0.2  # one of 1,466 words by chance
    after = classifier.state_dict()
    assert torch.equal(after["bert.pooler.dense.weight"], before["bert.pooler.dense.weight"])
    assert not torch.equal(after["bert.encoder.layer.1.output.dense.weight"],
                           before["bert.encoder.layer.1.output.dense.weight"])  # fmt: skip

    classifier.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    pair = build_pair("lenet5", str(tmp_path), classes=("tower", "scatter"), image_size=(64, 16), seed=0)
    assert torch.equal(pair.table, after["bert.embeddings.word_embeddings.weight"])
    assert not any(p.requires_grad for n, p in pair.module.text.named_parameters() if n.endswith("embeddings.weight"))
