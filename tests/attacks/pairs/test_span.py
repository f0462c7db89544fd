"""Texts out of spans: whole ones of batches, what is refused, and that nothing is read where nothing was sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from docleak.attacks.pairs import PairView
from docleak.attacks.pairs.mmgia import SPAN_ALONE
from docleak.attacks.pairs.sentence import Sentences
from docleak.attacks.pairs.single import LAMP, SPAN
from docleak.attacks.pairs.span import texts_of, words_at
from docleak.attacks.pairs.text import TextFinding
from docleak.attacks.pairs.view import inputs_of
from docleak.models.pair.shapes import pair_tokenizer

#: Longest first, as a client orders its batch; two of one length and class.
TEXTS = (
    "one of the grey box has exactly one item that is black.",
    "there is a box with items of only one color.",
    "there are three towers with yellow blocks.",
    "there is at least one blue block.",
)


def read(client: Any, view: PairView | None = None, *, attack: Any = SPAN, budget: int = 40) -> TextFinding:
    view = view or client.view
    sentences = Sentences.of(client.model, client.knowledge.lengths, client.knowledge.words)
    inputs = inputs_of([int(label) for label in client.labels], sentences.mask)
    finding: TextFinding = attack.run(
        view.side("text"), inputs, sentences, budget=budget, generator=torch.Generator().manual_seed(0),
        language=client.knowledge.language,
    )  # fmt: skip
    return finding


def truth(client: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row[there].tolist()[1:-1]) for row, there in zip(client.ids, client.mask, strict=True))


@pytest.mark.parametrize("count", [1, 2, 4])
def test_texts_come_out_whole_by_few_gradients(victim: Callable[..., Any], count: int) -> None:
    client = victim(TEXTS[:count], (0, 1, 2, 3)[:count])
    lengths = [len(row) for row in truth(client)]
    assert lengths == sorted(lengths, reverse=True)
    finding = read(client)
    assert finding.tokens == truth(client)
    assert finding.matching < 1e-4, "the gradient says that these are the texts"
    assert finding.evaluations <= 3, "and which of one length has which class"


def test_which_text_has_which_class_is_told_whatever_their_lengths(victim: Callable[..., Any]) -> None:
    """Classes come out of the head ascending, texts by their lengths."""
    client = victim(TEXTS, (3, 0, 2, 1))
    known = replace(client, labels=client.labels.sort().values)
    whole = SPAN_ALONE.run(client.view, client.knowledge, budget=40, generator=torch.Generator().manual_seed(0))
    for finding, labels in ((read(known), read(known).labels), (whole, whole.labels[1])):
        assert dict(zip(finding.tokens, labels, strict=True)) == dict(zip(truth(client), (3, 0, 2, 1), strict=True))


def test_several_texts_are_put_together_by_what_reads_them_whole(victim: Callable[..., Any]) -> None:
    """Of the words of each place alone it could not be told: of some places there are more than texts."""
    client = victim(TEXTS, (0, 1, 2, 3))
    view = client.view.side("text")
    sentences = Sentences.of(client.model, client.knowledge.lengths)
    choices = words_at(view, sentences)
    assert choices is not None
    true = {(text, place + 1): word for text, row in enumerate(truth(client)) for place, word in enumerate(row)}
    assert all(true[cell] in ids for cell, ids in choices.items()) and choices.keys() == true.keys()
    assert max(map(len, choices.values())) > len(TEXTS)
    words, undecided = texts_of(view, sentences, choices, torch.Generator().manual_seed(1))
    rows = [[words[cell] for cell in words if cell[0] == text] for text in range(len(TEXTS))]
    assert sorted(rows) == sorted(map(list, truth(client))) and not undecided


def test_another_gradient_has_other_words(victim: Callable[..., Any]) -> None:
    client, other = victim(TEXTS[3:], (1,)), victim(("a black tower is in the box.",), (1,))
    finding = read(client, other.view)
    assert finding.tokens == truth(other)


@pytest.mark.parametrize("deviation", [1e-6, 1e-3])
def test_noise_that_is_known_leaves_the_text(victim: Callable[..., Any], deviation: float) -> None:
    client = victim(TEXTS[1:2], (1,))
    generator = torch.Generator().manual_seed(5)
    noisy = {
        name: value + deviation * torch.randn(value.shape, generator=generator)
        for name, value in client.view.gradient.items()
    }
    finding = read(client, replace(client.view, gradient=noisy, noise=deviation))
    assert finding.tokens == truth(client)


def test_where_no_layer_tells_anything_it_is_lamp(victim: Callable[..., Any]) -> None:
    """Under noise that drowns all, and of a client that does not train its first layers."""
    client = victim(TEXTS[3:], (1,))
    drowned = replace(client.view, noise=10.0)
    assert words_at(drowned.side("text"), Sentences.of(client.model, client.knowledge.lengths)) is None
    lamp, span = (read(client, drowned, attack=attack) for attack in (LAMP, SPAN))
    assert span.tokens == lamp.tokens and span.evaluations == lamp.evaluations > 1
    frozen = {name: value for name, value in client.view.gradient.items() if ".layer.0." not in name}
    lamp, span = (read(client, replace(client.view, gradient=frozen), attack=attack) for attack in (LAMP, SPAN))
    assert span.tokens == lamp.tokens


def test_a_network_without_places_has_its_words_put_in_order(victim: Callable[..., Any], tmp_path: Path) -> None:
    """What the first layer reads of a word is the same everywhere: the set is the same at every place."""
    tokenizer = pair_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        model.bert.embeddings.position_embeddings.weight.zero_()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    client = victim(("a blue box.",), (1,), text=str(tmp_path))
    choices = words_at(client.view.side("text"), Sentences.of(client.model, client.knowledge.lengths))
    assert choices is not None
    first, *others = (set(ids) for ids in choices.values())
    assert all(first == one for one in others) and first >= set(truth(client)[0])
    assert sorted(read(client).tokens[0]) == sorted(truth(client)[0])
