"""The words of a vision-language client from its first layer, by the span of what it sent: whole or LoRA, over rounds.

What the first layer of a decoder reads at a word is that word's row of the token table, normalised: the same wherever
it stands. So each word of the vocabulary has one vector there, and those that were read lie in the span of the gradient
of the layer's weights, or of its adapters' (``subspace``). Where nothing that is trained stands before the layer, as
with adapters, these vectors are the same in every round, and what several rounds sent adds up.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from docleak.attacks.gradients.algebra.recovered import Condition
from docleak.attacks.gradients.algebra.subspace import EPSILON, Members, Rows, Subspace, members
from docleak.attacks.gradients.local_steps import Optimiser
from docleak.attacks.hooks import reached, read_by
from docleak.errors import AttackError
from docleak.models.base import DocumentModel, device_of
from docleak.models.vlm.model import VisionLanguage

#: How alike the inputs of one word at two places are, where a layer reads nothing but words.
ALIKE = 1e-5
#: Words of the vocabulary that are sent through the network at once.
CHUNK = 256
#: Error of an AdamW step that cannot be inverted, as a share of its size: a model of it, not a bound.
SIGNED = 0.02


@dataclass(frozen=True)
class Sent:
    """What a client sent in one round in the units of a gradient, and the error of its numbers (of their
    shape, or one for all); 0 where none is known beside the rounding of sums."""

    update: Mapping[str, Tensor]
    noise: Mapping[str, Tensor | float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, delta: Mapping[str, Tensor], start: Mapping[str, Tensor], optimiser: Optimiser, steps: float,
        resolution: float = 0.0,
    ) -> Sent:  # fmt: skip
        """A weight delta, theta_0 - theta_K, that was rounded to multiples of ``resolution``.

        One AdamW step is inverted: |g| = epsilon s / (1 - s) for s = |step| / learning rate, known as well as the
        weight's last place tells it; several are taken as they are.
        """
        update, coarse = optimiser.as_gradient(delta, start, steps), resolution / (optimiser.learning_rate * steps)
        if optimiser.kind == "sgd":
            return cls(update, {name: value / steps + coarse for name, value in optimiser.rounding(start).items()})
        if steps != 1 or coarse:
            sizes = {
                name: coarse + SIGNED * float(value.double().square().mean()) ** 0.5 for name, value in update.items()
            }
            return cls(update, sizes)
        inverted = {name: _inverted(value, start[name], optimiser) for name, value in update.items()}
        return cls({n: g for n, (g, _) in inverted.items()}, {n: noise for n, (_, noise) in inverted.items()})


@dataclass(frozen=True)
class Words:
    """``tokens`` are the ids that were read, in no order; ``exact`` is the adversary's own belief that these are all.

    ``members`` holds what the cut-off was chosen by, ``rounds`` how many of those sent told anything, and ``together``
    says whether others than the last did.
    """

    tokens: tuple[int, ...]
    exact: bool
    conditions: tuple[Condition, ...]
    members: Members
    rounds: int
    seconds: float
    together: bool = False


@dataclass(frozen=True)
class Reader:
    """Layers of one input: ``weights`` by name, the input's ``width``, and whether nothing before them is trained."""

    weights: tuple[str, ...]
    layer: str
    width: int
    frozen: bool


def recover_words(model: DocumentModel, rounds: Sequence[Sent]) -> Words:
    """The set of words behind what one client sent in ``rounds``, of which the last one started from ``model``.

    Several rounds are added up where the layer's inputs stay the same; otherwise the last one counts alone. Raises
    AttackError for other models than decoders of pictures and words, and where no layer that reads words alone has
    sent anything.
    """
    started = time.perf_counter()
    module = _decoder(model)
    told = [{name for name, value in one.update.items() if bool(value.any())} for one in rounds]
    sent = [set[str]().union(*told), *told[-1:]]  # by all rounds, and by the last
    readers = [r for r in _readers(model, module) if sent[0 if r.frozen else -1] & set(r.weights)]
    if not readers:
        raise AttackError(
            "no layer that reads words alone sent anything but zeros: the first decoder layer's query, key and value "
            "are frozen, or these are LoRA's first step, which moves B alone."
        )
    reader = max(readers, key=lambda one: one.width)
    last = rounds[-1]
    telling = [one for one, names in zip(rounds, told, strict=True) if names & set(reader.weights)]
    used = telling if reader.frozen else [last]
    blocks = [
        Rows(one.update[name], _of_rows(one.noise.get(name, 0.0)))
        for one in used
        for name in reader.weights
        if name in one.update and one.update[name].shape[1] == reader.width
    ]
    space = Subspace.of(blocks)
    chosen = members(space, _inputs(model, module, reader))
    tokens = tuple(int(i) for i in chosen.taken.nonzero().flatten())
    conditions, together = _conditions(space, chosen, reader, len(used)), any(one is not last for one in used)
    exact, seconds = all(condition.holds for condition in conditions), time.perf_counter() - started
    return Words(tokens, exact, conditions, chosen, len(used), seconds, together)


