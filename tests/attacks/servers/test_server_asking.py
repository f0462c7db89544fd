"""A server of somebody's own is asked like an attack: what it sends and reads is checked, and it is named."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from docleak.attacks.servers.asking import looted, manipulated, obstacle_to
from docleak.attacks.servers.view import Loot, PublicPages, Sent, Token
from docleak.errors import AttackError
from docleak.models import DocumentModel
from tests.small import small_donut

WIDTH = HEIGHT = 64


@dataclass(frozen=True)
class Server:
    """Does what a test tells it."""

    send: Callable[[DocumentModel, PublicPages], Any] = lambda model, public: Sent(deepcopy(model))
    loot: Callable[[Sent], Any] = lambda sent: Loot()
    hindered: Callable[[DocumentModel], Any] = lambda model: ""
    name: str = "mine"
    paper: str = "none"
    summary: str = "a test's"
    changes: str = "weights"
    forgotten: list[int] = field(default_factory=list)

    def obstacle(self, model: DocumentModel) -> Any:
        return self.hindered(model)

    def manipulate(self, model: DocumentModel, public: PublicPages, *, generator: torch.Generator) -> Any:
        return self.send(model, public)

    def read(self, sent: Sent, update: Any) -> Any:
        return self.loot(sent)

    def asked(self, model: DocumentModel, public: PublicPages | None = None) -> Loot:
        """All that a study asks of it."""
        forget: Any = {"forget": lambda: self.forgotten.append(1)}
        obstacle_to(self, model, **forget)
        public = public or PublicPages(torch.ones(1, 3, HEIGHT, WIDTH), ())
        return looted(self, manipulated(self, model, public, generator=torch.Generator(), **forget), {})


def frozen(model: DocumentModel, public: PublicPages) -> Sent:
    copy = deepcopy(model)
    copy.module.requires_grad_(False)
    return Sent(copy)


@torch.no_grad()
def doubled(model: DocumentModel) -> None:
    next(model.module.parameters()).mul_(2).add_(1)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (Server(hindered=lambda model: None), "the obstacle of server 'mine' is None; expected a text"),
        (Server(hindered=lambda model: True), "the obstacle of server 'mine' is True"),
        (Server(send=lambda model, public: None), "server 'mine' returned None; expected a .*Sent: model"),
        (Server(send=lambda model, public: model), "server 'mine' returned an object of the type Donut"),
        (Server(send=lambda model, public: Sent(None)), "model is None, no model like"),  # type: ignore[arg-type]
        (Server(send=frozen), "no weight of model is to be trained"),
        (Server(loot=lambda sent: None), "server 'mine' returned None; expected a .*Loot: pictures"),
        (Server(loot=lambda sent: Loot([1])), "pictures: pixels is an object of the type list"),  # type: ignore[arg-type]
        (Server(loot=lambda sent: Loot(torch.zeros(2, 5))), r"has the shape \(2, 5\); expected .*\(2, 3, 64, 64\)"),
        (Server(loot=lambda sent: Loot(torch.full((1, 3, 64, 64), torch.nan))), "12288 of 12288 pixels are NaN"),
        (Server(loot=lambda sent: Loot(torch.full((1, 3, 64, 64), 255.0))), r"not in \[0, 1\]"),
        (Server(loot=lambda sent: Loot(tokens=(3,))), "tokens has 3, no Token"),  # type: ignore[arg-type]
        (Server(loot=lambda sent: Loot(tokens=(Token("a", 0, 1.0),))), "no Token with whole"),  # type: ignore[arg-type]
        (Server(loot=lambda sent: doubled(sent.model)), "server 'mine' leaves the model that it sent with other"),
    ],
)
def test_what_a_server_cannot_send_or_read_is_refused_by_its_name(server: Server, said: str) -> None:
    with pytest.raises(AttackError, match=said):
        server.asked(small_donut())


@pytest.mark.parametrize("where", ["hindered", "send"])
def test_a_server_that_writes_into_the_honest_model_is_refused_and_the_model_forgotten(where: str) -> None:
    """The next server was measured on what this one had left."""

    def writing(model: DocumentModel, public: object = None) -> Any:
        doubled(model)
        return "" if where == "hindered" else Sent(model)

    server = Server(**{where: writing})  # type: ignore[arg-type]
    with pytest.raises(AttackError, match="server 'mine' leaves the honest model with other weights"):
        server.asked(small_donut())
    assert server.forgotten


def test_errors_exits_and_settings_of_a_server_are_its_own() -> None:
    """A KeyError was nobody's; with gradients off the client failed, and the next server ran in double precision."""

    def failing(sent: Sent) -> Loot:
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        raise KeyError("x")

    try:
        with pytest.raises(KeyError) as fault:
            Server(loot=failing).asked(small_donut())
        assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32
    finally:
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
    assert ["server 'mine' raised this" in note for note in fault.value.__notes__] == [True]

    def leaving(sent: Sent) -> Loot:
        raise SystemExit(0)

    with pytest.raises(AttackError, match=r"server 'mine' called sys\.exit\(0\); expected an error"):
        Server(loot=leaving).asked(small_donut())


def test_public_pages_are_a_server_s_own_copy() -> None:
    def blanking(model: DocumentModel, public: PublicPages) -> Sent:
        public.pixels.zero_()
        return Sent(deepcopy(model))

    public = PublicPages(torch.ones(1, 3, HEIGHT, WIDTH), ())
    Server(send=blanking).asked(small_donut(), public)
    assert public.pixels.all()
