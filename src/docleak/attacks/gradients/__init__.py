"""Gradient inversion attacks on document models."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

from docleak.attacks.gradients.engine import Finding, GradientAttack
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.errors import AttackError

__all__ = ["ATTACKS", "Finding", "GradientAttack", "GradientView", "Knowledge", "load_attack"]

#: name -> "module:object". A new attack is a file here and a line in this table.
ATTACKS: dict[str, str] = {
    "gi-dqa": "docleak.attacks.gradients.gi_dqa:ATTACK",
    "gi-dqa-adam": "docleak.attacks.gradients.gi_dqa:PAPER",
    "april": "docleak.attacks.gradients.april:ATTACK",
    "inverting-gradients": "docleak.attacks.gradients.inverting_gradients:ATTACK",
    "dlg": "docleak.attacks.gradients.dlg:ATTACK",
    "idlg": "docleak.attacks.gradients.idlg:ATTACK",
    "random": "docleak.attacks.gradients.random_guess:ATTACK",
}


def load_attack(name: str) -> GradientAttack:
    """The registered attack of that name; AttackError lists the known ones."""
    if name not in ATTACKS:
        near = get_close_matches(name, ATTACKS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise AttackError(f"unknown attack {name!r}.{hint} Known attacks: {', '.join(ATTACKS)}.")
    module, attribute = ATTACKS[name].split(":")
    attack = getattr(import_module(module), attribute)
    assert isinstance(attack, GradientAttack)
    return attack