def _conditions(space: Subspace, chosen: Members, reader: Reader, rounds: int) -> tuple[Condition, ...]:
    layers = f"{len(reader.weights)} of them, {rounds} round{'s' if rounds > 1 else ''}"
    left = f"furthest taken {chosen.furthest:.1e}, nearest left out {chosen.nearest:.1e}"
    frozen = "nothing trained stands before it" if reader.frozen else "it changes with training: one round"
    return (
        Condition("layers that read words alone sent something", layers, True),
        Condition("what they read stays the same", frozen, reader.frozen or rounds == 1),
        Condition("the span is narrower than the layer", f"{space.rank} of {space.width}", space.rank < space.width),
        Condition("more was sent than it spans", f"{space.rank} of {space.rows} vectors", space.covered),
        Condition("a gap separates words that were read from others", left, chosen.clear),
    )


def _decoder(model: DocumentModel) -> Any:
    layers = getattr(model, "answer_layers", None)
    if isinstance(model, VisionLanguage) and layers is not None:  # whose decoder reads the answer
        return model.module.get_submodule(layers.decoder)
    if not isinstance(model, VisionLanguage) or model.two_sided:
        raise AttackError(
            f"the words of a {model.architecture} are not read from spans: its first layer mixes them with places."
        )
    return model.module.get_decoder()


def _readers(model: DocumentModel, decoder: Any) -> list[Reader]:
    """Groups of linear layers whose input at a word depends on nothing but the word."""
    names = {module: name for name, module in model.module.named_modules()}
    a, b, c = (int(i) for i in torch.linspace(5, len(model.tokenizer) - 1, 3).long())  # type: ignore[attr-defined]
    ids = torch.tensor([[a, b, c, a], [c, a, a, b]])
    same = [((0, 0), (0, 3)), ((0, 0), (1, 1)), ((0, 1), (1, 3)), ((0, 2), (1, 0))]
    with read_by(module for module in decoder.modules() if isinstance(module, nn.Linear)) as read:
        decoder(input_ids=ids.to(device_of(model)), use_cache=False)
    seen = {names[layer]: value for layer, value in read}
    alone: list[tuple[Tensor, list[str]]] = []
    for name, value in seen.items():
        if value.shape[:2] != ids.shape or any(_apart(value[i], value[j]) > ALIKE for i, j in same):
            continue
        group = next((names for other, names in alone if other.shape == value.shape and torch.equal(other, value)), [])
        if not group:
            alone.append((value, group))
        group.append(name)
    return [
        Reader(tuple(f"{name}.weight" for name in group), group[0], value.shape[-1], not value.requires_grad)
        for value, group in alone
    ]


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).detach().norm() / one.detach().norm().clamp_min(1e-30))


def _inputs(model: DocumentModel, decoder: Any, reader: Reader) -> Tensor:
    """(V, width): what the layer reads at each word of the vocabulary."""
    layer = model.module.get_submodule(reader.layer)
    count = model.module.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    parts = torch.split(torch.arange(count, device=device_of(model)), CHUNK)
    return torch.cat([reached(layer, partial(decoder, input_ids=ids[None], use_cache=False))[0] for ids in parts])


def _inverted(signed: Tensor, start: Tensor, optimiser: Optimiser) -> tuple[Tensor, Tensor]:
    """The gradient behind one AdamW step and the standard deviation of its numbers, by the weights' last place."""
    weight = start.detach().cpu().double().abs().clamp_min(optimiser.learning_rate)
    last = EPSILON * torch.exp2(weight.log2().floor()) / 12**0.5 / optimiser.learning_rate
    share = signed.detach().cpu().double()
    below = (1 - share.abs()).clamp_min(2 * last)
    gradient = optimiser.epsilon * share / below
    noise = torch.where(1 - share.abs() < 3 * last, gradient.abs(), optimiser.epsilon * last / below.square())
    return gradient, noise


def _of_rows(noise: Tensor | float) -> Tensor | float:
    """Root mean square of each row where every number has its own."""
    return noise.square().mean(1).sqrt() if isinstance(noise, Tensor) and noise.ndim == 2 else noise
