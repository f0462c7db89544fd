"""CLIENTOPT: what one client does in a round (Nguyen and Karatzas, 2024, Algorithm 1, step 3 and section 5.1)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from docleak.documents.page import Page, Question
from docleak.errors import FederationError
from docleak.models.base import DocumentModel, pixels_of, trainable
from docleak.training.federated.fedopt import ClientUpdate


@dataclass(frozen=True)
class LocalPlan:
    """``epochs`` over a client's questions in batches, with an optimiser that begins anew each round.

    ``optimiser`` is "adamw" or "sgd"; ``learning_rate`` is constant. ``max_steps`` ends a round early; 0 does not.
    With ``dropout`` the model trains as its configuration says, else in evaluation mode.
    """

    epochs: int = 1
    batch_size: int = 16
    learning_rate: float = 5e-4
    weight_decay: float = 0.01
    optimiser: str = "adamw"
    max_norm: float = 0.0  # gradients are clipped to this norm; 0 does not clip
    max_steps: int = 0
    dropout: bool = True

    def __post_init__(self) -> None:
        if self.optimiser not in ("adamw", "sgd"):
            raise FederationError(f"unknown client optimiser {self.optimiser!r}; known: adamw, sgd.")
        faults = [
            f"{name} is {value}; expected at least 1"
            for name, value in (("epochs", self.epochs), ("batch_size", self.batch_size))
            if value < 1
        ]
        faults += [
            f"{name} is {value}; expected a finite number of 0 or more"
            for name in ("learning_rate", "weight_decay", "max_norm", "max_steps")
            for value in [getattr(self, name)]
            if not (math.isfinite(value) and value >= 0)
        ]
        if faults:
            raise FederationError("; ".join(faults) + ".")


@dataclass(frozen=True)
class LocalRound:
    """A client's round: its update, the optimiser steps it took, and the mean training loss over them."""

    update: ClientUpdate
    steps: int
    loss: float


def parameters_of(model: DocumentModel) -> dict[str, np.ndarray]:
    """The trainable parameters as float32 arrays of their own, a tied weight once."""
    return {name: p.detach().cpu().float().numpy().copy() for name, p in trainable(model.module)}


def set_parameters(model: DocumentModel, arrays: dict[str, np.ndarray]) -> None:
    """Put arrays into the model's trainable parameters. FederationError if names or shapes differ."""
    own = dict(trainable(model.module))
    if set(own) != set(arrays):
        raise FederationError(
            f"the global model has {len(arrays)} parameters and this client's {len(own)}; they differ in "
            f"{sorted(set(own) ^ set(arrays))[:3]}. Server and silo must use the same model."
        )
    with torch.no_grad():
        for name, parameter in own.items():
            if tuple(arrays[name].shape) != tuple(parameter.shape):
                raise FederationError(
                    f"the global {name!r} has shape {tuple(arrays[name].shape)}, this client's "
                    f"{tuple(parameter.shape)}. Server and silo must use the same model."
                )
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(arrays[name])))


def train_locally(
    model: DocumentModel, pages: Sequence[Page], plan: LocalPlan, *, client: str, rng: np.random.Generator
) -> LocalRound:
    """Train ``model`` in place from the global weights it holds; the update is theta_t - y_k over named parameters.

    n_k counts questions. ``rng`` orders them and seeds dropout (torch's global generator, which is put back).
    Raises FederationError for a client without questions, and for a loss that is not finite.
    """
    examples = [(i, question) for i in range(len(pages)) for question in pages[i].questions if question.answers]
    if not examples:
        raise FederationError(f"client {client!r} has {len(pages)} pages and no question with an answer to train on.")
    before = {name: p.detach().clone() for name, p in trainable(model.module)}
    named = [p for _, p in trainable(model.module)]
    optimiser = _optimiser(named, plan)
    losses: list[float] = []
    was_training = model.module.training
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**62)))
        model.module.train(plan.dropout)
        for batch in _batches(examples, plan, rng):
            loss = _loss(model, pages, batch)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            if plan.max_norm:
                torch.nn.utils.clip_grad_norm_(named, plan.max_norm)
            optimiser.step()
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                raise FederationError(
                    f"client {client!r}: the loss of step {len(losses)} is {losses[-1]}. Lower the learning rate, or "
                    "look for pages that break the model."
                )
    model.module.train(was_training)
    delta = {name: (before[name] - p.detach()).cpu().float().numpy() for name, p in trainable(model.module)}
    return LocalRound(ClientUpdate(client, len(examples), delta), len(losses), float(np.mean(losses)))


def _optimiser(parameters: Sequence[torch.nn.Parameter], plan: LocalPlan) -> torch.optim.Optimizer:
    if plan.optimiser == "sgd":
        return torch.optim.SGD(parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay)
    return torch.optim.AdamW(parameters, lr=plan.learning_rate, weight_decay=plan.weight_decay)


def _batches(
    examples: Sequence[tuple[int, Question]], plan: LocalPlan, rng: np.random.Generator
) -> Iterator[list[tuple[int, Question]]]:
    """Every example once an epoch, in a new order; the last batch of an epoch may be smaller."""
    steps = 0
    for _ in range(plan.epochs):
        order = rng.permutation(len(examples))
        for start in range(0, len(order), plan.batch_size):
            if plan.max_steps and steps == plan.max_steps:
                return
            steps += 1
            yield [examples[int(i)] for i in order[start : start + plan.batch_size]]


def _loss(model: DocumentModel, pages: Sequence[Page], batch: Sequence[tuple[int, Question]]) -> Tensor:
    """Mean loss of a batch; each of its pages is read and encoded once."""
    numbers = sorted({i for i, _ in batch})
    fitted = {i: model.fit(pages[i]) for i in numbers}
    device = next(model.module.parameters()).device
    pixels = torch.stack([pixels_of(fitted[i].image, device) for i in numbers])
    inputs = [model.encode(fitted[i], question) for i, question in batch]
    return model.loss(pixels, inputs, [numbers.index(i) for i, _ in batch]).mean()
