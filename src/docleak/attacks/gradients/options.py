"""An attack with other parts than the published ones, said in text: ``schedule=delayed,priors=text@0.1``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from docleak.attacks.gradients.engine import GradientAttack
from docleak.attacks.gradients.levenberg import LevenbergMarquardt
from docleak.attacks.gradients.solvers import Adam, BoundedLBFGS
from docleak.errors import AttackError


def with_options(attack: GradientAttack, text: str) -> GradientAttack:
    """``attack`` with the options of ``text`` (key=value, separated by commas); its name says which."""
    changes: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = part.partition("=")
        key = key.strip()
        if not equals or key not in OPTIONS:
            raise AttackError(
                f"attack {attack.name!r} cannot be told {part!r}; options are {', '.join(OPTIONS)}, each as key=value."
            )
        changes.update(OPTIONS[key](attack, value.strip()))
    return replace(attack, name=f"{attack.name}:{text}", **changes)


def _priors(attack: GradientAttack, value: str) -> dict[str, Any]:
    weights: dict[str, float] = {}
    for part in filter(None, value.split("+")) if value != "none" else ():
        name, _, weight = part.partition("@")
        weights[name] = _number("priors", weight or "0.1")
    return {"priors": weights}


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as fault:
        raise AttackError(f"option {key}: {text!r} is not a number. Write for instance {key}=0.1.") from fault


def _learning_rate(attack: GradientAttack, value: str) -> dict[str, Any]:
    if not isinstance(attack.solver, Adam):
        raise AttackError(f"attack {attack.name!r} has no learning rate; its solver is {attack.solver!r}.")
    return {"solver": replace(attack.solver, learning_rate=_number("learning-rate", value))}


def _chosen(key: str, known: dict[str, object], field: str = "") -> Callable[[GradientAttack, str], dict[str, Any]]:
    """One of the ``known`` values for ``field``, which is named as the ``key`` if nothing else is said."""

    def choose(attack: GradientAttack, value: str) -> dict[str, Any]:
        if value not in known:
            raise AttackError(f"option {key} is {value!r}; expected one of {', '.join(known)}.")
        return {field or key: known[value]}

    return choose


#: key -> (attack, value) -> fields of the attack that change. Unknown priors and schedules the attack itself refuses.
OPTIONS: dict[str, Callable[[GradientAttack, str], dict[str, Any]]] = {
    "priors": _priors,
    "schedule": lambda attack, value: {"schedule": value},
    "grey": _chosen("grey", {"yes": True, "no": False}),
    "start": _chosen("start", {"uniform": "uniform", "normal": "normal", "light": "light"}),
    "region": _chosen("region", {"private": "private", "all": "all"}),
    "solver": _chosen("solver", {"lbfgs": BoundedLBFGS(), "lm": LevenbergMarquardt(), "adam": Adam()}),
    "loss": _chosen("loss", {"float": False, "double": True}, "double_loss"),
    "rounds": _chosen("rounds", {"largest": "largest", "all": "all"}),
    "learning-rate": _learning_rate,
}
