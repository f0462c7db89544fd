"""Words at their places in the span of a first layer's gradient: DAGER's functions (Apache-2.0) as they are, or ours.

``job["source"]`` is a checkout of insait-institute/dager-gradient-inversion.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch
from exchange import answer, asked, timed

from docleak.attacks.gradients.algebra.subspace import Rows, Subspace, members
from scripts import beside_dager

torch.set_num_threads(1)
job, _ = asked()
if job["side"] == "DAGER":
    sys.path[:0] = [job["source"]]
    functional: Any = import_module("utils.functional")


def taken(rows: torch.Tensor, candidates: torch.Tensor) -> set[int]:
    """The numbers of the candidates (n, d) that a side takes."""
    if job["side"] == "docleak":
        return set(members(Subspace.of([Rows(rows)]), candidates).taken.nonzero().flatten().tolist())
    _, basis = functional.get_layer_decomp(rows)
    return set((functional.check_if_in_span(basis, candidates) < beside_dager.THRESHOLD).nonzero().flatten().tolist())


values, each = [], []
for seed in range(job["seeds"]):
    gradient, at_places, true = getattr(beside_dager, job["model"])(seed)
    given = gradient, at_places.flatten(0, 1).clone()
    read, seconds = timed(lambda given=given: taken(*given))
    values.append(len(read & true) - len(read - true))
    each.append(seconds)
answer({"values": values, "each": each, "seconds": sum(each) / len(each)})
