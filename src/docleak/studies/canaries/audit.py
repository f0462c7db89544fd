"""The audit in one run: canary providers, each trained on by a coin, and what their guesses prove about epsilon.

Steinke, Nasr & Jagielski (2023), with providers as the unit: a canary is a provider of its own with one synthetic page,
of a company that is on no other page; or, dirac, one that moves a weight of its own (Nasr et al., 2023, section 5). The
training is FL-PROVIDER-DP's own code, with the canaries among its providers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docleak.attacks.weights.canaries import (
    CanaryView,
    Floats,
    Weights,
    dirac_scores,
    loss_scores,
    losses,
    move_weight,
    own_differences,
    quiet_places,
    weight_scores,
)
from docleak.documents.issuers import FIRST, LAST, make_issuers
from docleak.documents.page import Page
from docleak.models.base import DocumentModel
from docleak.privacy.accounting import Guarantee
from docleak.privacy.empirical import Guesses, LowerBound, Scores, held_against, jointly, lower_bound, right_guesses
from docleak.privacy.ledger import Ledger
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.privacy.tradeoff import family_of
from docleak.studies.canaries.config import DIRAC, CanaryConfig
from docleak.training.federated.fedopt import FedOpt, ServerState
from docleak.training.federated.local import parameters_of, set_parameters
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.private.rounds import Instead, train_privately

SILO = "all"
#: How many times too long a dirac canary's difference is: were it not clipped, it would be seen.
TOO_LONG = 10.0


@dataclass(frozen=True, eq=False)
class Bench:
    """What every audit of one model shares: its weights, the pages, and what can be computed of the canaries before.

    ``canaries[i]`` are the pages of canary i, ``losses`` (m,) of the start on them, ``differences`` (m, d) from it. Of
    dirac canaries there are ``places`` (m,) instead, and ``canaries`` only name them.
    """

    model: DocumentModel
    start: Weights
    canaries: tuple[tuple[Page, ...], ...]
    others: tuple[Page, ...]
    losses: Floats
    differences: NDArray[np.float32]
    places: NDArray[np.intp] | None = None

    @classmethod
    def of(cls, model: DocumentModel, config: CanaryConfig) -> Bench:
        """Canaries are the last synthetic providers, others the first that no shipped checkpoint has seen; what dirac
        canaries know of training is one public page, of the last of them."""

        def pages(first: int, count: int) -> list[Page]:
            made = make_issuers(range(first, first + count), [1] * count, seed=config.seed)
            return [replace(page, questions=page.questions[: config.questions]) for page in map(model.fit, made)]

        start, others = parameters_of(model), tuple(pages(FIRST, config.others))
        if config.canary == DIRAC:
            (public,) = pages(LAST - 1, 1)
            moved = own_differences(model, [[public]], config.local, config.clip_norm, start)
            rng = np.random.default_rng([config.seed, 0xD1AC])
            named = tuple((replace(public, provider=f"canary {i}"),) for i in range(config.canaries))
            return cls(model, start, named, others, np.empty(0), moved, quiet_places(moved, config.canaries, rng=rng))
        canaries = tuple((page,) for page in pages(LAST - config.canaries, config.canaries))
        return cls(
            model, start, canaries, others, losses(model, canaries, config.local, start),
            own_differences(model, canaries, config.local, config.clip_norm, start),
        )  # fmt: skip


@dataclass(frozen=True)
class CanaryAudit:
    """``lower`` by score; together they hold with the configured confidence. ``upper`` is the accountant's claim.

    ``lower`` take the claimed mechanism's curve, with unknown noise, for granted, where it has one. ``also`` are bounds
    from the same scores that take nothing for granted, or more; each holds by itself. ``most`` is what as many guesses
    could have shown, had all been right.
    """

    lower: Mapping[str, LowerBound]
    right: Mapping[str, int]
    upper: Guarantee
    included: int
    threat: str
    most: float
    also: Mapping[str, LowerBound] = field(default_factory=dict)

    @property
    def best(self) -> LowerBound:
        """The highest of the lower bounds, with the confidence that it has after the choice."""
        return max(jointly(self.lower).values(), key=lambda bound: bound.epsilon)

    def check(self) -> None:
        """ContradictionError if a lower bound is above the accountant's claim."""
        for bound in jointly(self.lower).values():
            held_against(bound, self.upper)

    def as_json(self) -> dict[str, Any]:
        """For machines; an infinite epsilon is null."""
        upper = None if np.isinf(self.upper.epsilon) else self.upper.epsilon
        return {
            "lower": {name: asdict(bound) for name, bound in self.lower.items()},
            "also": {name: asdict(bound) for name, bound in self.also.items()},
            "right": dict(self.right), "included": self.included, "epsilon_at_least": self.best.epsilon,
            "most": self.most, "epsilon_claimed": upper, "claim": self.upper.sentence(), "threat": self.threat,
        }  # fmt: skip


