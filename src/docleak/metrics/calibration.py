"""Are stated probabilities true? Brier score, expected calibration error and a reliability diagram's points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bin:
    """Fields with like probabilities: the mean of those, the share that came true, how many there are."""

    stated: float
    true: float
    count: int


def brier(stated: Floats, true: Floats) -> float:
    """Brier (1950): the mean of (p - outcome)^2 of arrays (N,); 0 is perfect, less is better."""
    _check(stated, true)
    return float(np.mean((stated - true) ** 2))


def reliability(stated: Floats, true: Floats, *, bins: int = 5) -> list[Bin]:
    """Bins of as equal a number of fields as possible, by ascending probability; empty ones are left out."""
    _check(stated, true)
    order = np.argsort(stated, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    return [Bin(float(stated[part].mean()), float(true[part].mean()), len(part)) for part in parts]


def calibration_error(stated: Floats, true: Floats, *, bins: int = 5) -> float:
    """ECE (Naeini et al., 2015) over bins of equal numbers: the mean distance of what is stated and what comes true.

    It is above 0 for perfect statements too, more so with few fields.
    """
    diagram = reliability(stated, true, bins=bins)
    return sum(one.count * abs(one.stated - one.true) for one in diagram) / len(stated)


def _check(stated: Sequence[float] | Floats, true: Sequence[float] | Floats) -> None:
    if not len(stated) or len(stated) != len(true) or np.min(stated) < 0 or np.max(stated) > 1:
        raise ValueError(f"{len(stated)} probabilities and {len(true)} outcomes; expected as many, 1+, within 0 to 1")
