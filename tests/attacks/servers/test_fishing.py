"""Fishing: the least sure page of a batch is made to outweigh it, where a model has learned; and the guard on it."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from docleak.attacks.servers.fishing import ATTACK, Fishing, heads
from docleak.attacks.servers.view import PublicPages, Sent
from docleak.errors import AttackError
from docleak.models import DocumentModel, load_model
from docleak.studies.gradient.case import pages_for
from docleak.studies.servers.study import summed, tensors
from docleak.training.guard.guard import Guard, inspect
from docleak.training.update import client_gradient


@lru_cache
def model(name: str) -> DocumentModel:
    return load_model(name)


def sent(name: str, gain: float) -> Sent:
    nobody = PublicPages(torch.zeros(0, 3, 1, 1), [])
    return Fishing(gain=gain).manipulate(model(name), nobody, generator=torch.Generator())


def weights(one: DocumentModel) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in one.module.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("name", ["layoutlmv3-trained", "donut-trained", "vt5-trained", "llava-trained"])
def test_nothing_but_what_stands_before_the_scores_is_changed(name: str) -> None:
    before, after = weights(model(name)), weights(sent(name, 4.0).model)
    changed = [key for key in before if not torch.equal(before[key], after[key])]
    assert 1 <= len(changed) <= 2 and all(torch.equal(after[key], 4 * before[key]) for key in changed)
    assert all(key.endswith(("norm.weight", "norm.bias", "out_proj.weight", "out_proj.bias")) for key in changed)


def right(found: Sent, update: dict[str, torch.Tensor], inputs: list) -> list[int]:  # type: ignore[type-arg]
    """Of each page, how many tokens were read at their place."""
    loot = {(token.place, token.id) for token in Fishing().read(found, update).tokens}
    return [len(loot & set(enumerate(one.tensors["input_ids"].tolist()))) for one in inputs]


def test_a_page_that_drowns_in_its_batch_is_fished_out_of_a_sum_over_clients() -> None:
    pages = pages_for(model("layoutlmv3-trained"), "synthetic", count=4, seed=14)
    pixels, inputs = tensors(model("layoutlmv3-trained"), pages)
    whole = [len(one.tensors["input_ids"]) for one in inputs]
    read = {}
    for gain in (1.0, 4.0):
        message = sent("layoutlmv3-trained", gain)
        clients = [slice(0, 2), slice(2, 4)]
        update = summed([client_gradient(message.model, pixels[of], inputs[of]) for of in clients], 0.0)
        read[gain] = max(count / of for count, of in zip(right(message, update, inputs), whole, strict=True))
    assert read[1.0] < 1.0 == read[4.0], "without fishing it is read in part, with it whole"


def test_the_guard_sees_one_leap_and_not_many_small_steps() -> None:
    before, loud = (weights(sent("layoutlmv3-trained", gain).model) for gain in (1.0, 4.0))
    assert not inspect(loud).refused, "in a first round nothing tells it from training"
    assert inspect(loud, before).refused
    guard = Guard()
    for step in range(4):
        assert not guard.check(weights(sent("layoutlmv3-trained", 1.85**step).model)).refused


def test_what_has_no_table_of_places_gives_no_tokens() -> None:
    message = sent("layoutlmv3-trained", 4.0)
    head = {"qa_outputs.out_proj.weight": torch.ones(2, message.model.module.config.hidden_size)}
    assert ATTACK.read(message, head).tokens == ()


def test_a_model_without_such_a_layer_is_refused() -> None:
    class Bare:
        name, architecture, module = "bare", "bare", torch.nn.Linear(2, 2)

    assert not list(heads(Bare()))  # type: ignore[arg-type]
    with pytest.raises(AttackError, match="no output layer"):
        ATTACK.manipulate(Bare(), PublicPages(torch.zeros(0), []), generator=torch.Generator())  # type: ignore[arg-type]
    with pytest.raises(AttackError, match="more than 0"):
        Fishing(gain=0.0)
