"""What a defence is."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from docleak.attacks.asking import blamed, is_own, left_alone, odd_pixels, type_said
from docleak.attacks.gradients.view import Knowledge
from docleak.errors import DefenseError
from docleak.models.base import DocumentModel, Encoded

Gradient = Mapping[str, Tensor]
#: By how much the noise that somebody's own defence announces may differ from what is measured.
NOISE_FACTOR = 2.0


@runtime_checkable
class Defense(Protocol):
    """A frozen dataclass; its fields are its parameters."""

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


def protected(
    defense: GradientDefense, gradient: Gradient, model: DocumentModel, *, generator: torch.Generator
) -> dict[str, Tensor]:
    """What leaves the client; DefenseError where that is no gradient of the model's, and where the defence leaves
    another model. It may write into the gradient that it is given: a copy."""
    with _asked(defense, model):
        sent = defense.protect({n: value.clone() for n, value in gradient.items()}, model, generator=generator)
    _require_tensors(defense, "protect", sent, gradient, of=())
    if is_own(defense):
        _require_numbers(defense, sent)
    return {name: value.detach() for name, value in sent.items()}


def imitated(defense: GradientDefense, dummy: Gradient, observed: Gradient) -> Gradient:
    """What the adversary compares; DefenseError where it cannot be held against what was sent, or followed back."""
    before = {name: value._version for name, value in observed.items()}
    with _asked(defense):
        made = defense.imitate(dummy, observed)
    _require_tensors(defense, "imitate", made, dummy, of=observed)
    if before != {name: value._version for name, value in observed.items()}:
        raise DefenseError(
            f"imitate of defence {type(defense).__name__} changed what was sent, which is held against what it gives. "
            "Let it work on copies (tensor.clone())."
        )
    if any(value.requires_grad for value in dummy.values()) and not any(v.requires_grad for v in made.values()):
        raise DefenseError(
            f"imitate of defence {type(defense).__name__} gave tensors that are cut off from the gradient it was "
            "given; expected a differentiable function of it, without detach, item or numpy."
        )
    return made


def announced_noise(defense: GradientDefense, gradient: Gradient, model: DocumentModel) -> float:
    """The standard deviation of the noise that the defence says it adds; 0 where it says nothing of noise.

    That of somebody's own is measured, by what two draws of it make of the same ``gradient``, where they differ:
    DefenseError where it is not about what was said (within a factor of NOISE_FACTOR), since an attack that counts with
    it would only seem weak.
    """
    if not isinstance(defense, Noisy):
        return 0.0
    if not is_own(defense):
        return defense.noise_std
    one, other = (protected(defense, gradient, model, generator=torch.Generator().manual_seed(k)) for k in range(2))
    whose = _named(defense)
    with _asked(defense):
        said = defense.noise_std
    if not isinstance(said, int | float) or not 0 <= said < math.inf:
        raise DefenseError(f"{whose}: noise_std is {said!r}; expected a standard deviation of 0 or more.")
    apart = torch.cat([(one[name] - other[name]).flatten().double() for name in one] or [torch.zeros(1)])
    added = float(apart[apart != 0].square().mean().div(2).sqrt()) if bool((apart != 0).any()) else 0.0
    if math.isfinite(added) and not said / NOISE_FACTOR <= added <= said * NOISE_FACTOR:
        raise DefenseError(
            f"{whose} announces noise of standard deviation {said:.4g}; two draws of what it sends of one gradient "
            f"differ as if it were {added:.4g}. Let noise_std be what protect adds, from its generator, since attacks "
            "count with it."
        )
    return float(said)


def published(
    defense: TemplateDefense, model: DocumentModel, knowledge: Knowledge, blank: list[Encoded], *,
    generator: torch.Generator,
) -> Tensor:  # fmt: skip
    """The template that is published; DefenseError where it is no picture of the template's shape, and where the
    defence leaves another model. One of one's own is given copies of the knowledge and of the question."""
    shape = knowledge.template.shape
    given = deepcopy((knowledge, blank)) if is_own(defense) else (knowledge, blank)
    with _asked(defense, model):
        template = defense.publish(model, *given, generator=generator)
    if not isinstance(template, Tensor) or template.shape != shape or not template.is_floating_point():
        raise DefenseError(
            f"publish of defence {type(defense).__name__} gave {type_said(template)}; expected a tensor of floats of "
            f"the template's shape, {tuple(shape)}."
        )
    if is_own(defense) and (faults := list(odd_pixels(template, shape, "that of the template"))):
        raise DefenseError(f"publish of {_named(defense)} gave a template of which {faults[0]}.")
    return template.detach()


def _named(defense: object) -> str:
    return f"defence {type(defense).__name__}"


@contextmanager
def _asked(defense: object, model: DocumentModel | None = None) -> Iterator[None]:
    """While a defence is asked: its errors and settings are its own, and of somebody's own the model stays as it is."""
    watched = [(f"the model {model.name!r}", model.module)] if model is not None and is_own(defense) else []
    with left_alone(_named(defense), watched, error=DefenseError), blamed(_named(defense), defense, DefenseError):
        yield


def _require_numbers(defense: object, sent: Gradient) -> None:
    """DefenseError for nothing, and for what is not finite: no client sends it, and no attack could be measured."""
    odd = [name for name, value in sent.items() if not bool(torch.isfinite(value).all())]
    if not sent or odd:
        fault = f"values for {odd[0]} that are NaN or infinite" if odd else "nothing at all"
        raise DefenseError(
            f"protect of {_named(defense)} gave {fault}; expected finite numbers for one of the gradient's names or "
            "more."
        )


def _require_tensors(defense: object, method: str, made: object, like: Gradient, *, of: Collection[str]) -> None:
    """Tensors by name of the shapes that they have in ``like``, and all that are in ``of``."""
    fault = ""
    if not isinstance(made, Mapping):
        fault = type_said(made)
    elif lacking := [name for name in of if name not in made]:
        fault = f"nothing for {lacking[0]}"
    else:
        for name, value in made.items():
            if name not in like:
                fault = f"something for {name!r}, which the gradient does not have"
            elif not isinstance(value, Tensor) or value.shape != like[name].shape or value.dtype != like[name].dtype:
                fault = f"{type_said(value)} for {name}"
            if fault:
                break
    if fault:
        raise DefenseError(
            f"{method} of defence {type(defense).__name__} gave {fault}; expected a mapping from the gradient's names "
            "to tensors of floats, each of the shape that it has there, and of its type."
        )


def require(condition: bool, name: str, what: str, value: object, expected: str) -> None:
    """Raise DefenseError where a parameter makes no sense (NaN fails every comparison, so it is caught too)."""
    if not condition or (isinstance(value, float) and not math.isfinite(value)):
        raise DefenseError(f"defence {name!r}: {what} is {value!r}; expected {expected}.")
