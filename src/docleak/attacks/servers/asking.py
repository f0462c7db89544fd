"""Asking an active server, which may be somebody's own, and checking what it sends and says it read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from docleak.attacks.asking import OwnAttackError, blamed, checked, is_a, is_own, left_alone, odd_pixels, type_said
from docleak.attacks.servers.view import ActiveServer, Loot, PublicPages, Sent, Token
from docleak.models.base import DocumentModel

SENT = (
    "a docleak.attacks.servers.view.Sent: model, a manipulated copy (copy.deepcopy(model)) with a loss and weights to "
    "be trained"
)
LOOT = (
    "a docleak.attacks.servers.view.Loot: pictures, a tensor (n, 3, H, W) of finite numbers in [0, 1], of the model's "
    "size, where there are any; tokens, a tuple of Token with whole numbers as id and place"
)


def obstacle_to(server: ActiveServer, model: DocumentModel, *, forget: Callable[[], object]) -> str:
    """Why ``server`` has no hold on the model; "" where it has. OwnAttackError, which names it, for what is no text,
    and where it leaves another model."""
    with _left_alone(server, model, forget), blamed(_named(server), server):
        said: object = server.obstacle(model)
    if not isinstance(said, str):
        raise OwnAttackError(
            f"the obstacle of {_named(server)} is {type_said(said)}; expected a text, why it has no hold on the model, "
            'or "" where it has.'
        )
    return said


def manipulated(
    server: ActiveServer, model: DocumentModel, public: PublicPages, *, generator: torch.Generator,
    forget: Callable[[], object],
) -> Sent:  # fmt: skip
    """What ``server`` sends; one of one's own is given copies of the public pages. OwnAttackError, which names it, for
    what no client could train, and where it leaves another model (after ``forget``)."""
    given = deepcopy(public) if is_own(server) else public
    with _left_alone(server, model, forget), blamed(_named(server), server):
        sent = server.manipulate(model, given, generator=generator)
    return checked(server, sent, Sent, _of_sent(sent), SENT, "server")


def looted(server: ActiveServer, sent: Sent, update: Mapping[str, Tensor]) -> Loot:
    """What ``server`` reads. OwnAttackError, which names it, for what is no Loot or, of a server of one's own, none
    that can be, and where it leaves another model than it sent, which the guard has yet to look at."""
    with left_alone(_named(server), [("the model that it sent", sent.model.module)]), blamed(_named(server), server):
        loot = server.read(sent, update)
    return checked(server, loot, Loot, _of_loot(loot, sent.model.image_size), LOOT, "server")


def _named(server: ActiveServer) -> str:
    return f"server {server.name!r}"


def _left_alone(server: ActiveServer, model: DocumentModel, forget: Callable[[], object]) -> Any:
    return left_alone(_named(server), [("the honest model", model.module)], forget=forget)


def _of_sent(sent: Any) -> Iterator[str]:
    model: Any = sent.model
    if not isinstance(getattr(model, "module", None), nn.Module) or not callable(getattr(model, "loss", None)):
        yield f"model is {type_said(model)}, no model like the one that it was given"
    elif not any(weight.requires_grad for weight in model.module.parameters()):
        yield "no weight of model is to be trained, so that no client would send anything"


def _of_loot(loot: Any, size: tuple[int, int]) -> Iterator[str]:
    pictures: object = loot.pictures
    if not isinstance(pictures, Tensor) or len(pictures):
        shape = (len(pictures) if isinstance(pictures, Tensor) else 0, 3, *reversed(size))
        for fault in odd_pixels(pictures, shape, "that of pages as the model takes them"):
            yield f"pictures: {fault}"
    tokens: object = loot.tokens
    if not isinstance(tokens, tuple | list):
        yield f"tokens is {type_said(tokens)}, no tuple of Token"
    elif wrong := [token for token in tokens if not _is_token(token)]:
        told = wrong[0]
        yield f"tokens has {told if isinstance(told, Token) else type_said(told)}, no Token with whole numbers"


def _is_token(token: object) -> bool:
    if not isinstance(token, Token):
        return False
    return is_a(token.id, Integral) and is_a(token.place, Integral) and is_a(token.likeness, Real)
