"""CLIENTOPT: what one client does in a round (Nguyen and Karatzas, 2024, Algorithm 1, step 3 and section 5.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from docleak.documents.page import Page
from docleak.errors import FederationError
from docleak.models.base import DocumentModel, Encoded, broken_weights, device_of, in_mode, pixels_of, trainable
from docleak.models.device import seed_torch
from docleak.models.vlm.values import derived_once
from docleak.spec import counted_words
from docleak.training.federated.fedopt import ClientUpdate
from docleak.training.federated.local_plan import OPTIMISERS, LocalPlan
from docleak.training.objectives.objective import Example, Objective, objective_of

#: A model of more parameters than LARGE takes a batch in parts of AT_ONCE tokens and PAIRS_AT_ONCE pairs of tokens that
#: attend to each other, pages in patches of PATCH pixels a side: a step of FeDocVQA's published size on 16 tables does
#: not fit into 23 GB as one, nor does one part of three long tables in pretraining, whose answers are as long.
LARGE, AT_ONCE, PAIRS_AT_ONCE, PATCH = 50_000_000, 4096, 1 << 21, 16
#: Bytes of pages that a round keeps as the model takes them: fitting a page for each batch that asks about it was 17 to
#: 30 % of a tiny client's round.
KEPT = 1 << 28


@dataclass(frozen=True)
class LocalRound:
    """A client's round: its update, the optimiser steps it took, the mean training loss over them, and the seconds.

    ``batches`` are the numbers of the examples of each step, in the order of the objective.
    """

    update: ClientUpdate
    steps: int
    loss: float
    batches: tuple[tuple[int, ...], ...] = ()
    seconds: float = 0.0


def parameters_of(model: DocumentModel) -> dict[str, np.ndarray]:
    """The trainable parameters as float32 arrays of their own, a tied weight once."""
    return {name: p.detach().cpu().float().numpy().copy() for name, p in trainable(model.module)}


def set_parameters(model: DocumentModel, arrays: dict[str, np.ndarray]) -> None:
    """Put arrays into the model's trainable parameters. FederationError if names or shapes differ."""
    parameters = dict(trainable(model.module))
    if set(parameters) != set(arrays):
        raise FederationError(
            f"the global model has {len(arrays)} parameters and this client's {len(parameters)}; they differ in "
            f"{sorted(set(parameters) ^ set(arrays))[:3]}. Server and silo must use the same model."
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            if tuple(arrays[name].shape) != tuple(parameter.shape):
                raise FederationError(
                    f"the global {name!r} has shape {tuple(arrays[name].shape)}, this client's "
                    f"{tuple(parameter.shape)}. Server and silo must use the same model."
                )
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))


@dataclass(frozen=True)
class LocalSteps:
    """What training in place did: how many examples there were (n_k), and loss and examples of every optimiser step."""

    examples: int
    losses: tuple[float, ...]
    batches: tuple[tuple[int, ...], ...]


def train_locally(
    model: DocumentModel, pages: Sequence[Page], plan: LocalPlan, *, client: str, rng: np.random.Generator
) -> LocalRound:
    """Train ``model`` in place from the global weights it holds; the update is theta_t - y_k over named parameters.

    n_k counts the objective's examples. Central training is the one-client case. See ``train_in_place`` for ``rng`` and
    what is raised.
    """
    before = {name: p.detach().clone() for name, p in trainable(model.module)}
    done = train_in_place(model, pages, plan, client=client, rng=rng)
    delta = {name: (before[name] - p.detach()).cpu().float().numpy() for name, p in trainable(model.module)}
    update = ClientUpdate(client, done.examples, delta)
    return LocalRound(update, len(done.losses), float(np.mean(done.losses)), done.batches)


def train_in_place(
    model: DocumentModel, pages: Sequence[Page], plan: LocalPlan, *, client: str, rng: np.random.Generator,
    on_examples: Callable[[int, int], None] = lambda seen, count: None,
) -> LocalSteps:  # fmt: skip
    """The steps of a round, with an optimiser of its own, from the weights that ``model`` holds.

    ``rng`` orders the examples, draws what the objective draws, and seeds dropout (torch's global generator, which is
    put back). ``on_examples`` is told after each step how many examples all steps saw, and how many there are. Raises
    FederationError for a client without examples, and for a loss that is not finite.
    """
    objective = objective_of(plan.objective)
    examples = objective.examples(pages)
    if not examples:
        raise FederationError(
            f"client {client!r} has {counted_words(len(pages), 'page')} and no {objective.needs} to train on."
        )
    named = [p for _, p in trainable(model.module)]
    kind: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, OPTIMISERS[plan.optimiser])
    optimiser = kind(named, lr=plan.learning_rate, weight_decay=plan.weight_decay)
    fitted = FittedPages(model, pages)
    losses: list[float] = []
    batches: list[tuple[int, ...]] = []
    with torch.random.fork_rng(devices=[]), in_mode(model.module, training=plan.dropout):
        seed_torch(int(rng.integers(2**62)))
        try:
            for numbers in _batches(len(examples), plan, rng):
                optimiser.zero_grad(set_to_none=True)
                with derived_once(model):
                    loss = _add_gradient(model, fitted, [examples[i] for i in numbers], objective, rng)
                if not math.isfinite(loss):
                    broken = "" if losses else broken_weights(model.module)  # later ones are this training's own
                    raise FederationError(
                        f"client {client!r}: the loss of step {len(losses) + 1} is {loss}"
                        + (f": {broken}. Give another checkpoint." if broken else
                           ". Lower the learning rate, or look for pages that break the model.")
                    )  # fmt: skip
                if plan.max_norm:
                    torch.nn.utils.clip_grad_norm_(named, plan.max_norm)
                optimiser.step()
                losses.append(loss)
                batches.append(numbers)
                on_examples(sum(map(len, batches)), len(examples))
        finally:  # under privacy one unit's failure is not the end of the round
            optimiser.zero_grad(set_to_none=True)  # gradients are of no use after the round
    return LocalSteps(len(examples), tuple(losses), tuple(batches))


