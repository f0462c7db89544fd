"""The initialisation at the start of federated training, and the builders of the tiny models."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from docleak.models import DocumentModel, load_model
from docleak.models.start import spread
from docleak.models.tiny import byte_pair_tokenizer, character_tokenizer, donut_start, layoutlmv3_start

TEXTS = ["Total 42.00 EUR", "Invoice number 2039", "What is the total?"] * 3


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(400, 300)
        self.conv = nn.Conv2d(3, 64, 8)
        self.embed_tokens = nn.Embedding(500, 64)
        self.relative_position_bias_table = nn.Parameter(torch.zeros(300, 8))
        self.pos_embed = nn.Parameter(torch.zeros(1, 50, 64))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 600))
        self.norm = nn.LayerNorm(16)
        self.encoder = nn.ModuleDict({"rel_pos_bias": nn.Linear(64, 64, bias=False)})


@pytest.mark.parametrize(
    ("name", "deviation"),
    [
        ("linear.weight", 0.7 / math.sqrt(400)),
        ("conv.weight", 0.7 / math.sqrt(3 * 64)),
        ("embed_tokens.weight", 1 / math.sqrt(64)),
        ("relative_position_bias_table", 1.0),
        ("pos_embed", 0.5),
        ("cls_token", 0.5),
        ("encoder.rel_pos_bias.weight", math.sqrt(32)),
    ],
)
def test_spread_draws_each_kind_at_its_size(name: str, deviation: float) -> None:
    toy = Toy()
    spread(toy, generator=torch.Generator().manual_seed(0))
    values = dict(toy.named_parameters())[name]
    values = values.detach()
    assert float(values.std()) == pytest.approx(deviation, rel=0.1)
    assert abs(float(values.mean())) < 0.2 * deviation


def test_spread_leaves_nothing_to_the_global_generator() -> None:
    toys = []
    for _ in range(2):
        toys.append(Toy())  # its constructor draws differently each time
        spread(toys[-1], generator=torch.Generator().manual_seed(3))
    one, two = (dict(toy.named_parameters()) for toy in toys)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not one["linear.bias"].any() and not one["conv.bias"].any()
    assert (one["norm.weight"] == 1).all()
    spread(toys[1], generator=torch.Generator().manual_seed(4))
    assert not torch.equal(one["linear.weight"], two["linear.weight"])


@pytest.mark.parametrize("name", ["donut-start", "layoutlmv3-start"])
def test_position_matters_at_the_start(name: str) -> None:
    """Position tables are filled, biases zero, and the same ink elsewhere gives another loss."""
    model = load_model(name)
    parameters = dict(model.module.named_parameters())
    kinds = ("pos_embed", "relative_position", "embed_positions", ".rel_pos")
    tables = [n for n in parameters if any(kind in n for kind in kinds)]
    assert tables
    assert all(float(parameters[n].detach().std()) > 0.05 for n in tables)
    assert not any(bool(p.detach().any()) for n, p in parameters.items() if n.endswith(".bias"))


def models(seed: int) -> list[DocumentModel]:
    return [donut_start(seed=seed, size=(64, 64)), layoutlmv3_start(seed=seed, texts=TEXTS)]


def test_the_builders_depend_on_their_seed_only() -> None:
    for one, two, other in zip(models(0), models(0), models(1), strict=True):
        a, b, c = (dict(m.module.named_parameters()) for m in (one, two, other))
        assert all(torch.equal(a[name], b[name]) for name in a)
        assert any(not torch.equal(a[name], c[name]) for name in a)
        assert not one.module.training


@pytest.mark.parametrize("text", ["Total: 42.00 €", "<s_question>Wäre es?</s_question>", "  two  spaces "])
def test_the_character_tokenizer_loses_nothing(text: str) -> None:
    tokenizer = character_tokenizer()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text
    tags = text.count("<s_question>") + text.count("</s_question>")
    plain = text.replace("<s_question>", "").replace("</s_question>", "")
    assert len(ids) == len(plain.encode()) + tags


def test_the_byte_pair_tokenizer_is_the_same_each_time_and_knows_its_texts() -> None:
    one, two = (byte_pair_tokenizer(TEXTS, vocabulary=300) for _ in range(2))
    assert one.get_vocab() == two.get_vocab()
    assert len(one) <= 300
    ids = one("What", ["2039"], boxes=[[0, 0, 1, 1]])["input_ids"]
    assert one.decode(ids, skip_special_tokens=True).split() == ["What", "2039"]
    assert len(set(ids) - set(one.all_special_ids)) == 2, "both words are common enough for a token of their own"
