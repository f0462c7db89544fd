"""Clip what each unit's own training changes, and add it up (Tito et al., 2024, Algorithm 1, lines 13-18)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from docleak.errors import PrivacyError
from docleak.models.base import trainable


class LeftOutError(Exception):
    """A run's own training failed: it contributes nothing, and the others go on. Nobody but the silo may learn why."""


#: Clipped differences stay so far below C, relatively, that rounding cannot carry one above it.
MARGIN = 1e-9


@dataclass(frozen=True)
class ClippedSum:
    """``total``: the sum over units of clipped differences w' - w, float64 by parameter; ``norms``: before clipping.

    A unit that was left out has norm 0, and one whose difference is not finite has infinity. The norms are private:
    they are for the silo's eyes only.
    """

    total: dict[str, Tensor]
    norms: tuple[float, ...]


def clipped_sum(
    module: nn.Module, weights: Mapping[str, Tensor], runs: Iterable[Callable[[], object]], clip_norm: float
) -> ClippedSum:
    """Let every run train ``module`` in place from ``weights``, and sum what each changes, clipped to ``clip_norm``.

    The L2 norm is over all trainable parameters together, a tied weight once, frozen ones not at all. Whatever the runs
    do, one of them moves the sum by at most ``clip_norm``. ``weights`` are the global model, float32 on the module's
    device, and are in the module again at the end. Beside them this holds one float64 copy of the trainable parameters,
    for any number of runs. A run that raises LeftOutError, or whose difference is not finite, contributes nothing: were
    it an error, one unit would decide whether the others are heard. Raises PrivacyError for a run that changes a buffer
    or a frozen weight: nobody clips those, and the next unit would start from what this one left there.
    """
    named = dict(trainable(module))
    total = {name: torch.zeros(p.shape, dtype=torch.float64, device=_doubles(p)) for name, p in named.items()}
    norms: list[float] = []
    fixed = _versions(module)
    for run in runs:
        _reset(named, weights)
        try:
            run()
        except LeftOutError:
            _reset(named, weights)
        _require_unchanged(fixed, _versions(module))
        norms.append(_add_clipped(total, named, weights, clip_norm))
    _reset(named, weights)
    return ClippedSum(total, tuple(norms))


@torch.no_grad()
def _reset(named: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor]) -> None:
    for name, parameter in named.items():
        parameter.copy_(weights[name])


def _versions(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Which tensor every buffer and frozen parameter is, and how often it was written to."""
    frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
    return {name: (id(tensor), tensor._version) for name, tensor in [*frozen, *module.named_buffers()]}


def _require_unchanged(before: Mapping[str, object], after: Mapping[str, object]) -> None:
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    if changed:
        raise PrivacyError(
            f"training on one unit changed {changed[0]!r} ({len(changed)} such), which is not clipped; expected only "
            "trainable weights to change. Freeze normalisation statistics (evaluation mode), or train them as weights."
        )


@torch.no_grad()
def _add_clipped(
    total: Mapping[str, Tensor], named: Mapping[str, nn.Parameter], weights: Mapping[str, Tensor], clip_norm: float
) -> float:
    changes = ((name, (p - weights[name]).to(total[name].device)) for name, p in named.items())
    norms = [torch.linalg.vector_norm(change, dtype=torch.float64) for _, change in changes]
    norm = float(torch.linalg.vector_norm(torch.stack(norms)))
    if not norm < float("inf"):
        return float("inf")
    scale = 1.0 if norm <= clip_norm * (1 - MARGIN) else clip_norm * (1 - MARGIN) / norm
    for name, parameter in named.items():
        total[name].add_((parameter - weights[name]).to(total[name].device), alpha=scale)
    return norm


def _doubles(parameter: Tensor) -> torch.device:
    """Where its sum is kept: beside it, but Apple's GPUs have no float64."""
    return torch.device("cpu") if parameter.device.type == "mps" else parameter.device
