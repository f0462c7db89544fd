"""What is audited of a private training by its canaries; nothing that computes is imported before it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from docleak.documents.ranges import CLIP_NORM, DELTA, EPSILON, RATE, SEED, SOME, Range
from docleak.errors import PrivacyError, refuse, those
from docleak.options import option
from docleak.privacy.mechanism import Mechanism, probability

if TYPE_CHECKING:
    from docleak.privacy.plan import DpPlan
    from docleak.training.federated.local_plan import LocalPlan

WITHOUT_NOISE = "without noise"
#: Providers of a page of their own, or of a difference of their own making; how many of each unless it is said.
PAGE, DIRAC = "page", "dirac"
USUAL = {PAGE: 96, DIRAC: 1000}


@dataclass(frozen=True)
class CanaryConfig:
    """``canaries`` by fair coins beside ``others``, who always take part; half of the ``guesses`` say "in".

    ``guesses`` are fixed here, before any score is seen. M is the number of the others: public, and no coin moves it.
    ``every_round``: the adversary sees the model after every round, as a client does; else the final one. A provider
    has one page with at most so many ``questions``, and takes one step of AdamW on all of them; a dirac canary sends a
    move of one weight instead, ten times too long, so that only clipping keeps it at C. Audited are a training of
    ``model`` without noise, and one that claims ``epsilon``.
    """

    model: str = option("vt5-start", "Shipped name, directory or hub name of the model to start from.")
    epsilon: float = option(8.0, "What the private training claims.", range=EPSILON)
    canary: str = option(
        PAGE, "page: each canary trains on a page, read by its loss and by the weights. dirac: each moves one weight."
    )
    canaries: int = option(
        USUAL[PAGE], "Canary providers; a fair coin includes each. Without it: 96 with pages, 1,000 dirac.",
        range=Range(2, 100_000),
    )  # fmt: skip
    others: int = option(8, "Other providers, always included; the plan's constant M.", range=Range(1, 100_000))
    guesses: int = option(
        64, "Canaries to guess about. Without it: two thirds, of dirac ones as many as the claim makes best.",
        range=Range(2, 100_000),
    )  # fmt: skip
    rounds: int = option(1, "Rounds of the training.", range=SOME)
    unit_rate: float = option(
        1.0, "Probability that a provider trains in a round, such as 0.2 or 50/340.",
        read=partial(probability, what="unit rate"),
    )  # fmt: skip
    clip_norm: float = option(0.5, "C: each provider's difference is clipped to this norm.", range=CLIP_NORM)
    delta: float = option(1e-5, "Delta of both bounds; far below 1/canaries.", range=DELTA)
    confidence: float = option(0.95, "With which the lower bounds hold.", range=Range(0.5, 0.999999))
    every_round: bool = option(False, "The adversary sees the model after every round.")
    questions: int = 4
    learning_rate: float = option(1e-3, "Of a provider's one step of AdamW.", range=RATE)
    seed: int = option(0, "Seed of pages, coins and noise.", range=SEED)

    def __post_init__(self) -> None:
        from docleak.documents.issuers import FIRST, LAST

        most = LAST - FIRST
        made = self.others + self.canaries * (self.canary == PAGE)
        refuse(PrivacyError, those(
            (self.canary not in USUAL, f"canary is {self.canary!r}; expected {' or '.join(USUAL)}"),
            (self.canaries < 2 or self.others < 1 or made > most,
             f"{self.canaries} canaries and {self.others} others; expected 2, 1, and {most} together"),
            (not 2 <= self.guesses <= self.canaries,
             f"{self.guesses} guesses; expected at least 2, and no more than canaries"),
            (not 0 < self.confidence < 1, f"confidence is {self.confidence}; expected a probability such as 0.95"),
        ))  # fmt: skip

    @property
    def local(self) -> LocalPlan:
        """What a provider does in a round."""
        from docleak.training.federated.local_plan import LocalPlan

        return LocalPlan(batch_size=self.questions, learning_rate=self.learning_rate, max_steps=1, dropout=False)

    @property
    def provider_trainings(self) -> int:
        """How often a provider trains in both audited trainings: in their rounds, half of the canaries included, and
        for each canary's own difference from every model that the adversary sees and goes on from. A dirac canary
        trains nothing; a public page shows which weights stay."""
        if self.canary == DIRAC:
            return 2 * self.rounds * self.others + 1
        looked_at = 1 + 2 * (self.rounds - 1) * self.every_round
        return 2 * self.rounds * (self.others + self.canaries // 2) + looked_at * self.canaries

    @property
    def planned_guesses(self) -> int:
        """Without a number from the user: two thirds of pages' canaries; of dirac ones as many as prove most if the
        training is just as private as claimed, and Gaussian. No score is seen."""
        if self.canary == PAGE:
            return 2 * self.canaries // 3
        from docleak.privacy.empirical import Guesses, lower_bound
        from docleak.privacy.one_run import best_guesses, told_by_gaussian
        from docleak.privacy.tradeoff import Gaussian, largest

        curve = Gaussian()
        strength = largest(lambda s: curve.epsilon(s, self.delta) < self.epsilon, curve.most, width=1e-3)

        def proved(guesses: int, right: int) -> float:
            seen = Guesses(self.canaries, guesses, right)
            return lower_bound(seen, self.delta, confidence=self.confidence, family=curve).epsilon

        return best_guesses(self.canaries, lambda share: told_by_gaussian(strength, share), proved)

    @property
    def plans(self) -> dict[str, DpPlan]:
        """The trainings that are audited, by name: the one without noise is the control."""
        return {WITHOUT_NOISE: self.plan(0.0), f"epsilon {self.epsilon:g}": self.plan_for(self.epsilon)}

    def plan(self, noise_multiplier: float) -> DpPlan:
        """The privacy plan of the audited training."""
        from docleak.privacy.plan import DpPlan

        mechanism = Mechanism(noise_multiplier, self.rounds, self.unit_rate)
        return DpPlan(mechanism, self.clip_norm, self.others, self.delta)

    def plan_for(self, epsilon: float) -> DpPlan:
        """The same, with the least noise that keeps to ``epsilon``."""
        from docleak.privacy.budget import noise_for

        return self.plan(noise_for(self.plan(1.0).mechanism, epsilon, self.delta).mechanism.noise_multiplier)
