"""The training of tiny vision-language models: packed questions are those that the model is asked one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from docleak.documents.phrasings import PHRASINGS
from docleak.documents.synthetic import make_page, make_pages
from docleak.models import load_model, model_card, pixels_of
from docleak.models.donut import Donut
from docleak.training.checkpoints import measure
from docleak.training.reading import answer_cells
from scripts.readers.__main__ import Trainer, asked
from scripts.readers.german import LABELS, QUESTIONS, german_page
from scripts.readers.packing import Packer, attend
from scripts.readers.start import FAMILIES, STRIDE, reader_start


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_packed_questions_have_the_losses_of_lone_ones(family: str) -> None:
    donut = load_model("donut-start")
    assert isinstance(donut, Donut)
    model = reader_start(family, donut, seed=0)
    page = model.fit(make_page(0, seed=0))
    questions, pixels = page.questions[:2], pixels_of(page.image)[None]
    packer, kept = Packer(model), dict[str, Tensor]()
    packed = packer.pack([page], [questions])
    with torch.no_grad():
        lone = model.loss(pixels, [model.encode(page, question) for question in questions], [0, 0])
        text = model.module.model.language_model
        ALL_ATTENTION_FUNCTIONS["packed"] = attend(text, len(packer.picture), kept)
        text.config._attn_implementation = "packed"
        _, out = packer.run(pixels, packed)
        logits = model.module.lm_head(out.last_hidden_state)
    says = packed.labels[0, 1:] >= 0
    losses = F.cross_entropy(logits[0, :-1][says], packed.labels[0, 1:][says], reduction="none")
    ends = (packed.labels[0, 1:][says] == model.tokenizer.eos_token_id).nonzero()[:, 0] + 1
    both = [part.mean() for part in losses.split(torch.diff(ends, prepend=torch.zeros(1).long()).tolist())]
    torch.testing.assert_close(torch.stack(both), lone, rtol=1e-4, atol=1e-4)

    grey = model.picture(pixels)["pixel_values"].mean(1, keepdim=True)
    of_tower, of_page = (
        F.avg_pool2d(x, STRIDE).flatten() for x in (grey, model.normalise(pixels).mean(1, keepdim=True))
    )
    torch.testing.assert_close(of_tower[packer.order], of_page, rtol=1e-4, atol=1e-5)
    path = [cell for question in questions for cell in answer_cells(page, question, packer.grid)]
    assert packed.pointing[:, 2].tolist() == [int(packer.places[cell]) for cell in path]
    assert (packed.ids[0, packed.pointing[:, 2]] == model.module.config.image_token_id).all()


def test_german_invoices_ask_and_say_everything_in_german() -> None:
    pages = [german_page(number, seed=0, split="train") for number in range(6)]
    assert pages[0].name != german_page(0, seed=0, split="validation").name
    for page in pages:
        text = " ".join(word.text for word in page.words)
        for question in page.questions:
            key = question.key or ""
            assert question.text in QUESTIONS[key] and question.text not in PHRASINGS[key]
            assert question.answers[0] in text and any(label in text for label in LABELS[key])
    assert (pages[0].image != german_page(0, seed=0, split="validation").image).any()


def test_adapters_alone_are_trained_saved_and_measured_before_and_after(tmp_path: Path) -> None:
    more = ["--after", "llava-trained", "--lora", "r=2,targets=q_proj+v_proj", "--invoices", "german"]
    given = asked(["llava", str(tmp_path), *more, "--pages", "1", "--unseen", "1", "--frozen", "0", "--steps", "2"])
    trainer, base = Trainer("llava", given), load_model("llava-trained").module.state_dict()
    for step in range(2):
        trainer.train_step(np.random.default_rng(step))
    trainer.save()
    assert Trainer("llava", given).step == 2
    card = trainer.finish("adapted")
    adapted = load_model(str(tmp_path / "adapted")).module
    moved = {name for name, value in adapted.named_parameters() if "lora_B" in name and bool(value.any())}
    assert len(moved) == 6  # of three layers
    kept = {name.replace(".base_layer", ""): value for name, value in adapted.state_dict().items()}
    assert all(torch.equal(kept[name], value) for name, value in base.items())
    assert card["base"] == "llava-trained" and {"anls", "anls before"} <= card.keys()
    files = {file.name for file in (tmp_path / "adapted").iterdir()}
    assert "adapter_model.safetensors" in files and "model.safetensors" not in files


@pytest.mark.parametrize(("name", "least"), [("llava-trained", 0.9), ("aya-trained", 0.9)])
def test_the_shipped_readers_answer_what_they_never_saw(name: str, least: float) -> None:
    assert model_card(name)["anls"] > least and model_card(name)["anls_questions"] >= 500
    unseen = make_pages(5, seed=77, split="validation")  # neither those of its training, nor those of its card
    scores = measure(load_model(name), unseen)
    assert scores["anls_questions"] >= 20 and scores["anls"] > 0.75
