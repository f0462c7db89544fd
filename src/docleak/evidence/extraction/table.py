"""What a game on disk shows: Table 5's row with intervals, from the fields' records alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from docleak.attacks.weights import PUBLISHED_METRIC, Attempt, choose, plausibility
from docleak.attacks.weights.membership import perplexity
from docleak.errors import RunError
from docleak.metrics.estimate import Estimate
from docleak.metrics.extraction import EPSILON, Match, match, multi_shot_table, one_shot_table
from docleak.runs.run import Run

#: What the terminal prints, in order: name in the table -> words.
ROWS = {
    "improvement_factor": "IpF (1: no better than public data)",
    "perfect": "one-shot, fields read exactly",
    "baseline_perfect": "  the same, public data only",
    "hamming": "one-shot, tokens wrong",
    "baseline_hamming": "  the same, public data only",
    "hamming_aac": "multi-shot, HamAAC",
    "baseline_hamming_aac": "  the same, public data only",
    "accuracy_auc": "multi-shot, AccAUC",
    "baseline_accuracy_auc": "  the same, public data only",
    "accuracy_at_1%": "multi-shot, AccAt 1 %",
    "accuracy_at_5%": "multi-shot, AccAt 5 %",
    "accuracy_at_100%": "multi-shot, AccAt 100 %",
    "baseline_accuracy_at_100%": "  the same, public data only",
}


@dataclass(frozen=True)
class Ranked:
    """A field with its most plausible reconstruction; the owner sees both."""

    name: str
    key: str
    value: str
    guess: str
    score: float
    match: Match


@dataclass(frozen=True)
class GameTable:
    """``estimates`` by the names of ROWS and more; ``fields`` from the most plausible down.

    ``baseline`` are the same fields as public data alone read them, the likeliest first.
    """

    estimates: Mapping[str, Estimate]
    fields: tuple[Ranked, ...]
    calls: int
    seconds: float
    baseline: tuple[Ranked, ...] = ()


def read_table(run: Run, *, rng: np.random.Generator) -> GameTable:
    """Recompute everything from the run's units. RunError if no field is finished."""
    units = [unit for unit in run.units() if "attempts" in unit]
    metric = str(run.config.get("metric", PUBLISHED_METRIC))
    if not units:
        raise RunError(f"{run.path} has no finished field of a CDMI game. Run docleak attack cdmi first.")
    documents = [str(unit["document"]) for unit in units]
    ours, theirs = ([_first(unit, side) for unit in units] for side in ("attempts", "baseline"))
    chosen = [_ranked(unit, "attempts", partial(plausibility, metric=metric)) for unit in units]
    guessed = [_ranked(unit, "baseline", _likely) for unit in units]
    ranked, without = (
        multi_shot_table([f.match for f in fields], [f.score for f in fields], documents, rng=rng)
        for fields in (chosen, guessed)
    )
    estimates = {
        **one_shot_table(ours, theirs, documents, rng=rng),
        **ranked,
        **{f"baseline_{name}": estimate for name, estimate in without.items()},
    }
    calls, seconds = (sum(unit[key] for unit in units) for key in ("calls", "seconds"))
    surest, likeliest = (tuple(sorted(fields, key=lambda field: -field.score)) for fields in (chosen, guessed))
    return GameTable(estimates, surest, int(calls), float(seconds), likeliest)


def _likely(attempt: Attempt) -> float:
    """How the baseline ranks: without a target there is no membership to infer, only what is likely."""
    return -perplexity(attempt.public)


def _first(unit: Mapping[str, Any], side: str) -> Match:
    """The one-shot variant is the first attempt: attempts are drawn alike."""
    return match(unit["tokens"], unit[side][0]["tokens"])


def _ranked(unit: Mapping[str, Any], side: str, score: Callable[[Attempt], float]) -> Ranked:
    attempts = [Attempt(tuple(a["tokens"]), tuple(a["target"]), tuple(a["public"])) for a in unit[side]]
    best = choose(attempts, score)
    return Ranked(
        name=str(unit["unit"]),
        key=str(unit["key"]),
        value=str(unit["value"]),
        guess=str(unit[side][best]["text"]),
        score=score(attempts[best]),
        match=match(unit["tokens"], attempts[best].tokens),
    )


def as_text(table: GameTable, *, shown: int = 5) -> str:
    """The numbers, and the fields that the adversary would be surest of, for a terminal."""
    lines = [f"{words:38} {_estimate(table.estimates[name])}" for name, words in ROWS.items()]
    some = table.estimates["improvement_factor"]
    lines += [
        "",
        f"{some.n} fields of {some.groups} documents; 95 % intervals, bootstrap over documents; epsilon of "
        f"IpF {EPSILON:g}; {table.calls} model calls in {table.seconds:.0f} s.",
        "",
        "Surest reconstructions (field: read | true)",
    ]
    lines += [f"  {field.key}: {field.guess} | {field.value}" for field in table.fields[:shown]]
    return "\n".join(lines)


def _estimate(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    interval = "" if estimate.low is None else f"  [{estimate.low:.3f}, {estimate.high:.3f}]"
    return f"{estimate.value:.3f}{interval}"


def as_json(table: GameTable) -> dict[str, object]:
    """The estimates as plain values."""
    return {name: e.__dict__ for name, e in table.estimates.items()}
