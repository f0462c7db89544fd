"""Asking an attack on weights, which may be somebody's own, and checking what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch

from docleak.attacks.asking import called, checked, is_a, is_own, left_alone, odd_numbers, type_said
from docleak.attacks.weights.cdmi import Attempt, Finding, WeightsAttack
from docleak.attacks.weights.view import PublicKnowledge, WeightsView

#: So far beyond 1 a likelihood is rounded.
ROUNDING = 1e-6
EXPECTED = (
    "a docleak.attacks.weights.Finding: attempts, a tuple of 1 Attempt or more and no more than the budget, each with "
    "a token of the vocabulary for every position of the field, and as many likelihoods in [0, 1] for target and "
    "public; calls, a whole number of 0 or more"
)


def ask(
    attack: WeightsAttack, view: WeightsView, knowledge: PublicKnowledge, *, budget: int, generator: torch.Generator,
    forget: Callable[[], object] = lambda: None,
) -> Finding:  # fmt: skip
    """What ``attack`` finds; one of one's own is given a copy of the page.

    OwnAttackError, which names the attack, for a ``run`` that cannot be called, for what is no Finding or, of an attack
    of one's own, none that can be, and where it leaves a model as another one; ``forget`` is called first then.
    """
    given = replace(view, page=deepcopy(view.page)) if is_own(attack) else view
    models = [("the target", view.target.module), ("the public model", knowledge.model.module)]
    with left_alone(f"attack {attack.name!r}", models, forget=forget):
        finding = called(attack, {"view": given, "knowledge": knowledge}, budget=budget, generator=generator)
    faults = _faults(finding, budget, len(view.positions), len(view.target.tokenizer))
    return checked(attack, finding, Finding, faults, EXPECTED)


def _faults(finding: Any, budget: int, length: int, vocabulary: int) -> Iterator[str]:
    attempts: object = finding.attempts
    if not isinstance(attempts, tuple | list):
        yield f"attempts is {type_said(attempts)}, no tuple"
    elif not 1 <= len(attempts) <= budget:
        yield f"attempts are {len(attempts)}; the budget is {budget}"
    else:
        for number, attempt in enumerate(attempts):
            yield from (f"attempt {number}: {fault}" for fault in _of_attempt(attempt, length, vocabulary))
    if not is_a(finding.calls, Integral) or finding.calls < 0:
        yield f"calls is {type_said(finding.calls)}"


def _of_attempt(attempt: object, length: int, vocabulary: int) -> Iterator[str]:
    if not isinstance(attempt, Attempt):
        yield f"it is {type_said(attempt)}, no Attempt"
        return
    faults = list(odd_numbers("tokens", attempt.tokens, length, Integral))
    yield from faults
    if not faults and (wrong := [token for token in attempt.tokens if not 0 <= token < vocabulary]):
        yield f"tokens has {wrong[0]}; the vocabulary has {vocabulary} pieces"
    for name in ("target", "public"):
        faults = list(odd_numbers(name, values := getattr(attempt, name), length))
        yield from faults
        if not faults and (wrong := [one for one in values if not 0 <= one <= 1 + ROUNDING]):
            yield f"{name} has {wrong[0]:.4g}, no likelihood in [0, 1]"
