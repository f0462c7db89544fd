"""What a game on disk shows: Table 5's row with intervals, from the fields' records alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from docleak.attacks.weights import Attempt, choose, plausibility
from docleak.attacks.weights.membership import perplexity
from docleak.documents.names import provider_key
from docleak.errors import RunError
from docleak.metrics.estimate import Estimate
from docleak.metrics.extraction import Match, match, multi_shot_table, one_shot_table
from docleak.runs.run import Run

#: IpF with the interval of resampled values instead of documents, for one that stands on many pages is read once; only
#: where some value is on several of the fields.
OF_VALUES = "improvement_factor_of_values"
#: In an attempt's record, how plausible a metric of one's own found it.
SCORE = "plausibility"


@dataclass(frozen=True)
class Ranked:
    """A field with its most plausible reconstruction; the owner sees both. ``document`` "" is one of its own."""

    name: str
    key: str
    value: str
    guess: str
    score: float
    match: Match
    document: str = ""


@dataclass(frozen=True)
class GameTable:
    """``estimates`` by name; ``fields`` from the most plausible down.

    ``baseline`` are the same fields as public data alone read them, the likeliest first.
    """

    estimates: Mapping[str, Estimate]
    fields: tuple[Ranked, ...]
    calls: int
    seconds: float
    baseline: tuple[Ranked, ...] = ()


def fields_of(run: Run, *, shadow: bool = False) -> list[dict[str, Any]]:
    """The finished fields of a game, or of the adversary's own one beside it."""
    return [unit for unit in run.units() if "attempts" in unit and unit["shadow"] == shadow]


def read_table(run: Run, *, rng: np.random.Generator) -> GameTable:
    """Recompute everything from the run's units. RunError if no field is finished."""
    units = fields_of(run)
    if not units:
        raise RunError(f"{run.path} has no finished field of a CDMI game. Run docleak attack cdmi first.")
    metric, documents = str(run.config["metric"]), [str(unit["document"]) for unit in units]
    ours, theirs = (first_matches(units, side) for side in ("attempts", "baseline"))
    chosen = [_ranked(unit, "attempts", partial(score_of, metric=metric)) for unit in units]
    guessed = [_ranked(unit, "baseline", likely) for unit in units]
    ranked, without = (
        multi_shot_table([f.match for f in fields], [f.score for f in fields], documents, rng=rng)
        for fields in (chosen, guessed)
    )
    estimates = {
        **one_shot_table(ours, theirs, documents, rng=rng, epsilon=float(run.config["ipf_epsilon"])),
        **ranked,
        **{f"baseline_{name}": estimate for name, estimate in without.items()},
    }
    epsilon, values = float(run.config["ipf_epsilon"]), [provider_key(field.value) for field in chosen]
    if len(set(values)) < len(values):
        by_value = one_shot_table(ours, theirs, values, rng=np.random.default_rng(0), epsilon=epsilon)
        estimates[OF_VALUES] = by_value["improvement_factor"]
    calls, seconds = (sum(unit[key] for unit in units) for key in ("calls", "seconds"))
    surest, likeliest = (tuple(sorted(fields, key=lambda field: -field.score)) for fields in (chosen, guessed))
    return GameTable(estimates, surest, int(calls), float(seconds), likeliest)


def published(card: Mapping[str, Any], criterion: str) -> Mapping[str, Any]:
    """The epoch of a trained target's card that is attacked: of ``criterion``, or the last."""
    number = criterion.removeprefix("epoch-")
    there = next((epoch for epoch in card["epochs"] if str(epoch["number"]) == number), card["epochs"][-1])
    return dict(card["best"].get(criterion, there))


def first_matches(units: Sequence[Mapping[str, Any]], side: str) -> list[Match]:
    """The one-shot variant is the first attempt: attempts are drawn alike."""
    return [match(unit["tokens"], unit[side][0]["tokens"]) for unit in units]


def attempt_of(record: Mapping[str, Any]) -> Attempt:
    """An attempt of its record."""
    return Attempt(tuple(record["tokens"]), tuple(record["target"]), tuple(record["public"]))


def score_of(record: Mapping[str, Any], metric: str) -> float:
    """How plausible an attempt is. What a metric of one's own said stands in its record: reading a run imports nothing
    that the run names."""
    return float(record[SCORE]) if SCORE in record else plausibility(attempt_of(record), metric)


def likely(record: Mapping[str, Any]) -> float:
    """How the baseline ranks: without a target there is no membership to infer, only what is likely."""
    return -perplexity(record["public"])


def _ranked(unit: Mapping[str, Any], side: str, score: Callable[[Mapping[str, Any]], float]) -> Ranked:
    attempts = unit[side]
    best = choose(attempts, score)
    return Ranked(
        name=str(unit["unit"]),
        key=str(unit["key"]),
        value=str(unit["value"]),
        guess=str(attempts[best]["text"]),
        score=score(attempts[best]),
        match=match(unit["tokens"], attempts[best]["tokens"]),
        document=str(unit["document"]),
    )
