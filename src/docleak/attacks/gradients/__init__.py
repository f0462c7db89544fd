"""Gradient inversion attacks on document models."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Protocol, cast, runtime_checkable

import torch

from docleak.attacks.gradients.engine import Finding, GradientAttack, OnEvaluation
from docleak.attacks.gradients.options import with_options
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.errors import AttackError

__all__ = ["ATTACKS", "Attack", "Finding", "GradientAttack", "GradientView", "Knowledge", "load_attack"]


class Attack(Protocol):
    """What every gradient attack offers; ``GradientAttack`` is the composition most of them are."""

    @property
    def name(self) -> str: ...
    @property
    def paper(self) -> str: ...
    @property
    def summary(self) -> str: ...

    def run(
        self,
        view: GradientView,
        knowledge: Knowledge,
        *,
        budget: int,
        generator: torch.Generator,
        on_evaluation: OnEvaluation = ...,
    ) -> Finding:
        """Reconstruct the private pixels with at most ``budget`` gradient evaluations."""


@runtime_checkable
class WithOptions(Protocol):
    """An attack that is no ``GradientAttack`` and has options of its own."""

    def with_options(self, text: str) -> Attack:
        """The attack with the options of ``text``; AttackError for what it cannot be told."""


#: name -> "module:object". A new attack is a file here and a line in this table.
ATTACKS: dict[str, str] = {
    "gi-dqa": "docleak.attacks.gradients.gi_dqa:ATTACK",
    "gi-dqa-adam": "docleak.attacks.gradients.gi_dqa:PAPER",
    "gi-dqa-joint": "docleak.attacks.gradients.gi_dqa_joint:ATTACK",
    "words-drawn": "docleak.attacks.gradients.gi_dqa_joint:WORDS",
    "april": "docleak.attacks.gradients.april:ATTACK",
    "inverting-gradients": "docleak.attacks.gradients.inverting_gradients:ATTACK",
    "dlg": "docleak.attacks.gradients.dlg:ATTACK",
    "idlg": "docleak.attacks.gradients.idlg:ATTACK",
    "closed-form": "docleak.attacks.gradients.closed_form:ATTACK",
    "random": "docleak.attacks.gradients.random_guess:ATTACK",
}


def load_attack(spec: str) -> Attack:
    """The registered attack of that name, with options behind a colon where they differ from the published ones.

    ``gi-dqa:priors=text@0.1+tv-spatial@0.1,schedule=delayed``; options are priors (``none`` for none), schedule,
    grey (yes or no), start (uniform, normal or light), region (private or all), solver (lbfgs, lm or adam), rounds
    (largest or all), loss (float or double precision) and learning-rate. ``words-drawn`` and ``gi-dqa-joint`` have
    options of their own. AttackError lists what is known.
    """
    name, _, options = spec.strip().partition(":")
    if name not in ATTACKS:
        near = get_close_matches(name, ATTACKS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise AttackError(f"unknown attack {name!r}.{hint} Known attacks: {', '.join(ATTACKS)}.")
    module, attribute = ATTACKS[name].split(":")
    attack = getattr(import_module(module), attribute)
    if not options:
        return cast(Attack, attack)
    if isinstance(attack, WithOptions):
        return attack.with_options(options)
    if not isinstance(attack, GradientAttack):
        raise AttackError(f"attack {name!r} takes no options, found {options!r}.")
    return with_options(attack, options)
