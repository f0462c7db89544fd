"""What linear algebra reads out of a gradient before, or instead of, any optimisation."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from docleak.models.base import Encoded


@dataclass(frozen=True)
class Condition:
    """A condition under which the algebra is exact: what was asked for, what was found, whether it holds."""

    name: str
    found: str
    holds: bool


@dataclass(frozen=True)
class Recovered:
    """The input as far as the gradient gives it away in closed form.

    ``inputs`` has one entry per example, in the form the model takes, fit for ``Knowledge.inputs``. ``pixels``
    (B, 3, H, W) in [0, 1] is None where the model has no closed form for them; ``determined`` (B, H, W) marks the
    pixels that are. ``conditions`` say when this is exact; ``exact`` is the adversary's own belief that the text is.
    """

    inputs: tuple[Encoded, ...]
    exact: bool
    conditions: tuple[Condition, ...]
    seconds: float
    pixels: Tensor | None = None
    determined: Tensor | None = None
