"""LAMP's discrete step (Balunović et al., 2022): words change places, scored in one batch by gradient and language."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from docleak.attacks.gradients.matching import Distance
from docleak.attacks.gradients.view import GradientView
from docleak.attacks.pairs.sentence import Sentences
from docleak.models.base import Encoded

#: Bytes that the gradients of candidates scored in one pass may take: those of a large BERT are 1.2 GB each.
ROOM = 2 * 1024**3


@dataclass(frozen=True)
class Moves:
    """After every ``every`` steps ``candidates`` are scored: distance plus ``weight`` times the language's surprise.

    ``chunk`` of them at most in one pass, fewer where their gradients would not fit into ROOM.
    """

    every: int = 40
    candidates: int = 16
    weight: float = 0.1
    chunk: int = 16


def rearranged(order: Tensor, generator: torch.Generator) -> Tensor:
    """One of LAMP's four moves on (L,): swap two words, move one, move a run of words, move a beginning to the end."""
    length = len(order)
    if length < 2:
        return order

    def draw(high: int) -> int:
        return int(torch.randint(high, (1,), generator=generator))

    kind, row = draw(4), [int(i) for i in order]
    if kind == 0:
        i, j = draw(length), draw(length)
        row[i], row[j] = row[j], row[i]
    elif kind == 1:
        word = row.pop(draw(length))
        row.insert(draw(length), word)
    elif kind == 2:
        first = draw(length)
        last = first + 1 + draw(length - first)
        run, rest = row[first:last], row[:first] + row[last:]
        at = draw(len(rest) + 1)
        row = rest[:at] + run + rest[at:]
    else:
        cut = draw(length)
        row = row[cut:] + row[:cut]
    return torch.tensor(row, device=order.device)


def candidates_of(sentences: Sentences, embeddings: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(count + 1, B, T, d): as it is, and ``count`` rearrangements, each of one text of the batch."""
    candidates = [embeddings]
    for _ in range(count):
        text = int(torch.randint(len(embeddings), (1,), generator=generator))
        places = sentences.free[text].nonzero().flatten()
        moved = embeddings.clone()
        moved[text, places] = embeddings[text, rearranged(places, generator)]
        candidates.append(moved)
    return torch.stack(candidates)


class _Logits(nn.Module):
    """A side's logits with its parameters under one roof, as torch.func wants them."""

    def __init__(self, side: Any, inputs: Sequence[Encoded]) -> None:
        super().__init__()
        self.network, self.side, self.inputs = side.module, side, inputs

    def forward(self, x: Tensor) -> Tensor:
        losses: Tensor = self.side.loss(x, self.inputs)
        return losses.mean()


def distances(
    view: GradientView, inputs: Sequence[Encoded], distance: Distance, batches: Tensor, *, chunk: int
) -> list[float]:
    """The matching distance of each of ``batches`` (C, B, T, d), at most ``chunk`` at a time in one vectorised pass."""
    roof = _Logits(view.model, inputs)
    chosen = {f"network.{name}": dict(view.model.module.named_parameters())[name].detach() for name in view.names}

    def gradient(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(roof, parameters, (x,))
        return result

    vectorised = torch.func.vmap(torch.func.grad(gradient), in_dims=(None, 0))
    chunk = max(1, min(chunk, ROOM // sum(p.numel() * p.element_size() for p in chosen.values())))
    losses: list[float] = []
    for first in range(0, len(batches), chunk):
        part = batches[first : first + chunk]
        many = vectorised(chosen, part)
        for number in range(len(part)):
            dummy = {name: many[f"network.{name}"][number] for name in view.names}
            losses.append(float(distance(view.as_sent(dummy))))
    return losses
