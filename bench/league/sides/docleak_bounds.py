"""docleak's bounds of each set of scores, by what is granted."""

from __future__ import annotations

from typing import Any

import numpy as np
from exchange import answer, asked, timed

from docleak.privacy.empirical import Guesses, Scores, from_one_run, from_scores, lower_bound
from docleak.privacy.one_run import curve_refuted
from docleak.privacy.tradeoff import Gaussian, largest

job, arrays = asked()
delta, confidence = job["delta"], 1 - job["error"]


def curve(seen: Guesses) -> float:
    """f-DP of the Gaussian's curve alone."""
    family = Gaussian()

    def refuted(strength: float) -> bool:
        inverse = family.inverse(strength)
        return curve_refuted(seen.canaries, seen.guesses, seen.right, inverse, job["error"])

    return family.epsilon(largest(refuted, family.most), delta)


def bound(scores: Any, coins: Any, method: str) -> float:
    """One of docleak's bounds."""
    rng = np.random.default_rng(0)
    if method in ("independent", "independent, Gaussian"):
        family = Gaussian() if method.endswith("Gaussian") else None
        return from_scores(scores, coins, delta, rng=rng, confidence=confidence, family=family).epsilon
    if method.startswith("counts"):
        called = scores >= 0
        seen = Guesses(len(scores), int(called.sum()), int(coins[called].sum()))
        if method == "counts, Steinke":
            return from_one_run(seen.canaries, seen.guesses, seen.right, delta, confidence=confidence).epsilon
        if method == "counts, f-DP":
            return curve(seen)
        return lower_bound(seen, delta, confidence=confidence, family=Gaussian()).epsilon
    family = Gaussian() if method == "one run, Gaussian" else None
    return lower_bound(Scores(scores, coins), delta, confidence=confidence, family=family, rng=rng).epsilon


found = []
for name, wanted in job["sets"].items():
    scores, coins = arrays[f"{name}/scores"], arrays[f"{name}/coins"]
    for method in wanted:
        epsilon, seconds = timed(lambda m=method, s=scores, c=coins: bound(s, c, m))
        found.append({"set": name, "method": method, "epsilon": epsilon, "seconds": seconds})
answer({"bounds": found})
