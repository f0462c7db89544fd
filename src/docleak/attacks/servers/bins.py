"""Bins: rows of one layer that differ in nothing but when they begin to count, so that their differences are single
inputs (Fowl et al., Robbing the Fed, 2022, section 3; our wording of it with a ratio is for layers without a bias).

A row fires for inputs y with h·y > t c·y, where c·y is 1 in layers with a bias. If every row passes the same gradient
on, two rows that are neighbours in t differ by the inputs between the two thresholds, and by nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor

#: Of what the largest difference is, below which a bin counts as empty: rounding of float32 sums.
EMPTY = 1e-6


def edges(values: Tensor, count: int) -> Tensor:
    """``count`` ascending thresholds, (count,), that cut ``values`` (n,) of public inputs into equal shares.

    The outermost are beyond all of them; where there are more bins than values, they are spread between them.
    """
    scale = (
        float(values.abs().max().clamp_min(1e-300)) * 1e-6
    )  # values nearer than this are the same, rounded otherwise
    known = torch.unique((values.double() / scale).round()) * scale
    if len(known) < 2:
        known = torch.stack([known[0] - 1, known[0] + 1])
    places = torch.linspace(0, len(known) - 1, count, dtype=torch.float64)
    low = places.floor().long().clamp_max(len(known) - 2)
    cut: Tensor = known[low] + (places - low) * (known[low + 1] - known[low])
    margin = (known[-1] - known[0]) / len(known)
    cut[0] -= margin
    # a public value itself lies within a bin, not on its edge
    cut[1:-1] += 0.5 * torch.diff(cut).min() * 0.1
    return cut


def singles(rows: Tensor) -> Tensor:
    """Differences of neighbouring rows (k, n), the last row itself at the end: the sum of the inputs of each bin."""
    return torch.cat([rows[:-1] - rows[1:], rows[-1:]])


def filled(sums: Tensor) -> Tensor:
    """Which bins (k,) hold more than rounding, of sums (k, n)."""
    sizes: Tensor = sums.norm(dim=1)
    return sizes.gt(EMPTY * float(sizes.max()))
