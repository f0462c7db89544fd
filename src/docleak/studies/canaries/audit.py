"""The audit in one run: canary providers, each trained on by a coin, and what their guesses prove about epsilon.

Steinke, Nasr & Jagielski (2023), with providers as the unit: a canary is a provider of its own with one synthetic page,
of a company that is on no other page. The training is FL-PROVIDER-DP's own code, with the canaries among its providers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from docleak.attacks.weights.canaries import (
    CanaryView,
    Floats,
    Weights,
    loss_scores,
    losses,
    own_differences,
    weight_scores,
)
from docleak.documents.issuers import FIRST, LAST, make_issuers
from docleak.documents.page import Page
from docleak.documents.ranges import SEED, SOME, Range
from docleak.errors import PrivacyError
from docleak.models.base import DocumentModel
from docleak.options import option
from docleak.privacy.accounting import Guarantee
from docleak.privacy.budget import noise_for
from docleak.privacy.empirical import LowerBound, from_one_run, held_against, right_guesses
from docleak.privacy.ledger import Ledger
from docleak.privacy.mechanism import Mechanism, probability
from docleak.privacy.plan import DpPlan
from docleak.privacy.randomness import Randomness
from docleak.training.federated.fedopt import FedOpt, ServerState
from docleak.training.federated.local import LocalPlan, parameters_of, set_parameters
from docleak.training.private.rounds import train_privately

SILO = "all"
WITHOUT_NOISE = "without noise"


@dataclass(frozen=True)
class CanaryConfig:
    """``canaries`` by fair coins beside ``others``, who always take part; half of the ``guesses`` say "in".

    ``guesses`` are fixed here, before any score is seen. M is the number of the others: public, and no coin moves it.
    ``every_round``: the adversary sees the model after every round, as a client does; else the final one. A provider
    has one page with at most so many ``questions``, and takes one step of AdamW on all of them. Audited are a training
    of ``model`` without noise, and one that claims ``epsilon``.
    """

    model: str = option("vt5-start", "Shipped name, directory or hub name of the model to start from.")
    epsilon: float = option(8.0, "What the private training claims.", range=Range(0, 1e9, above=True))
    canaries: int = option(96, "Canary providers; a fair coin includes each.", range=Range(2, 100_000))
    others: int = option(8, "Other providers, always included; the plan's constant M.", range=Range(1, 100_000))
    guesses: int = option(64, "Canaries to guess about. Without it: two thirds of them.", range=Range(2, 100_000))
    rounds: int = option(1, "Rounds of the training.", range=SOME)
    unit_rate: float = option(
        1.0, "Probability that a provider trains in a round, such as 0.2 or 50/340.",
        read=partial(probability, what="unit rate"),
    )  # fmt: skip
    clip_norm: float = option(
        0.5, "C: each provider's difference is clipped to this norm.", range=Range(0, 1e6, above=True)
    )
    delta: float = option(1e-5, "Delta of both bounds; far below 1/canaries.", range=Range(0, 1, above=True))
    confidence: float = option(0.95, "With which the lower bounds hold.", range=Range(0.5, 0.999999))
    every_round: bool = option(False, "The adversary sees the model after every round.")
    questions: int = 4
    learning_rate: float = option(1e-3, "Of a provider's one step of AdamW.", range=Range(0, 1e3))
    seed: int = option(0, "Seed of pages, coins and noise.", range=SEED)

    def __post_init__(self) -> None:
        most = LAST - FIRST
        faults = []
        if self.canaries < 2 or self.others < 1 or self.canaries + self.others > most:
            faults.append(f"{self.canaries} canaries and {self.others} others; expected 2, 1, and {most} together")
        if not 2 <= self.guesses <= self.canaries:
            faults.append(f"{self.guesses} guesses; expected at least 2, and no more than canaries")
        if not 0 < self.confidence < 1:
            faults.append(f"confidence is {self.confidence}; expected a probability such as 0.95")
        if faults:
            raise PrivacyError("; ".join(faults) + ".")

    @property
    def local(self) -> LocalPlan:
        """What a provider does in a round."""
        return LocalPlan(batch_size=self.questions, learning_rate=self.learning_rate, max_steps=1, dropout=False)

    @property
    def plans(self) -> dict[str, DpPlan]:
        """The trainings that are audited, by name: the one without noise is the control."""
        return {WITHOUT_NOISE: self.plan(0.0), f"epsilon {self.epsilon:g}": self.plan_for(self.epsilon)}

    def plan(self, noise_multiplier: float) -> DpPlan:
        """The privacy plan of the audited training."""
        mechanism = Mechanism(noise_multiplier, self.rounds, self.unit_rate)
        return DpPlan(mechanism, self.clip_norm, self.others, self.delta)

    def plan_for(self, epsilon: float) -> DpPlan:
        """The same, with the least noise that keeps to ``epsilon``."""
        return self.plan(noise_for(self.plan(1.0).mechanism, epsilon, self.delta).mechanism.noise_multiplier)


@dataclass(frozen=True, eq=False)
class Bench:
    """What every audit of one model shares: its weights, the pages, and what can be computed of the canaries before.

    ``canaries[i]`` are the pages of canary i, ``losses`` (m,) of the start on them, ``differences`` (m, d) from it.
    """

    model: DocumentModel
    start: Weights
    canaries: tuple[tuple[Page, ...], ...]
    others: tuple[Page, ...]
    losses: Floats
    differences: NDArray[np.float32]

    @classmethod
    def of(cls, model: DocumentModel, config: CanaryConfig) -> Bench:
        """Canaries are the last synthetic providers, others the first that no shipped checkpoint has seen."""

        def pages(first: int, count: int) -> list[Page]:
            made = make_issuers(range(first, first + count), [1] * count, seed=config.seed)
            return [replace(page, questions=page.questions[: config.questions]) for page in map(model.fit, made)]

        canaries = tuple((page,) for page in pages(LAST - config.canaries, config.canaries))
        start = parameters_of(model)
        return cls(
            model, start, canaries, tuple(pages(FIRST, config.others)), losses(model, canaries, config.local, start),
            own_differences(model, canaries, config.local, config.clip_norm, start),
        )  # fmt: skip


@dataclass(frozen=True)
class CanaryAudit:
    """``lower`` by score; together they hold with the configured confidence. ``upper`` is the accountant's claim."""

    lower: Mapping[str, LowerBound]
    right: Mapping[str, int]
    upper: Guarantee
    included: int
    threat: str

    @property
    def best(self) -> LowerBound:
        """The highest of the lower bounds."""
        return max(self.lower.values(), key=lambda bound: bound.epsilon)

    def check(self) -> None:
        """ContradictionError if a lower bound is above the accountant's claim."""
        for bound in self.lower.values():
            held_against(bound, self.upper)

    def as_json(self) -> dict[str, Any]:
        """For machines; an infinite epsilon is null."""
        upper = None if np.isinf(self.upper.epsilon) else self.upper.epsilon
        return {
            "lower": {name: asdict(bound) for name, bound in self.lower.items()},
            "right": dict(self.right), "included": self.included, "epsilon_at_least": self.best.epsilon,
            "epsilon_claimed": upper, "claim": self.upper.sentence(), "threat": self.threat,
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
    released = release(bench, [*bench.others, *inside], trained_by or plan, config.local, seed=seed)
    if not config.every_round:
        released = [released[0], released[-1]]
    between = 1 if config.every_round else config.rounds
    std = plan.noise_std(1)
    view = CanaryView(bench.canaries, released, between, config.local, plan.clip_norm, plan.denominator, std)
    scores = {
        "loss": loss_scores(bench.model, view, at_start=bench.losses),
        "weights": weight_scores(bench.model, view, at_start=bench.differences),
    }
    said_in = config.guesses // 2
    confidence = 1 - (1 - config.confidence) / len(scores)
    right = {
        name: right_guesses(found, coins, said_in, config.guesses - said_in, rng=rng) for name, found in scores.items()
    }
    lower = {
        name: from_one_run(config.canaries, config.guesses, right[name], config.delta, confidence=confidence)
        for name in scores
    }
    return CanaryAudit(lower, right, plan.guarantee(), int(coins.sum()), view.text)


def release(bench: Bench, pages: Sequence[Page], plan: DpPlan, local: LocalPlan, *, seed: int) -> list[Weights]:
    """The global models of a private training on ``pages``, the start first; ``bench.model`` holds the last."""
    released: list[Weights] = []

    def keep(ledger: Ledger, state: ServerState) -> None:
        released.append({name: value.astype(np.float32) for name, value in state.parameters.items()})

    set_parameters(bench.model, dict(bench.start))
    train_privately(
        bench.model, {SILO: pages}, plan, local, FedOpt(), on_round=keep,
        randomness=lambda name: Randomness.seeded(seed, name),
    )  # fmt: skip
    return [*released, parameters_of(bench.model)]
