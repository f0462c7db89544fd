"""docleak's lower bounds on epsilon beside jax_privacy's (Apache-2.0), of the same scores, at the same delta.

    python3 -m venv JAX && JAX/bin/pip install jax_privacy==2.0.0
    python -m bench.league auditing --peer JAX/bin/python --source CHECKOUT    of google-deepmind/jax_privacy

Scores are of mechanisms whose epsilon is known, so that a bound above it is seen; and of docleak's own canaries.
Methods are paired by what they take for granted. A higher bound is tighter.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from typing import Any
from unittest import mock

import numpy as np
from scipy.stats import binomtest

from bench.league.ask import ask
from docleak.metrics import Estimate
from docleak.metrics.estimate import ratio_interval
from docleak.privacy.gaussian import epsilon_of
from docleak.report.table import Row

DELTA, ERROR = 1e-5, 0.05
SIZES, DRAWS = (50, 200, 1000, 4000), 12
#: Of how many draws its slowest strategy is asked.
FEW = 3
#: Name -> the epsilon at DELTA, and what is added to a member's coin.
STRENGTHS, LAPLACE, RESPONSE = (0.5, 1.0, 2.0, 4.0), (1.0, 3.0), (1.0, 3.0)
#: What is granted -> docleak's method, jax_privacy's, and whether the mechanism has to be Gaussian.
PAIRS = {
    "one run, any mechanism": ("one run", "one_run", False),
    "one run, Gaussian noise of some size": ("one run, Gaussian", "one_run_fdp", True),
    "independent trials, any mechanism": ("independent", "clopper_pearson", False),
    "independent trials, Gaussian noise of some size": ("independent, Gaussian", "gdp", True),
}
COUNTED = {
    "counts, Steinke": "one_run", "counts, f-DP": "one_run_fdp", "counts, the tightest": "one_run_fdp",
}  # fmt: skip
STRATEGIES = ("Bonferroni", "Split", "MultiSplit")
#: Its fit has no strategy: of the release 2.0.0, and of the repository at 8967688, which mended it.
FITS = ("2.0.0", "repository")
#: A side that is above the truth more often than ERROR allows, at this level, has no bound.
WRONG, NO_BOUND = 0.01, "theirs is no bound"
OWN = {"1,000 dirac canaries, epsilon 8": "dirac", "96 pages, epsilon 8": "page"}


def simulated() -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Scores and coins by the name of the set, and what each set is."""
    arrays: dict[str, Any] = {}
    about: dict[str, dict[str, Any]] = {}
    for size in SIZES:
        for kind, levels in (("Gaussian", STRENGTHS), ("Laplace", LAPLACE), ("randomised response", RESPONSE)):
            for level in levels:
                for draw in range(DRAWS):
                    rng = np.random.default_rng([size, int(10 * level), draw, len(kind)])
                    coins = rng.random(size) < 0.5
                    coins[:2] = True, False  # one of each
                    if kind == "Gaussian":
                        scores, truth = level * coins + rng.normal(size=size), epsilon_of(level, DELTA)
                    elif kind == "Laplace":
                        scores, truth = coins + rng.laplace(size=size) / level, level
                    else:
                        told = rng.random(size) < 1 / (1 + math.exp(-level))
                        scores, truth = np.where(told, coins, ~coins).astype(float), level
                    name = f"{kind} {level:g}, {size}, {draw}"
                    arrays |= {f"{name}/scores": scores, f"{name}/coins": coins}
                    about[name] = {"kind": kind, "size": size, "draw": draw, "truth": truth}
    return arrays, about


