"""How the targets of a scale are trained, stated once for all tables, so that they share them.

``paper`` is Tito et al. (2024), Table 12, where it says it: batches, rounds, learning rate, delta, sampling, clip norm
(column "Sensitivity", which calls it sigma). Epochs of a provider's own training and weight decay are ours. ``tiny`` is
ours throughout; docs/release.md says why it is what it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from docleak.documents.blue_red import BlueRedPlan
from docleak.errors import RecipeError
from docleak.privacy.accounting import Accountant
from docleak.privacy.budget import noise_for
from docleak.privacy.mechanism import Mechanism, Participation
from docleak.privacy.plan import DpPlan
from docleak.training.federated.federation import Federation
from docleak.training.federated.local import LocalPlan

NONE, CENTRAL, FEDERATED = "none", "central", "federated"
#: How a target comes about, as a recipe says it, and how the paper writes it.
TARGETS = {NONE: "VT5_0", CENTRAL: "VT5_C", FEDERATED: "VT5_FL"}


@dataclass(frozen=True)
class Data:
    """The documents: synthetic ``issuers`` (``providers`` with ``per_provider`` documents each) or a data set.

    ``official`` takes the division that the data set brings along (PFL-DocVQA's files), else ``plan`` divides it.
    """

    documents: str = "issuers"
    official: bool = False
    allow_pickle: bool = False
    providers: int = 240
    per_provider: float = 6.0
    plan: BlueRedPlan = BlueRedPlan()
    seed: int = 0


@dataclass(frozen=True)
class Training:
    """How a target is trained. The last four count only for private ones, whose noise follows from their epsilon.

    ``participation`` is the share of the clients in a round, ``unit_rate`` the probability of each of their providers.
    ``denominator`` is the public constant M. ``published_counting`` finds the noise as the paper did, which is no
    bound. A ``repeatable`` training draws coins and noise from its seed: it can be done again, and protects nobody who
    is real.
    """

    rounds: int = 10
    epochs: int = 1
    batch_size: int = 10
    learning_rate: float = 2e-4
    weight_decay: float = 0.01
    dropout: bool = True
    participation: float = 1.0
    unit_rate: float = 1.0
    clip_norm: float = 5.0
    denominator: int = 1
    delta: float = 1e-5
    repeatable: bool = False
    published_counting: bool = False

    def federation(self, model: str, epsilon: float, seed: int) -> Federation:
        """The training from ``model``; 0 is no privacy."""
        local = LocalPlan(
            epochs=self.epochs, batch_size=self.batch_size, learning_rate=self.learning_rate,
            weight_decay=self.weight_decay, dropout=self.dropout,
        )  # fmt: skip
        plan = self.plan(epsilon) if epsilon else None
        return Federation(model, self.rounds, self.participation, holdout=0.0, seed=seed, local=local, privacy=plan)

    def plan(self, epsilon: float) -> DpPlan:
        """The privacy plan that keeps to ``epsilon``: the least noise, by PLD with clients counted as known; or, where
        the published counting is asked for, the paper's, by PRV with hidden coins."""
        view = Participation.HIDDEN if self.published_counting else Participation.KNOWN
        accountant = Accountant.PRV if self.published_counting else Accountant.PLD
        plain = Mechanism(0.0, self.rounds, self.unit_rate, self.participation, participation=view)
        mechanism = noise_for(plain, epsilon, self.delta, accountant).mechanism
        return DpPlan(mechanism, self.clip_norm, self.denominator, self.delta, self.published_counting)

    def sentence(self, private: bool) -> str:
        """The settings in words."""
        text = (
            f"{self.rounds} rounds of {self.epochs} epoch(s), batches of {self.batch_size}, learning rate "
            f"{self.learning_rate:g}, weight decay {self.weight_decay:g}"
        )
        if self.participation < 1:
            text += f", {self.participation:.0%} of the clients in a round"
        if private:
            text += (
                f", each provider with {self.unit_rate:.4g}, clip norm {self.clip_norm:g}, M = {self.denominator}, "
                f"delta {self.delta:g}"
                + ", noise by the published counting, which is no bound" * self.published_counting
                + (", noise from a seed (no protection, but repeatable)" * self.repeatable)
            )
        return text


@dataclass(frozen=True)
class Preset:
    """The data of a scale, and its trainings: plain ones by target, private ones by target."""

    data: Data
    plain: Mapping[str, Training]
    private: Mapping[str, Training]
    #: Some budgets have a clip norm of their own.
    clip_norms: Mapping[tuple[str, float], float]

    def training(self, target: str, epsilon: float) -> Training:
        """The settings of a target; RecipeError if there is none of that name."""
        found = (self.private if epsilon else self.plain).get(target)
        if found is None:
            raise RecipeError(f"there is no target {target!r}; known: {', '.join((NONE, *self.plain))}.")
        return replace(found, clip_norm=self.clip_norms.get((target, epsilon), found.clip_norm))


PRESETS: dict[str, Preset] = {
    "paper": Preset(
        Data("pfl-docvqa:PATH", official=True, allow_pickle=True),
        {CENTRAL: Training(), FEDERATED: Training(participation=0.2)},
        {
            CENTRAL: Training(batch_size=8, unit_rate=1000 / 4149, denominator=1000),
            FEDERATED: Training(batch_size=8, participation=0.2, denominator=400),
        },
        {(CENTRAL, 1.0): 1.0},
    ),
    "tiny": Preset(
        Data(),
        {
            CENTRAL: Training(rounds=10, epochs=4, batch_size=16, learning_rate=1e-3, dropout=False),
            FEDERATED: Training(rounds=16, epochs=4, batch_size=16, learning_rate=1e-3, dropout=False,
                                participation=0.2),
        },
        {
            # So that at epsilon 8 the noise of all rounds is about 0.006 per weight, which the public model stands.
            CENTRAL: Training(rounds=10, batch_size=8, learning_rate=5e-4, dropout=False, unit_rate=0.25,
                              clip_norm=0.05, denominator=25, repeatable=True),
            FEDERATED: Training(rounds=10, batch_size=8, learning_rate=5e-4, dropout=False, participation=0.2,
                                clip_norm=0.02, denominator=6, repeatable=True),
        },
        {},
    ),
}  # fmt: skip


def name_of(target: str, epsilon: float) -> str:
    """The target as the paper's tables write it, such as ``VT5_C+DP (epsilon 8)``."""
    return f"{TARGETS[target]}+DP (epsilon {epsilon:g})" if epsilon else TARGETS[target]


def check_target(target: str, epsilon: float) -> None:
    """RecipeError for a target that does not exist, or a budget that makes no sense."""
    if target not in TARGETS:
        raise RecipeError(f"there is no target {target!r}; known: {', '.join(TARGETS)}.")
    if not (math.isfinite(epsilon) and epsilon >= 0) or (epsilon and target == NONE):
        raise RecipeError(
            f"target {target!r} with epsilon {epsilon}; expected 0 for no privacy, or a finite number above it for a "
            f"target that is trained: {CENTRAL} or {FEDERATED}."
        )
