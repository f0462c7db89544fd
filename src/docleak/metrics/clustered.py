"""Intervals of an attack on documents, of which several have one provider: such stand or fall together.

Where all of a provider's documents are on one side, a model that happens to be good at its pages looks like membership.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from docleak.metrics.estimate import DRAWS_AT_ONCE, Estimate, expanded_tail, ratio_of, share_ends
from docleak.metrics.membership import LOW_RATES, Bools, Floats, alike_ends

#: Where one provider has all documents of a side, and none of the other's.
ALONE = "all documents of a side have one provider, so that its documents may differ for that"


def over_providers(
    rates: Mapping[str, Estimate], scores: Floats, members: Bools, providers: Sequence[str], *,
    rng: np.random.Generator, level: float, resamples: int,
) -> dict[str, Estimate]:  # fmt: skip
    """``rates`` of ``membership_rates`` (auc and tpr_at_*) with the wider of two intervals: over documents, and over
    ``providers`` ("" is nobody's), which are resampled whole, those of one side, of the other and of both apart.

    Nothing changes where no provider has two documents on a side, or where one alone has all of both.
    """
    names = np.array([name or f" {number}" for number, name in enumerate(providers)])
    inside, outside = set(names[members]), set(names[~members])
    fewest, apart = min(len(inside), len(outside)), inside ^ outside
    if (len(inside), len(outside)) == (members.sum(), (~members).sum()) or (fewest == 1 and not apart):
        return dict(rates)
    if fewest == 1:
        return {name: replace(one, low=None, high=None, why=one.why or ALONE) for name, one in rates.items()}
    weights = _drawn(names, [inside - outside, outside - inside, inside & outside], rng, resamples)
    tail, widened = expanded_tail(fewest, level), {}
    for name, one in rates.items():
        if one.value is None or one.low is None or one.high is None:
            widened[name] = one
            continue
        draws = np.concatenate([
            _of(name, scores, members, part) for part in np.array_split(weights, 1 + weights.size // DRAWS_AT_ONCE)
        ])  # fmt: skip
        draws = draws[np.isfinite(draws)]
        low, high = (one.value, one.value) if one.value in (0.0, 1.0) else np.quantile(draws, (tail, 1 - tail))
        low, high = share_ends(float(low), float(high), fewest, level)
        widened[name] = replace(one, low=min(low, one.low), high=max(high, one.high), groups=len(inside | outside))
    sides = [(scores[members], len(inside)), (scores[~members], len(outside))]
    return {name: alike_ends(one, sides, level) if name == "auc" else one for name, one in widened.items()}


def share_over_providers(
    share: Estimate, hits: Floats, providers: Sequence[str], *, rng: np.random.Generator, level: float, resamples: int
) -> Estimate:
    """``share``, the mean of ``hits`` (documents,), with the wider of two intervals: its own, over documents, and one
    over ``providers`` ("" is nobody's), which are resampled whole. Nothing changes where none has two documents."""
    groups: dict[str, list[float]] = {}
    for number, (name, hit) in enumerate(zip(providers, hits, strict=True)):
        groups.setdefault(name or f" {number}", []).append(float(hit))
    if len(groups) == len(hits):
        return share
    over = ratio_of(groups.values(), rng, level=level, resamples=resamples)
    if None in (over.low, over.high, share.low, share.high):
        return replace(share, low=None, high=None, groups=len(groups), why=share.why or ALONE)
    assert over.low is not None and over.high is not None and share.low is not None and share.high is not None
    return replace(share, low=min(share.low, over.low), high=max(share.high, over.high), groups=len(groups))


def _drawn(
    names: NDArray[np.str_], strata: Sequence[set[str]], rng: np.random.Generator, resamples: int
) -> NDArray[np.float64]:
    """(R, documents): how often each document's provider is drawn."""
    weights = np.zeros((resamples, len(names)))
    for stratum in strata:
        if stratum:
            counts = rng.multinomial(len(stratum), np.full(len(stratum), 1 / len(stratum)), size=resamples)
            for column, name in enumerate(sorted(stratum)):
                weights[:, names == name] = counts[:, [column]]
    return weights


def _of(name: str, scores: Floats, members: Bools, weights: Floats) -> Floats:
    """A rate of each row of weights (R, documents); not finite where a side has no document."""
    inside, outside = weights[:, members], weights[:, ~members]
    mine, theirs = scores[members], scores[~members]
    with np.errstate(invalid="ignore"):
        if name == "auc":
            above = (mine[:, None] > theirs) + 0.5 * (mine[:, None] == theirs)
            return np.asarray(((inside @ above) * outside).sum(1) / (inside.sum(1) * outside.sum(1)))
        allowed = next(rate for rate in LOW_RATES if name == f"tpr_at_{100 * rate:.0f}_fpr")
        order = np.argsort(-theirs, kind="stable")
        passed = outside[:, order].cumsum(1) > np.floor(allowed * outside.sum(1) + 1e-9)[:, None]
        threshold = theirs[order][passed.argmax(1)]
        return np.asarray(((mine > threshold[:, None]) * inside).sum(1) / inside.sum(1))
