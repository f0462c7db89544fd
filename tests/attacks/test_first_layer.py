"""Which layers read words alone, and what several optimisers leave of the words."""

from __future__ import annotations

import pytest
import torch

from docleak.attacks.gradients.algebra.first_layer import Sent, recover_words
from docleak.attacks.gradients.algebra.recover import SPAN, TABLE, recover_set
from docleak.attacks.gradients.local_steps import Optimiser
from docleak.attacks.gradients.view import GradientView
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models import DocumentModel, load_model, pixels_of
from docleak.training.update import client_gradient
from tests.wide import make_wide


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DocumentModel:
    folder = tmp_path_factory.mktemp("wide") / "qwen2_vl"
    make_wide("qwen2_vl", folder, text={"hidden_size": 96, "num_attention_heads": 8}, vision={"hidden_size": 96})
    return load_model(str(folder), image_size=(56, 84))


@pytest.fixture(scope="module")
def view(model: DocumentModel) -> tuple[GradientView, set[int]]:
    page = model.fit(make_pages(1, seed=2)[0])
    example = model.encode(page, page.questions[0])
    gradient = client_gradient(model, pixels_of(page.image)[None], [example])
    return GradientView(model, gradient), model.tokens_moved(example)  # type: ignore[attr-defined]


def test_whole_gradients_tell_the_words_by_either_route(view: tuple[GradientView, set[int]]) -> None:
    seen, true = view
    token_set = recover_set(seen)
    assert token_set.route == TABLE and token_set.exact and set(token_set.tokens) == true
    layers = {name: value for name, value in seen.gradient.items() if "layers.0.self_attn" in name}
    token_set = recover_set(GradientView(seen.model, layers))
    assert token_set.route == SPAN and token_set.exact and set(token_set.tokens) == true


def test_a_layer_that_mixes_words_tells_none(view: tuple[GradientView, set[int]]) -> None:
    seen, _ = view
    with pytest.raises(AttackError, match="no layer that reads words alone"):
        recover_set(GradientView(seen.model, {n: v for n, v in seen.gradient.items() if "layers.1." in n}))


def test_one_step_of_adamw_is_inverted(view: tuple[GradientView, set[int]]) -> None:
    """Where the gradient is not far above AdamW's epsilon; its signs alone would fill the layer."""
    seen, true = view
    name = next(n for n in seen.gradient if "layers.0.self_attn.q_proj.weight" in n)
    start = {name: seen.model.module.get_parameter(name).detach()}
    optimiser = Optimiser("adamw", 1e-3, 0.01)
    gradient = 1e-6 * seen.gradient[name].double() / seen.gradient[name].abs().max()
    step = gradient / (gradient.abs() + optimiser.epsilon)
    after = (start[name].double() * (1 - 1e-5) - 1e-3 * step).float()
    words = recover_words(seen.model, [Sent.of({name: start[name] - after}, start, optimiser, 1)])
    assert len(true & set(words.tokens)) > 0.5 * len(true) and set(words.tokens) <= true
    signs = recover_words(
        seen.model, [Sent.of({name: 1e-3 * gradient.sign().float()}, start, Optimiser("sgd", 1e-3), 1)]
    )
    assert len(true & set(signs.tokens)) < len(true & set(words.tokens))
    assert torch.isfinite(words.members.residuals).all()
