"""Active servers: bins give single inputs, on every architecture, alone and in a sum over clients."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from docleak.attacks.registries import SERVERS
from docleak.attacks.servers.bins import edges, singles
from docleak.attacks.servers.imprint import inputs_of_bins, pictures_in
from docleak.attacks.servers.tokens import DECEPTICONS
from docleak.attacks.servers.view import ActiveServer, PublicPages
from docleak.errors import AttackError
from docleak.models import DocumentModel, Encoded, load_model
from docleak.models.tiny import donut_start
from docleak.studies.gradient.case import pages_for
from docleak.studies.servers.study import of_pictures, of_tokens, tensors
from docleak.training.update import client_gradient

MODELS = ("donut-start", "vt5-start", "layoutlmv3-start")


@cache
def model_of(name: str) -> DocumentModel:
    return donut_start(seed=0, size=(96, 128)) if name == "donut-start" else load_model(name)


@cache
def pages_of(name: str, count: int, seed: int) -> tuple[Tensor, list[Encoded]]:
    model = model_of(name)
    return tensors(model, pages_for(model, "synthetic", count=count, seed=seed))


def public(name: str, expected: int = 1) -> PublicPages:
    return PublicPages(*pages_of(name, 6, 100), expected=expected)


def drawn(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_neighbouring_bins_differ_by_the_inputs_between_them() -> None:
    """The layer by hand, its gradient by autograd: every input comes back, and none that is not there."""
    x = torch.rand(5, 12, generator=drawn(), dtype=torch.float64)
    direction = torch.randn(12, generator=drawn(2), dtype=torch.float64)
    cut = edges(torch.linspace(-6, 6, 200), 128)
    weight = direction.expand(128, -1).clone().requires_grad_()
    bias = (-cut).clone().requires_grad_()
    factors = torch.rand(5, 1, generator=drawn(3), dtype=torch.float64) + 0.5
    (factors * torch.relu(x @ weight.T + bias)).sum().backward()
    assert weight.grad is not None and bias.grad is not None
    inputs = inputs_of_bins(weight.grad, bias.grad)
    measured = (x @ direction)[:, None] > cut
    apart = [i for i in range(5) if sum(bool((measured[i] == other).all()) for other in measured) == 1]
    assert len(apart) >= 4
    for i in apart:
        assert (inputs - x[i]).abs().amax(1).min() < 1e-9
    with pytest.raises(AttackError, match=r"expected \(k, 12\)"):
        pictures_in(weight.grad[:, :11], bias.grad, (3, 2, 2))


def test_differences_add_up_again() -> None:
    rows = torch.randn(7, 3, generator=drawn())
    assert torch.allclose(singles(rows).flip(0).cumsum(0).flip(0), rows, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_an_imprint_keeps_every_page_of_two_clients_whole(name: str) -> None:
    server, model = SERVERS.load("imprint"), model_of(name)
    sent = server.manipulate(model, public(name, 2), generator=drawn())
    pixels, inputs = pages_of(name, 2, 5)
    one, two = (client_gradient(sent.model, pixels[i : i + 1], inputs[i : i + 1]) for i in (0, 1))
    loot = server.read(sent, {key: one[key] + two[key] for key in one})
    assert of_pictures(loot, pixels)["pages_read"] == 2
    assert not any("imprint" in key for key, _ in model.module.named_parameters())  # a copy was manipulated
    assert torch.isfinite(sent.model.loss(pixels, inputs)).all()


@pytest.mark.parametrize("name", MODELS)
def test_decepticons_read_most_tokens_and_invent_none(name: str) -> None:
    server, model = SERVERS.load("decepticons"), model_of(name)
    before = {key: value.clone() for key, value in model.module.state_dict().items()}
    sent = server.manipulate(model, public(name), generator=drawn())
    pixels, inputs = pages_of(name, 1, 5)
    gradient = client_gradient(sent.model, pixels, inputs)
    counts = of_tokens(server.read(sent, gradient), inputs)
    assert counts["tokens_read"] >= 0.75 * counts["tokens"] and counts["tokens_wrong"] == 0
    assert counts["placed"] == (name != "vt5-start")
    halved = {key: -0.01 * value for key, value in gradient.items()}  # an SGD step, whatever its rate
    assert of_tokens(server.read(sent, halved), inputs) == counts
    assert all(torch.equal(before[key], value) for key, value in model.module.state_dict().items())


def test_an_honest_gradient_gives_a_server_of_bins_next_to_nothing() -> None:
    """The control: the same reading of a model that nobody manipulated."""
    from docleak.attacks.servers.view import Sent

    model = model_of("donut-start")
    pixels, inputs = pages_of("donut-start", 1, 5)
    counts = of_tokens(DECEPTICONS.read(Sent(model), client_gradient(model, pixels, inputs)), inputs)
    assert counts["tokens_read"] <= 2


@pytest.mark.parametrize("name", SERVERS.names())
def test_every_server_says_who_it_is_and_what_it_has_no_hold_on(name: str) -> None:
    server = SERVERS.load(name)
    assert isinstance(server, ActiveServer) and server.paper and server.summary and server.changes
    if name == "adapter-bins":
        assert "no LoRA" in server.obstacle(model_of("donut-start"))
        with pytest.raises(AttackError, match="no LoRA"):
            server.manipulate(model_of("donut-start"), public("donut-start"), generator=drawn())
    else:
        assert server.obstacle(model_of("donut-start")) == ""


def test_impossible_settings_are_refused() -> None:
    for changes in ({"share": 0.0}, {"share": 2.0}, {"left": 1.0}):
        with pytest.raises(AttackError, match="expected a share"):
            replace(DECEPTICONS, **changes)
    with pytest.raises(AttackError, match="expected 2 or more"):
        SERVERS.load("imprint:bins=1").manipulate(model_of("donut-start"), public("donut-start"), generator=drawn())
