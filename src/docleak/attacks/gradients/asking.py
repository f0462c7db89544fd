"""Asking an attack, which may be somebody's own, and checking what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from docleak.attacks.gradients import Attack
from docleak.attacks.gradients.engine import Finding, GradientAttack, OnEvaluation
from docleak.attacks.gradients.view import GradientView, Knowledge, type_said
from docleak.errors import AttackError

#: Half a grey level: so far beyond [0, 1] a pixel is rounded, and shown as the end of the range.
ROUNDING = 0.5 / 255
EXPECTED = (
    "a docleak.attacks.gradients.Finding: pixels, a tensor (B, 3, H, W) of finite numbers in [0, 1]; matching, "
    "explained and seconds, numbers; evaluations, a whole number from 0 to the budget; history, pairs of an "
    "evaluation's number and its loss"
)


def ask(
    attack: Attack,
    view: GradientView,
    knowledge: Knowledge,
    *,
    budget: int,
    generator: torch.Generator,
    on_evaluation: OnEvaluation,
) -> Finding:
    """What ``attack`` finds, which is given a copy of what it knows, since what comes after it reads that, too.

    AttackError, which names the attack, for a ``run`` that cannot be called, for what is no Finding or, of an attack of
    one's own, none that can be, and where the gradient is another one afterwards.
    """
    how: dict[str, Any] = {"budget": budget, "generator": generator, "on_evaluation": on_evaluation}
    try:
        inspect.signature(attack.run).bind(view, knowledge, **how)
    except TypeError as fault:
        raise AttackError(
            f"attack {attack.name!r}: its run cannot be called ({fault}); expected "
            "run(view, knowledge, *, budget, generator, on_evaluation), as in docs/adding-an-attack.md."
        ) from fault
    before, threads = [_sums(one.gradient) for one in view.rounds], torch.get_num_threads()
    finding: object = attack.run(view, deepcopy(knowledge), **how)
    torch.set_num_threads(threads)  # sums by another number of threads round differently
    if before != [_sums(one.gradient) for one in view.rounds]:
        raise AttackError(
            f"attack {attack.name!r} leaves another gradient than it was given; expected view.gradient as it was, "
            "since what comes after the attack reads it, too. Let it work on copies (tensor.clone())."
        )
    if not isinstance(finding, Finding):
        raise AttackError(f"attack {attack.name!r} returned {type_said(finding)}; expected {EXPECTED}.")
    # A search that diverges may end in NaN.
    searched = isinstance(attack, GradientAttack) or type(attack).__module__.startswith("docleak.")
    if not searched and (faults := list(_faults(finding, knowledge.template, budget))):
        listed = "".join(f"\n  - {fault}" for fault in faults)
        raise AttackError(f"attack {attack.name!r} returned a Finding that cannot be:{listed}\nExpected {EXPECTED}.")
    return finding


def _faults(finding: Finding, template: Tensor, budget: int) -> Iterator[str]:
    pixels: object = finding.pixels
    if not isinstance(pixels, Tensor) or not pixels.is_floating_point():
        yield f"pixels is {type_said(pixels)}, not a tensor of floating-point numbers"
    elif pixels.shape != template.shape:
        yield f"pixels has the shape {tuple(pixels.shape)}; expected that of the template, {tuple(template.shape)}"
    elif bad := int((~torch.isfinite(pixels)).sum()):
        yield f"{bad} of {pixels.numel()} pixels are NaN or infinite"
    elif float(pixels.min()) < -ROUNDING or float(pixels.max()) > 1 + ROUNDING:
        low, high = float(pixels.min()), float(pixels.max())
        yield f"pixels are from {low:.4g} to {high:.4g}, not in [0, 1] (clamp them, or divide by 255)"
    if not _is(finding.evaluations, Integral) or not 0 <= finding.evaluations <= budget:
        yield f"evaluations is {type_said(finding.evaluations)}; the budget is {budget}"
    for name in ("matching", "explained", "seconds"):
        if not _is(value := getattr(finding, name), Real):
            yield f"{name} is {type_said(value)}, no number"
    history: object = finding.history
    pairs = history if isinstance(history, Sequence) else (history,)
    if wrong := [pair for pair in pairs if not _is_step(pair)]:
        yield f"history has {type_said(wrong[0])}, no pair of an evaluation's number and its loss"


def _is_step(pair: object) -> bool:
    return isinstance(pair, Sequence) and len(pair) == 2 and _is(pair[0], Integral) and _is(pair[1], Real)


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _sums(gradient: Mapping[str, Tensor]) -> dict[str, str]:
    """Sums of all tensors, which cost little, as texts, so that NaN is what it is."""
    return {name: str(float(value.sum(dtype=torch.float32))) for name, value in gradient.items()}
