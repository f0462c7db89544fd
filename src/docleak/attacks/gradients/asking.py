"""Asking an attack, which may be somebody's own, and checking what it returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from docleak.attacks.asking import OwnAttackError, called, checked, is_a, is_own, left_alone, odd_pixels, type_said
from docleak.attacks.gradients import Attack
from docleak.attacks.gradients.engine import Finding, GradientAttack, OnEvaluation
from docleak.attacks.gradients.view import GradientView, Knowledge

EXPECTED = (
    "a docleak.attacks.gradients.Finding: pixels, a tensor (B, 3, H, W) of finite numbers in [0, 1]; matching, "
    "explained and seconds, numbers; evaluations, a whole number from 0 to the budget; history, pairs of an "
    "evaluation's number and its loss; start and loss, texts"
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

    OwnAttackError, which names the attack, for a ``run`` that cannot be called, for what is no Finding or, of an attack
    of one's own, none that can be, and where the gradient is another one afterwards.
    """

    def telling(number: Any, loss: Any, pixels: Any) -> None:
        faults = [*_odd_progress(number, loss, pixels, knowledge.template, budget)]
        if faults:
            raise OwnAttackError(
                f"attack {attack.name!r} calls on_evaluation with what cannot be: {'; '.join(faults)}. Expected the "
                "evaluation's number, from 1 to the budget, its loss, and the current pixels, a tensor (B, 3, H, W)."
            )
        on_evaluation(number, loss, pixels)

    with left_alone(f"attack {attack.name!r}", (), [one.gradient for one in view.rounds]):
        finding = called(
            attack, {"view": view, "knowledge": deepcopy(knowledge)},
            budget=budget, generator=generator, on_evaluation=telling if is_own(attack) else on_evaluation,
        )  # fmt: skip
    # A search that diverges may end in NaN.
    faults = () if isinstance(attack, GradientAttack) else _faults(finding, knowledge.template, budget)
    return checked(attack, finding, Finding, faults, EXPECTED)


def _odd_progress(number: object, loss: object, pixels: object, template: Tensor, budget: int) -> Iterator[str]:
    if not is_a(number, Integral) or not 1 <= number <= budget:  # type: ignore[operator]
        yield f"number is {type_said(number)}; the budget is {budget}"
    if not is_a(loss, Real) and not (isinstance(loss, Tensor) and loss.numel() == 1):
        yield f"loss is {type_said(loss)}, no number"
    if not isinstance(pixels, Tensor) or pixels.shape != template.shape:
        yield f"pixels is {type_said(pixels)}; expected that of the template, {tuple(template.shape)}"


def _faults(finding: Any, template: Tensor, budget: int) -> Iterator[str]:
    yield from odd_pixels(finding.pixels, template.shape, "that of the template")
    if not is_a(finding.evaluations, Integral) or not 0 <= finding.evaluations <= budget:
        yield f"evaluations is {type_said(finding.evaluations)}; the budget is {budget}"
    for name in ("matching", "explained", "seconds"):
        if not is_a(value := getattr(finding, name), Real):
            yield f"{name} is {type_said(value)}, no number"
    for name in ("start", "loss"):
        if not isinstance(value := getattr(finding, name), str):
            yield f"{name} is {type_said(value)}, no text"
    history: object = finding.history
    pairs = history if isinstance(history, Sequence) else (history,)
    if wrong := [pair for pair in pairs if not _is_step(pair)]:
        yield f"history has {type_said(wrong[0])}, no pair of an evaluation's number and its loss"


def _is_step(pair: object) -> bool:
    return isinstance(pair, Sequence) and len(pair) == 2 and is_a(pair[0], Integral) and is_a(pair[1], Real)