def audit_canaries(
    bench: Bench,
    config: CanaryConfig,
    plan: DpPlan,
    *,
    seed: int,
    trained_by: DpPlan | None = None,
) -> CanaryAudit:
    """Toss the coins, train, guess, and bound: ``plan`` is what is claimed, and what is trained by.

    Every score guesses for itself, and fails with an equal share of what the confidence leaves.
    ``seed`` draws coins and noise (a guarantee would need secret ones; an audit must be repeatable). ``trained_by``
    trains by another plan than the claimed one: for tests of the audit. ``CanaryAudit.check`` compares both bounds.
    """
    rng = np.random.default_rng([seed, 0xCA7A])
    coins = rng.random(config.canaries) < 0.5
    inside = [page for pages, coin in zip(bench.canaries, coins, strict=True) if coin for page in pages]
    far = TOO_LONG * plan.clip_norm
    moves = {} if bench.places is None else {
        pages[0].provider: partial(move_weight, place=int(place), by=far)
        for pages, place in zip(bench.canaries, bench.places, strict=True)
    }  # fmt: skip
    released = release(bench, [*bench.others, *inside], trained_by or plan, config.local, seed=seed, instead=moves)
    if not config.every_round:
        released = [released[0], released[-1]]
    between = 1 if config.every_round else config.rounds
    std = plan.noise_std(1)
    view = CanaryView(
        bench.canaries, released, between, config.local, plan.clip_norm, plan.denominator, std, bench.places
    )
    scores = {DIRAC: dirac_scores(view)} if bench.places is not None else {
        "loss": loss_scores(bench.model, view, at_start=bench.losses),
        "weights": weight_scores(bench.model, view, at_start=bench.differences),
    }  # fmt: skip
    said_in = config.guesses // 2
    confidence = 1 - (1 - config.confidence) / len(scores)
    right = {
        name: right_guesses(score, coins, said_in, config.guesses - said_in, rng=rng) for name, score in scores.items()
    }
    seen = {name: Guesses(config.canaries, config.guesses, count) for name, count in right.items()}
    bound = partial(lower_bound, delta=config.delta, confidence=confidence)
    family = family_of(plan.mechanism)
    lower = {name: bound(guesses, family=family) for name, guesses in seen.items()}
    most = bound(Guesses(config.canaries, config.guesses, config.guesses), family=family).epsilon
    also = {f"{name}, any mechanism": bound(guesses) for name, guesses in seen.items()}
    if bench.places is not None and std and plan.mechanism.rate == 1:
        also[f"{DIRAC}, fitted"] = bound(Scores(scores[DIRAC], coins), normal=True)
    return CanaryAudit(lower, right, plan.guarantee(), int(coins.sum()), view.text, most, also)


def release(
    bench: Bench,
    pages: Sequence[Page],
    plan: DpPlan,
    local: LocalPlan,
    *,
    seed: int,
    instead: Instead = MappingProxyType({}),
) -> list[Weights]:
    """The global models of a private training on ``pages``, the start first; ``bench.model`` holds the last.

    ``instead`` is what some providers do in the place of training.
    """
    released: list[Weights] = []

    def keep(ledger: Ledger, state: ServerState) -> None:
        released.append({name: value.astype(np.float32) for name, value in state.parameters.items()})

    set_parameters(bench.model, dict(bench.start))
    train_privately(
        bench.model, {SILO: pages}, plan, local, FedOpt(), on_round=keep,
        randomness=lambda name: Randomness.seeded(seed, name), instead=instead,
    )  # fmt: skip
    return [*released, parameters_of(bench.model)]
