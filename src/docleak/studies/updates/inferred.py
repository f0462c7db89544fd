"""How a client trained where nobody says it: read off its update, and believed as far as the self-test confirms it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from docleak.studies.updates.causes import FAR, Diagnosis
from docleak.studies.updates.round import ImitatedRound, agreement, gap
from docleak.training.federated.local_plan import LocalPlan

#: Optimiser steps that all trials together may take.
MOST_STEPS = 60
#: Ratio of the largest and the smallest tensor's greatest change (of the middle eight in ten) below which all moved
#: alike: AdamW moves some number of every tensor by about its rate in each step, SGD by its gradient.
ALIKE = 3.0
#: Batch sizes and epochs that are tried where they are not told, beside one batch of everything.
SIZES, EPOCHS = (1, 2, 4, 8), (1, 2, 3)
#: Cosine of a replay with the update from which its rate can be fitted along it.
FITS = 0.9
#: By how much a rate of two digits may differ from what was measured.
ROUNDED = 5e-3
#: By how much the cosine of another trial has to be larger before it is believed instead of an earlier, simpler one.
BETTER = 0.05


@dataclass(frozen=True)
class Inferred:
    """Values of LocalPlan; ``confirmed``: with them the self-test passes. ``sentence`` says so to people."""

    values: Mapping[str, Any]
    confirmed: bool
    sentence: str


def moves_alike(sent: Mapping[str, torch.Tensor]) -> bool:
    """Whether all tensors moved by about the same, as under AdamW."""
    sizes = sorted(float(value.abs().max()) for value in sent.values() if bool(value.any()))
    middle = sizes[len(sizes) // 10 : len(sizes) - len(sizes) // 10]
    return bool(middle) and middle[-1] < ALIKE * middle[0]


def inferred(imitated: Callable[[LocalPlan], ImitatedRound], told: Mapping[str, Any], count: int) -> Inferred:
    """The optimiser, rate, decay and batches that come closest to what was sent, of ``count`` examples.

    ``imitated`` is the round under a plan, and ``told`` what is known of the plan. Trials end with the first that
    passes the self-test, or once MOST_STEPS are taken; the best is then an assumption.
    """
    best, closest = dict[str, Any](), -1.0
    taken = 0
    for plan in _plans(imitated, told, count):
        trial = imitated(plan)
        if taken + 3 * len(trial.batches) > MOST_STEPS:
            continue
        search = Diagnosis(trial, {}, {})
        trial = _fitted(search, trial, told)
        taken += search.taken + len(trial.batches)
        cosine = agreement(trial.sent, trial.replayed, trial.alive)[1]
        if cosine > closest + BETTER:
            best, closest = _values(trial.plan), cosine
        if gap(trial.sent, trial.replayed, trial.alive) < FAR and trial.passes:
            values = _values(trial.plan)
            return Inferred(values, True, f"{_said(values, told)}, with which the self-test passes.")
    return Inferred(best, False, f"{_said(best, told)} (cosine {closest:.2f}); the self-test does not confirm it.")


def _fitted(search: Diagnosis, begun: ImitatedRound, told: Mapping[str, Any]) -> ImitatedRound:
    """The round with the rate and the decay that fit, where they are not told.

    A rate is fitted along the direction of our replay. Where that is not the update's own (dropout), the fit falls with
    their cosine; AdamW's rate is then its largest step beside what decay took.
    """
    rated = "learning_rate" in told
    trial = begun if rated else search.fitted(begun)[0]
    if not rated and trial.plan.optimiser == "adamw":
        rated = agreement(trial.sent, trial.replayed, trial.alive)[1] < FITS
        trial = begun if rated else trial
    if "weight_decay" in told or (decay := Diagnosis(trial, {}, {}).decay()) <= 0:
        return trial
    trial = trial.planned(weight_decay=decay)
    if "learning_rate" in told:
        return trial
    if not rated:
        return search.fitted(trial)[0]
    steps = len(trial.batches)
    taken = 1 - (1 - decay * trial.plan.learning_rate) ** steps
    largest = max(float((value - taken * trial.start[name]).abs().max()) for name, value in trial.sent.items()) / steps
    short = float(f"{largest:.1e}")
    trial = trial.planned(learning_rate=short if abs(short / largest - 1) < ROUNDED else largest)
    return trial.planned(weight_decay=Diagnosis(trial, {}, {}).decay())


def _plans(imitated: Callable[[LocalPlan], ImitatedRound], told: Mapping[str, Any], count: int) -> Iterator[LocalPlan]:
    plain = LocalPlan(**{"batch_size": max(1, count), "weight_decay": 0.0, "dropout": False, **told})
    sent = imitated(plain).sent
    kinds = ("adamw", "sgd") if moves_alike(sent) else ("sgd", "adamw")
    largest = max((float(value.abs().max()) for value in sent.values()), default=0.0)
    sizes = [told["batch_size"]] if "batch_size" in told else dict.fromkeys((count, *(s for s in SIZES if s < count)))
    epochs = [plain.epochs] if "epochs" in told else EPOCHS
    for number, size, kind in product(epochs, sizes, [told["optimiser"]] if "optimiser" in told else kinds):
        plan = replace(plain, epochs=number, batch_size=size, optimiser=kind)
        steps = len(imitated(plan).batches)
        if "learning_rate" not in told:
            plan = replace(plan, learning_rate=largest / max(1, steps) if kind == "adamw" else 0.1)
        # Under AdamW some number moves by about the rate in every step: so many have to fit the largest change.
        if kind != "adamw" or abs(largest / plan.learning_rate - steps) <= 0.3 * steps:
            yield plan


def _values(plan: LocalPlan) -> dict[str, Any]:
    names = ("optimiser", "learning_rate", "weight_decay", "batch_size", "epochs")
    return {name: getattr(plan, name) for name in names} | {"dropout": False}  # its trace is looked for, never assumed


def _said(values: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    shown = (f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()
             if key not in told and key != "dropout")  # fmt: skip
    return f"Nobody said all of how the client trained; from the update: {', '.join(shown)}"
