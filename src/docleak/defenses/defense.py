"""What a defence is, and how one is named on the command line: ``noise:sigma=1e-7``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from difflib import get_close_matches
from fractions import Fraction
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from docleak.attacks.gradients.view import Knowledge
from docleak.errors import DefenseError
from docleak.models.base import DocumentModel, Encoded

Gradient = Mapping[str, Tensor]


@runtime_checkable
class Defense(Protocol):
    """A frozen dataclass; its fields are its parameters, and ``spec`` names it with them."""

    @property
    def summary(self) -> str:
        """One line in plain words."""


@runtime_checkable
class GradientDefense(Defense, Protocol):
    """Changes what a client sends."""

    def protect(self, gradient: Gradient, model: DocumentModel, *, generator: torch.Generator) -> dict[str, Tensor]:
        """What leaves the client instead of ``gradient``."""

    def imitate(self, dummy: Gradient, observed: Gradient) -> Gradient:
        """What the adversary, who knows the defence, does to its own gradients before it compares (differentiable)."""


@runtime_checkable
class Noisy(Protocol):
    """A gradient defence that adds noise, which an adversary who knows of it counts with."""

    @property
    def noise_std(self) -> float:
        """Standard deviation of the Gaussian noise on every number that is sent."""


@runtime_checkable
class TemplateDefense(Defense, Protocol):
    """Changes the template that is published; clients go on training on clean pages."""

    def publish(
        self, model: DocumentModel, knowledge: Knowledge, blank: list[Encoded], *, generator: torch.Generator
    ) -> Tensor:
        """The published template (B, 3, H, W) in [0, 1]; ``blank`` asks the blank page a made-up question."""


@dataclass(frozen=True)
class NoDefense:
    """The row every defence is compared with."""

    @property
    def summary(self) -> str:
        return "no defence"


#: name -> "module:class". A new defence is a file here and a line in this table.
DEFENSES: dict[str, str] = {
    "none": "docleak.defenses.defense:NoDefense",
    "noise": "docleak.defenses.noise:GradientNoise",
    "clip": "docleak.defenses.clipping:Clipping",
    "top-k": "docleak.defenses.compression:TopK",
    "freeze": "docleak.defenses.freezing:Freezing",
    "safe-template": "docleak.defenses.safe_template:SafeTemplate",
}


def parse_defense(spec: str) -> Defense:
    """``name`` or ``name:key=value,key=value``; DefenseError lists what is known, or what is wrong with a value."""
    name, _, rest = (spec.strip() or "none").partition(":")
    if name not in DEFENSES:
        near = get_close_matches(name, DEFENSES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise DefenseError(f"unknown defence {name!r}.{hint} Known defences: {', '.join(DEFENSES)}.")
    module, attribute = DEFENSES[name].split(":")
    kind = getattr(import_module(module), attribute)
    defense: Defense = kind(**_values(name, kind, rest))
    return defense


def _values(name: str, kind: Any, text: str) -> dict[str, object]:
    known = {field.name: field for field in fields(kind)}
    values: dict[str, object] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in known:
            raise DefenseError(f"defence {name!r} cannot be told {part!r}; it takes {_signature(known)}.")
        values[key] = _parsed(name, known[key], value.strip())
    missing = [key for key, f in known.items() if f.default is MISSING and key not in values]
    if missing:
        raise DefenseError(f"defence {name!r} needs {', '.join(missing)}; it takes {_signature(known)}.")
    return values


def _signature(known: Mapping[str, Field[Any]]) -> str:
    if not known:
        return "no parameters"
    return ", ".join(key if f.default is MISSING else f"{key}={f.default}" for key, f in known.items())


def _parsed(name: str, field: Field[Any], text: str) -> object:
    if field.type == "str":
        return text
    try:
        number = float(Fraction(text)) if "/" in text else float(text)
        if field.type == "int" and not number.is_integer():
            raise ValueError
    except (ValueError, ZeroDivisionError, OverflowError) as fault:
        raise DefenseError(f"defence {name!r}: {field.name} is {text!r}; expected a number such as 8/255.") from fault
    return int(number) if field.type == "int" else number


def require(condition: bool, name: str, what: str, value: object, expected: str) -> None:
    """Raise DefenseError where a parameter makes no sense (NaN fails every comparison, so it is caught too)."""
    if not condition or (isinstance(value, float) and not math.isfinite(value)):
        raise DefenseError(f"defence {name!r}: {what} is {value!r}; expected {expected}.")
