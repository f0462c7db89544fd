"""CLIENTOPT: what one client does in a round (Nguyen and Karatzas, 2024, Algorithm 1, step 3 and section 5.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from docleak.documents.page import Page
from docleak.errors import FederationError
from docleak.models.base import DocumentModel, pixels_of, trainable
from docleak.models.device import seed_torch
from docleak.models.vlm.values import derived_once
from docleak.training.federated.fedopt import ClientUpdate
from docleak.training.federated.local_plan import OPTIMISERS, LocalPlan
from docleak.training.objectives.objective import Example, Objective
from docleak.training.objectives.table import objective_of


@dataclass(frozen=True)
class LocalRound:
    """A client's round: its update, the optimiser steps it took, and the mean training loss over them.

    ``batches`` are the numbers of the examples of each step, in the order of the objective.
    """

    update: ClientUpdate
    steps: int
    loss: float
    batches: tuple[tuple[int, ...], ...] = ()


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
    model: DocumentModel, pages: Sequence[Page], plan: LocalPlan, *, client: str, rng: np.random.Generator
) -> LocalSteps:
    """The steps of a round, with an optimiser of its own, from the weights that ``model`` holds.

    ``rng`` orders the examples, draws what the objective draws, and seeds dropout (torch's global generator, which is
    put back). Raises FederationError for a client without examples, and for a loss that is not finite.
    """
    objective = objective_of(plan.objective)
    examples = objective.examples(pages)
    if not examples:
        raise FederationError(f"client {client!r} has {len(pages)} pages and no {objective.needs} to train on.")
    named = [p for _, p in trainable(model.module)]
    optimiser = _optimiser(named, plan)
    losses: list[float] = []
    batches: list[tuple[int, ...]] = []
    was_training = model.module.training
    with torch.random.fork_rng(devices=[]):
        seed_torch(int(rng.integers(2**62)))
        model.module.train(plan.dropout)
        try:
            for numbers in _batches(len(examples), plan, rng):
                with derived_once(model):
                    loss = batch_loss(model, pages, [examples[i] for i in numbers], objective, rng)
                    optimiser.zero_grad(set_to_none=True)
                    loss.backward()  # type: ignore[no-untyped-call]
                if plan.max_norm:
                    torch.nn.utils.clip_grad_norm_(named, plan.max_norm)
                optimiser.step()
                losses.append(float(loss.detach()))
                batches.append(numbers)
                if not math.isfinite(losses[-1]):
                    raise FederationError(
                        f"client {client!r}: the loss of step {len(losses)} is {losses[-1]}. Lower the learning rate, "
                        "or look for pages that break the model."
                    )
        finally:  # under privacy one unit's failure is not the end of the round
            optimiser.zero_grad(set_to_none=True)  # gradients are of no use after the round
            model.module.train(was_training)
    return LocalSteps(len(examples), tuple(losses), tuple(batches))


def _optimiser(parameters: Sequence[torch.nn.Parameter], plan: LocalPlan) -> torch.optim.Optimizer:
    kind: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, OPTIMISERS[plan.optimiser])
    return kind(parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay)


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
    model: DocumentModel,
    pages: Sequence[Page],
    batch: Sequence[Example],
    objective: Objective,
    rng: np.random.Generator,
) -> Tensor:
    """Mean loss of a batch, a tensor of no dimension with its graph; each of its pages is read once. ``rng`` draws
    what the objective draws."""
    numbers = sorted({example.page for example in batch})
    fitted = {i: model.fit(pages[i]) for i in numbers}
    device = next(model.module.parameters()).device
    pixels = torch.stack([pixels_of(fitted[i].image, device) for i in numbers])
    encoded = [objective.encode(model, fitted[example.page], example, rng) for example in batch]
    owners = [numbers.index(example.page) for example, inputs in zip(batch, encoded, strict=True) for _ in inputs]
    return model.loss(pixels, [one for inputs in encoded for one in inputs], owners).mean()