def _batches(count: int, plan: LocalPlan, rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
    """Numbers of examples: every example once an epoch, in a new order; the last batch of an epoch may be smaller."""
    steps = 0
    for _ in range(plan.epochs):
        order = rng.permutation(count)
        for start in range(0, len(order), plan.batch_size):
            if plan.max_steps and steps == plan.max_steps:
                return
            steps += 1
            yield tuple(int(i) for i in order[start : start + plan.batch_size])


def batch_loss(
    model: DocumentModel, pages: Sequence[Page], batch: Sequence[Example], objective: Objective,
    rng: np.random.Generator,
) -> Tensor:  # fmt: skip
    """Mean loss of a batch, a tensor of no dimension with its graph; each of its pages is read once. ``rng`` draws
    what the objective draws."""
    return model.loss(*_read(model, FittedPages(model, pages), batch, objective, rng)).mean()


class FittedPages:
    """Pages as ``model`` takes them; the first KEPT bytes of them are fitted once, the others each time."""

    def __init__(self, model: DocumentModel, pages: Sequence[Page]) -> None:
        self._model, self._pages = model, pages
        self._kept: dict[int, Page] = {}
        self._room = KEPT

    def __getitem__(self, number: int) -> Page:
        if number in self._kept:
            return self._kept[number]
        page = self._model.fit(self._pages[number])
        if page.image.nbytes <= self._room:
            self._room -= page.image.nbytes
            self._kept[number] = page
        return page


def _read(
    model: DocumentModel, pages: FittedPages, batch: Sequence[Example], objective: Objective,
    rng: np.random.Generator,
) -> tuple[Tensor, list[Encoded], list[int]]:  # fmt: skip
    """A batch as ``model.loss`` takes it."""
    numbers = sorted({example.page for example in batch})
    fitted = {i: pages[i] for i in numbers}
    device = device_of(model)
    pixels = torch.stack([pixels_of(fitted[i].image, device) for i in numbers])
    encoded = [objective.encode(model, fitted[example.page], example, rng) for example in batch]
    owners = [numbers.index(example.page) for example, inputs in zip(batch, encoded, strict=True) for _ in inputs]
    return pixels, [one for inputs in encoded for one in inputs], owners


def _add_gradient(
    model: DocumentModel, pages: FittedPages, batch: Sequence[Example], objective: Objective,
    rng: np.random.Generator,
) -> float:  # fmt: skip
    """The mean loss of a batch, whose gradient is added to the parameters'; a large model takes a large batch in parts
    whose gradients add up (dropout is drawn part by part then)."""
    pixels, inputs, owners = _read(model, pages, batch, objective, rng)
    large = sum(parameter.numel() for parameter in model.module.parameters()) > LARGE
    total = 0.0
    for start, end in parts_of(inputs, pixels, AT_ONCE) if large else [(0, len(inputs))]:
        there = sorted(set(owners[start:end]))
        losses = model.loss(pixels[there], inputs[start:end], [there.index(page) for page in owners[start:end]])
        loss = losses.mean() if end - start == len(inputs) else losses.sum() / len(inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        total += float(loss.detach())
    return total


def parts_of(inputs: Sequence[Encoded], pixels: Tensor, at_once: int) -> list[tuple[int, int]]:
    """Where parts of a batch begin and end, each with ``at_once`` tokens and PAIRS_AT_ONCE pairs of them at most,
    padding and patches of the page ``pixels`` (P, 3, H, W) included, or with one input."""
    patches = pixels.shape[-2] * pixels.shape[-1] // PATCH**2
    lengths = [patches + max(len(tensor) for tensor in one.tensors.values() if tensor.dim()) for one in inputs]
    ends = [0]
    for end in range(1, len(inputs)):
        count, longest = end + 1 - ends[-1], max(lengths[ends[-1] : end + 1])
        if count * longest > at_once or count * longest**2 > PAIRS_AT_ONCE:
            ends.append(end)
    return list(pairwise([*ends, len(inputs)]))
