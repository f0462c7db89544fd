"""Matching the tensors next to the pixels of a deep Donut."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as t
from torch import Tensor

from docleak.attacks.gradients import ATTACKS, GradientView
from docleak.attacks.gradients.local_steps import ImitatedSteps, Optimiser
from docleak.attacks.gradients.shallow import constant_but, shallow
from docleak.errors import AttackError
from docleak.models import DocumentModel, trainable
from docleak.models.donut import Donut
from docleak.models.fast import quicken
from docleak.models.start import spread
from docleak.training.update import client_gradient


@pytest.fixture(scope="module")
def deep(small_model: DocumentModel) -> Donut:
    """The small Donut's decoder behind an encoder of four stages."""
    assert isinstance(small_model, Donut)
    config = t.DonutSwinConfig(
        image_size=[64, 64], patch_size=4, embed_dim=24, depths=[1, 1, 1, 1], num_heads=[2, 2, 2, 2], window_size=2,
        drop_path_rate=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    decoder = copy.deepcopy(small_model.module.decoder)
    module: Any = t.VisionEncoderDecoderModel(encoder=t.DonutSwinModel(config), decoder=decoder)
    module.config.decoder_start_token_id, module.config.pad_token_id = 0, 1
    spread(module, generator=torch.Generator().manual_seed(0))
    return Donut(quicken(module.eval()), small_model.tokenizer, image_size=(64, 64), name="deep")


def view_of(model: Donut, small: Any) -> GradientView:
    return GradientView(model, client_gradient(model, small.pixels, small.inputs))


def test_a_deep_donut_keeps_its_first_two_stages(deep: Donut, small: Any) -> None:
    view = view_of(deep, small)
    kept = shallow(view)
    assert set(kept.gradient) < set(view.gradient)
    assert {".".join(name.split(".")[:4]) for name in kept.gradient if ".layers." in name} == {
        "encoder.encoder.layers.0",
        "encoder.encoder.layers.1",
    }
    assert any(name.startswith("encoder.embeddings.patch_embeddings.") for name in kept.gradient)
    assert all(value is view.gradient[name] for name, value in kept.gradient.items())


def test_what_is_shallow_anyway_mixed_or_looked_at_whole_stays(deep: Donut, small: Any) -> None:
    assert shallow(small.view) is small.view
    view = view_of(deep, small)
    imitated = replace(view, imitate=lambda dummy, observed: dummy)
    assert shallow(imitated) is imitated
    decoder = replace(view, gradient={n: g for n, g in view.gradient.items() if n.startswith("decoder.")})
    assert shallow(decoder) is decoder


def test_other_parameters_are_constants_for_a_while(deep: Donut, small: Any) -> None:
    kept = shallow(view_of(deep, small))
    before = [name for name, _ in trainable(deep.module)]
    with constant_but([kept]):
        assert {name for name, _ in trainable(deep.module)} == set(kept.gradient)
    assert [name for name, _ in trainable(deep.module)] == before


def test_the_search_is_that_of_a_client_who_sent_no_more(deep: Donut, small: Any) -> None:
    view, attack = view_of(deep, small), ATTACKS.load("gi-dqa")
    run: Callable[..., Any] = lambda attack, view: attack.run(  # noqa: E731
        view, small.knowledge, budget=22, generator=torch.Generator().manual_seed(0)
    )
    finding, whole = run(attack, view), run(replace(attack, layers="all"), view)
    alone = run(replace(attack, layers="all"), shallow(view))
    assert torch.equal(finding.pixels, alone.pixels) and finding.history == alone.history
    assert finding.explained != alone.explained, "what is explained is told of all that was sent"
    assert not torch.equal(finding.pixels, whole.pixels)


def test_the_page_comes_out_of_the_first_stages(deep: Donut, small: Any, psnr: Callable[..., float]) -> None:
    view = view_of(deep, small)
    marks: list[float] = []

    def seen(number: int, loss: float, pixels: Tensor) -> None:
        marks.append(psnr(pixels, small.pixels, small.knowledge.private))

    ATTACKS.load("gi-dqa").run(
        view, small.knowledge, budget=60, generator=torch.Generator().manual_seed(0), on_evaluation=seen
    )
    assert marks[-1] > 15 > marks[0]


def test_computing_layers_anew_changes_no_step(deep: Donut, small: Any) -> None:
    view, attack = view_of(deep, small), ATTACKS.load("gi-dqa")
    kept, anew = (
        one.run(view, small.knowledge, budget=20, generator=torch.Generator().manual_seed(0))
        for one in (attack, ATTACKS.load("gi-dqa:recompute=yes"))
    )
    assert anew.matching == pytest.approx(kept.matching, rel=1e-3)
    torch.testing.assert_close(anew.pixels, kept.pixels, rtol=0, atol=1e-3)


def test_what_cannot_be_computed_anew_is_refused(make_small: Any, small: Any) -> None:
    with pytest.raises(AttackError, match="leave recompute out"):
        ATTACKS.load("gi-dqa:solver=lm,recompute=yes")
    stepped = replace(small.view, local=ImitatedSteps(Optimiser("sgd", 0.1), ((0,),), (0,)))
    with pytest.raises(AttackError, match="after local steps"):
        ATTACKS.load("gi-dqa:recompute=yes").run(stepped, small.knowledge, budget=20, generator=torch.Generator())
