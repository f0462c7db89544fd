"""What an adversary is given is checked first, and every fault is told at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients import GradientView, Knowledge
from docleak.attacks.gradients.view import check_gradient, require_all
from docleak.errors import GradientError
from docleak.models import Encoded
from docleak.models.base import trainable


def copy_of(small: Any) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in small.view.gradient.items()}


def test_the_clients_gradient_is_accepted_whole_or_in_part(small: Any) -> None:
    gradient = copy_of(small)
    assert GradientView(small.model, gradient).names == tuple(gradient)
    check_gradient(small.model, {name: gradient[name] for name in list(gradient)[:3]})
    require_all(small.model, gradient)


def test_all_faults_are_told_at_once(small: Any) -> None:
    gradient = copy_of(small)
    shape, nan, infinite, *_ = gradient
    gradient["no.such.weight"] = torch.ones(2)
    gradient[shape] = gradient[shape][:1]
    gradient[nan].view(-1)[:2] = float("nan")
    gradient[infinite].view(-1)[0] = float("inf")
    with pytest.raises(GradientError) as caught:
        GradientView(small.model, gradient)
    said = str(caught.value)
    assert "no.such.weight: the model has no such trainable parameter" in said
    assert f"{shape}: shape {tuple(gradient[shape].shape)}, expected {tuple(small.view.gradient[shape].shape)}" in said
    assert f"{nan}: 2 of {gradient[nan].numel()} values are NaN or infinite" in said
    assert f"{infinite}: 1 of {gradient[infinite].numel()} values are NaN or infinite" in said
    assert repr(small.model.name) in said
    assert said.count("\n  - ") == 4


def test_many_faults_are_counted(small: Any) -> None:
    gradient = {name: value[None] for name, value in copy_of(small).items()}
    with pytest.raises(GradientError, match=rf"\.\.\. and {len(gradient) - 15} more"):
        check_gradient(small.model, gradient)


@pytest.mark.parametrize("count", [15, 16])
def test_fifteen_faults_are_all_told(count: int, small: Any) -> None:
    gradient = {f"none.{number}": torch.ones(1) for number in range(count)}
    with pytest.raises(GradientError) as caught:
        check_gradient(small.model, gradient)
    assert str(caught.value).count("no such trainable parameter") == 15
    assert ("more" in str(caught.value)) == ("... and 1 more" in str(caught.value)) == (count == 16)


def test_a_gradient_is_as_sent_what_its_client_makes_of_it(small: Any) -> None:
    dummy = {name: 2 * value for name, value in small.view.gradient.items()}
    assert small.view.as_sent(dummy) is dummy

    def added(own: Mapping[str, Tensor], seen: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {name: own[name] + seen[name] for name in own}

    sent = replace(small.view, imitate=added).as_sent(dummy)
    for name, value in small.view.gradient.items():
        torch.testing.assert_close(sent[name], 3 * value)


def test_nothing_but_zeros(small: Any) -> None:
    with pytest.raises(GradientError, match="all values are zero"):
        check_gradient(small.model, {name: torch.zeros_like(v) for name, v in small.view.gradient.items()})


@pytest.mark.parametrize("factor", [1e-20, 1e-43])
def test_a_gradient_whose_square_float32_cannot_hold(factor: float, small: Any) -> None:
    norm = sum(float(value.square().sum()) for value in small.view.gradient.values()) ** 0.5
    with pytest.raises(GradientError, match="as good as certain"):
        check_gradient(small.model, {n: v * factor / norm for n, v in small.view.gradient.items()})
    check_gradient(small.model, {n: v * 1e-15 / norm for n, v in small.view.gradient.items()})


def test_an_empty_gradient(small: Any) -> None:
    with pytest.raises(GradientError, match="it is empty"):
        check_gradient(small.model, {})


def test_missing_parameters_must_be_left_out_on_purpose(small: Any) -> None:
    gradient = copy_of(small)
    first, second, *_ = sorted(gradient)
    del gradient[first], gradient[second]
    with pytest.raises(GradientError, match="lacks 2 of the model's parameters") as caught:
        require_all(small.model, gradient)
    assert first in str(caught.value) and second in str(caught.value)
    with pytest.raises(GradientError, match="lacks 1"):
        require_all(small.model, gradient, {first})
    require_all(small.model, gradient, {first, second})


def test_frozen_parameters_have_no_gradient(small: Any) -> None:
    name = small.view.names[0]
    parameter = dict(small.model.module.named_parameters())[name]
    parameter.requires_grad_(False)
    try:
        with pytest.raises(GradientError, match=f"{name}: the model has no such trainable parameter"):
            check_gradient(small.model, small.view.gradient)
    finally:
        parameter.requires_grad_(True)


def test_knowledge_that_does_not_fit(small: Any) -> None:
    known = small.knowledge
    for private in (known.private[:, :-1], known.private[:, :, :-1], known.private.repeat(2, 1, 1)):
        with pytest.raises(GradientError, match=r"expected \(B, 3, H, W\) and \(B, H, W\)"):
            Knowledge(known.template, private, known.inputs)


def test_a_page_without_private_pixels_has_nothing_to_attack(small: Any) -> None:
    known = small.knowledge
    with pytest.raises(GradientError, match="no pixel is marked private"):
        Knowledge(known.template, torch.zeros_like(known.private), known.inputs)


def test_the_sentences_say_what_is_known(small: Any) -> None:
    known = small.knowledge
    assert "the client's question and its answer" in known.sentences()
    assert not any("OCR" in s for s in known.sentences())
    blind = Knowledge(known.template, known.private, known.inputs, question_known=False, answer_known=False)
    text = " ".join(blind.sentences())
    assert "no question (as many random tokens instead) and no answer (as many random tokens instead)" in text
    words = [Encoded({}, words_seen=(0, 1))]
    (said,) = (s for s in Knowledge(known.template, known.private, words).sentences() if "taken as known" in s)
    assert "paper" not in said, "of words and boxes it says nothing"
    hidden = Knowledge(known.template, known.private, words, words_known=False)
    assert any("no OCR words" in s for s in hidden.sentences())


def test_a_model_whose_own_weights_are_not_finite_is_named_as_the_fault(small: Any) -> None:
    name, weight = next(iter(trainable(small.model.module)))
    broken = {key: torch.full_like(value, float("nan")) for key, value in copy_of(small).items()}
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.view(-1)[0] = float("nan")
    try:
        with pytest.raises(GradientError, match=f"the model itself has weights .* in 1 tensor, first {name}") as raised:
            check_gradient(small.model, broken)
    finally:
        with torch.no_grad():
            weight.copy_(kept)
    assert "mixed precision" not in str(raised.value)