def counted() -> tuple[dict[str, Any], list[str]]:
    """44 numbers of canaries, guesses and right ones, as scores of which those guessed about are at 0 or above."""
    arrays: dict[str, Any] = {}
    names: list[str] = []
    for canaries in (48, 200, 1000, 5000):
        for one_in in (1, 3, 10):
            for share in (0.6, 0.75, 0.9, 1.0):
                guesses = max(canaries // one_in, 4)
                right = round(guesses * share)
                if right == canaries:
                    continue  # jax_privacy takes no set without an excluded canary
                included = right + (canaries - guesses) // 2
                scores = np.where(np.arange(canaries) < guesses, 1.0, -1.0)
                coins = np.zeros(canaries, bool)
                coins[:right] = True
                coins[guesses : guesses + included - right] = True
                name = f"{right} of {guesses} right, {canaries} canaries"
                arrays |= {f"{name}/scores": scores, f"{name}/coins": coins}
                names.append(name)
    return arrays, names


def canaries(kind: str) -> dict[str, Any]:
    """Scores and coins of docleak's own audit, as it hands them to its guesses: name of the score -> both."""
    from docleak.models.loading import load_model
    from docleak.studies.canaries import audit
    from docleak.studies.canaries.config import USUAL, CanaryConfig
    from docleak.studies.canaries.study import CanaryStudy

    config: CanaryConfig = CanaryStudy.of_options({"canary": kind, "canaries": USUAL[kind]}, {})
    bench = audit.Bench.of(load_model(config.model, device="cpu", seed=config.seed), config)
    kept: list[Any] = []

    def keeping(scores: Any, coins: Any, *rest: int, rng: Any) -> int:
        kept.append((scores, coins))
        return guess(scores, coins, *rest, rng=rng)

    guess = audit.right_guesses  # type: ignore[attr-defined]
    with mock.patch.object(audit, "right_guesses", keeping):
        audited = audit.audit_canaries(bench, config, config.plan_for(config.epsilon), seed=config.seed)
    return dict(zip(audited.right, kept, strict=True))


def measure(peer: str, source: str) -> dict[str, Any]:
    """Every bound of every set, by both sides, each a process of its own."""
    arrays, about = simulated()
    for shown, kind in OWN.items():
        for score, (scores, coins) in canaries(kind).items():
            name = f"docleak's {shown}: {score}"
            arrays |= {f"{name}/scores": np.asarray(scores, float), f"{name}/coins": coins}
            about[name] = {"kind": "canaries", "size": len(coins), "draw": 0, "truth": None}
    told, counts = counted()
    arrays |= told
    mine: dict[str, list[str]] = {name: list(COUNTED) for name in counts}
    theirs: dict[str, list[tuple[str, str]]] = {name: [(m, "explicit") for m in COUNTED.values()] for name in counts}
    for name, one in about.items():
        pairs = [(a, b) for a, b, gaussian in PAIRS.values() if not gaussian or one["kind"] in ("Gaussian", "canaries")]
        mine[name] = [a for a, _ in pairs]
        theirs[name] = [
            (b, how) for _, b in pairs for how in _hows(b)
            if how != "MultiSplit" or b == "clopper_pearson" or (one["draw"] < FEW and one["size"] <= 1000)
        ]  # fmt: skip
    job = {"delta": DELTA, "error": ERROR, "source": source}
    ours, _ = ask(sys.executable, "docleak_bounds", {**job, "sets": mine}, arrays)
    other, _ = ask(peer, "jax_privacy_bounds", {**job, "sets": theirs}, arrays)
    return {
        "sets": about, "counts": counts, "ours": _compact(ours["bounds"]), "theirs": _compact(other["bounds"]),
        "peak_mib": {"ours": ours["peak_mib"], "theirs": other["peak_mib"]},
    }  # fmt: skip


def _compact(bounds: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Set -> method (and strategy) -> [epsilon, seconds]."""
    by_set: dict[str, dict[str, list[float]]] = {}
    for one in bounds:
        method = f"{one['method']}, {one['how']}" if "how" in one else one["method"]
        by_set.setdefault(one["set"], {})[method] = [round(one["epsilon"], 6), round(one["seconds"], 6)]
    return by_set


def rows(numbers: dict[str, Any]) -> list[Row]:
    """Counts, what is granted by number of canaries, and docleak's own canaries."""
    memory = f"{numbers['peak_mib']['theirs']:.0f}, {numbers['peak_mib']['ours']:.0f}"
    table = [_of_counts(numbers, mine, method, memory) for mine, method in COUNTED.items()]
    for granted, (mine, method, _) in PAIRS.items():
        for size in SIZES:
            sets = [n for n, one in numbers["sets"].items() if one["size"] == size and one["kind"] != "canaries"]
            best: list[Row] = []
            for how in _hows(method):
                both = [n for n in sets if mine in numbers["ours"][n] and f"{method}, {how}" in numbers["theirs"][n]]
                if both:
                    best.append(_of_sets(numbers, both, granted, (mine, f"{method}, {how}"), memory))
            if method == "gdp":
                table += best
            else:
                table.append(max(best, key=lambda row: float(str(row.values["theirs"]))))
    for name, one in numbers["sets"].items():
        if one["kind"] == "canaries":
            methods = numbers["theirs"][name]
            assumptions = [
                g for g, pair in PAIRS.items() if f"{pair[1]}, {_hows(pair[1])[-1]}" in methods or pair[1] != "gdp"
            ]
            table += [_of_canaries(numbers, name, one, memory) for one in assumptions]
    return table


def _of_counts(numbers: dict[str, Any], mine: str, method: str, memory: str) -> Row:
    pairs = [(numbers["ours"][n][mine][0], numbers["theirs"][n][f"{method}, explicit"][0]) for n in numbers["counts"]]
    apart = [a - b for a, b in pairs]
    equal = all(abs(gap) <= 1e-4 * max(1, b) for gap, (_, b) in zip(apart, pairs, strict=True))
    verdict = "equal" if equal else "won" if min(apart) >= -1e-4 else "cannot tell"
    return Row("jax_privacy, auditing", {
        "case": f"counts of right guesses, {mine.partition(', ')[2]} ({method})", "budget": "the same counts",
        "measure": "epsilon at least, mean", "theirs": f"{statistics.mean(b for _, b in pairs):.3f}",
        "ours": f"{statistics.mean(a for a, _ in pairs):.3f}",
        "difference": f"from {min(apart):+.5f} to {max(apart):+.3f}", "memory": memory, "n": len(pairs),
        "verdict": verdict,
    })  # fmt: skip


def _of_sets(numbers: dict[str, Any], sets: Sequence[str], granted: str, methods: tuple[str, str], memory: str) -> Row:
    mine, theirs = methods
    pairs = [(numbers["ours"][n][mine], numbers["theirs"][n][theirs]) for n in sets]
    gained = np.array([a[0] - b[0] for a, b in pairs])
    low, high = ratio_interval(gained, np.ones(len(gained), np.int64), np.random.default_rng(0), 0.95, 2000, False)
    truths = [numbers["sets"][n]["truth"] for n in sets]
    above = [sum(pair[side][0] > t + 1e-6 for pair, t in zip(pairs, truths, strict=True)) for side in (0, 1)]
    seconds = [statistics.median(pair[side][1] for pair in pairs) for side in (0, 1)]
    return Row("jax_privacy, auditing", {
        "case": f"{numbers['sets'][sets[0]]['size']:,} canaries; {granted}", "budget": "the same scores",
        "measure": f"epsilon at least, mean ({theirs})", "theirs": f"{np.mean([b[0] for _, b in pairs]):.3f}",
        "ours": f"{np.mean([a[0] for a, _ in pairs]):.3f}",
        "difference": f"{Estimate(float(gained.mean()), low, high, len(gained)).text(3, signed=True)}; above the truth "
                      f"{above[0]}, theirs {above[1]}; {seconds[0]:.3f} s, theirs {seconds[1]:.3f} s",
        "memory": memory, "n": len(gained),
        "verdict": NO_BOUND if binomtest(above[1], len(sets), ERROR, "greater").pvalue < WRONG else verdict(low, high),
    })  # fmt: skip


def _hows(method: str) -> tuple[str, ...]:
    return FITS if method == "gdp" else STRATEGIES


def _of_canaries(numbers: dict[str, Any], name: str, granted: str, memory: str) -> Row:
    mine, method, _ = PAIRS[granted]
    ours, seconds = numbers["ours"][name][mine]
    hows = _hows(method)[-1:] if method == "gdp" else STRATEGIES
    asked = {how: numbers["theirs"][name].get(f"{method}, {how}") for how in hows}
    best = max((how for how in hows if asked[how]), key=lambda how: asked[how][0])
    theirs, other = asked[best]
    same = abs(ours - theirs) <= 1e-4
    return Row("jax_privacy, auditing", {
        "case": f"{name}; {granted}", "budget": "the same scores",
        "measure": f"epsilon at least ({method}, {best})", "theirs": f"{theirs:.3f}", "ours": f"{ours:.3f}",
        "difference": f"{ours - theirs:+.3f}; {seconds:.3f} s, theirs {other:.3f} s", "memory": memory,
        "n": 1, "verdict": "equal" if same else "won" if ours > theirs else "lost",
    })  # fmt: skip


def verdict(low: float | None, high: float | None, *, level: float = 0.0) -> str:
    """Won where all of it is above ``level``, lost where all is below."""
    if low is None or high is None or low <= level <= high:
        return "cannot tell"
    return "won" if low > level else "lost"
