"""How often chance tells so many more of a client's fields than of others': by permutations of whole pages."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

#: Up to how many permutations are all tried, or else so many are drawn, and how many together; and what is no
#: difference between two.
PERMUTED, AT_ONCE, ROUNDING = 9_999, 909, 1e-9


def p_value_of_fields(beside: Mapping[str, Any]) -> float:
    """How often chance tells so many more of the client's fields than pages of both at their rate: by permutations of
    whole pages, since what stands on one is read together; 1 where there are no others of their kind."""
    mine, others = (np.array([one for one in beside.get(key, ()) if one[1]]) for key in ("client", "pages"))
    if not len(mine) or not len(others):
        return 1.0
    held, of = np.concatenate([mine, others]).T
    more = held - held.sum() / of.sum() * of  # than at the rate of all, of which they are 0 together
    size, count, seen = len(mine), len(held), more[: len(mine)].sum()
    if size > len(others):
        size, more = len(others), -more
    if exact := comb(count, size) <= PERMUTED:
        drawn = [more[np.array(list(combinations(range(count), size)))].sum(axis=1)]
    else:
        rng = np.random.default_rng(0)
        orders = (rng.random((AT_ONCE, count)).argpartition(size - 1)[:, :size] for _ in range(PERMUTED // AT_ONCE))
        drawn = [more[order].sum(axis=1) for order in orders]
    as_far = sum(int((one >= seen - ROUNDING).sum()) for one in drawn)
    return as_far / comb(count, size) if exact else (1 + as_far) / (1 + PERMUTED)
