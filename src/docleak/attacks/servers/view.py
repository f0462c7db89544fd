"""The contract of an active server: it manipulates the model that it sends, and reads the update that comes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from docleak.attacks.protocol import Described
from docleak.models.base import DocumentModel, Encoded


@dataclass(frozen=True)
class PublicPages:
    """What a server may look at to prepare: pages of nobody. ``pixels`` (P, 3, H, W) in [0, 1], a question about each
    in ``inputs``; ``expected`` is how many pages it thinks will be in what it receives."""

    pixels: Tensor
    inputs: Sequence[Encoded]
    expected: int = 1


@dataclass(frozen=True)
class Sent:
    """``model`` as it is sent, a copy that was manipulated, and what the server keeps to itself to read the answer."""

    model: DocumentModel
    secret: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Token:
    """A token that was read: its ``id``, its place in the text where the model has learned places (else -1), and the
    cosine of what came back with what this token gives."""

    id: int
    place: int
    likeness: float


@dataclass(frozen=True)
class Loot:
    """What was read: ``pictures`` (n, 3, H, W) in [0, 1], and tokens; either may be empty."""

    pictures: Tensor = field(default_factory=lambda: torch.zeros(0, 3, 1, 1))
    tokens: tuple[Token, ...] = ()

    @classmethod
    def of_tokens(cls, matches: Iterable[tuple[int, int, float]], sure: float) -> Loot:
        """Of (token, place, likeness) those that are ``sure`` or more alike, each once for each place."""
        best: dict[tuple[int, int], float] = {}
        for token, place, likeness in matches:
            if likeness >= sure:
                best[token, place] = max(likeness, best.get((token, place), 0.0))
        return cls(tokens=tuple(Token(token, place, like) for (token, place), like in sorted(best.items())))


@runtime_checkable
class ActiveServer(Described, Protocol):
    """A manipulation; a frozen dataclass whose fields are its hyper-parameters can be told them in text.

    ``changes`` says what of the protocol it breaks: "weights" alone, or the "architecture", which a federation that
    sends named tensors to a model of the client's own does not let it change.
    """

    @property
    def changes(self) -> str: ...

    def obstacle(self, model: DocumentModel) -> str:
        """Why it has no hold on a model; "" where it has."""

    def manipulate(self, model: DocumentModel, public: PublicPages, *, generator: torch.Generator) -> Sent:
        """The model to send, ``model`` itself unchanged. AttackError where there is an ``obstacle``."""

    def read(self, sent: Sent, update: Mapping[str, Tensor]) -> Loot:
        """What an update tells: a gradient by parameter name, of one client or a sum over clients, in any scale (the
        difference of one SGD step is one)."""
