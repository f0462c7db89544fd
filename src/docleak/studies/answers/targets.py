"""Targets: released models that recipes train, and how, stated once for all tables, so that they share them.

``paper`` is Tito et al. (2024), Table 12, where it says it: batches, rounds, learning rate, delta, sampling, clip norm
(column "Sensitivity", which calls it sigma). Epochs of a provider's own training, weight decay, the clip norm of
federated budgets below 8 and the centralised M are ours (docs/fidelity.md). ``tiny`` is ours throughout;
docs/release.md says why it is what it is. ``base`` is to see what the published size costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

from docleak.documents.blue_red import BlueRedPlan
from docleak.documents.blue_red_files import ISSUERS
from docleak.errors import RecipeError
from docleak.privacy.budget import noise_for
from docleak.privacy.mechanism import Mechanism, Participation
from docleak.privacy.plan import DpPlan
from docleak.privacy.second import Accountant
from docleak.spec import counted_words, unknown
from docleak.training.federated.federation import Federation
from docleak.training.federated.local_plan import LocalPlan

NONE, CENTRAL, FEDERATED = "none", "central", "federated"
#: How a target comes about, as a recipe says it, and how the paper writes it.
TARGETS = {NONE: "VT5_0", CENTRAL: "VT5_C", FEDERATED: "VT5_FL"}


@dataclass(frozen=True)
class Data:
    """The documents: synthetic ``issuers`` (``providers`` with ``per_provider`` documents each; OCR missed the share
    ``missed`` of what they say of their issuers) or a data set.

    ``official`` takes the division that the data set brings along (PFL-DocVQA's own, or the derived one of vrdu_pfl),
    else ``plan`` divides it.
    """

    documents: str = ISSUERS
    official: bool = False
    providers: int = 240
    per_provider: float = 6.0
    plan: BlueRedPlan = BlueRedPlan()
    seed: int = 0
    missed: float = 0.0

    def sentence(self) -> str:
        """The documents in words."""
        if self.documents != ISSUERS:
            return self.documents
        said = f"synthetic invoices of {self.providers} providers, {self.per_provider:g} documents each on average"
        return said + (f", OCR missing {self.missed:.0%} of what they say of their issuers" if self.missed else "")


@dataclass(frozen=True)
class Training:
    """How a target is trained. The last four count only for private ones, whose noise follows from their epsilon.

    ``max_steps`` ends a client's round early (0: never). ``participation`` is the share of the clients in a round,
    ``unit_rate`` the probability of each of their providers. ``denominator`` is the public constant M.
    ``published_counting`` finds the noise as the paper did, which is no bound. A ``repeatable`` training draws coins
    and noise from its seed: it can be done again, and protects nobody who is real.
    """

    rounds: int = 10
    epochs: int = 1
    batch_size: int = 10
    learning_rate: float = 2e-4
    weight_decay: float = 0.01
    max_steps: int = 0
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
            weight_decay=self.weight_decay, max_steps=self.max_steps, dropout=self.dropout,
        )  # fmt: skip
        plan = self.plan(epsilon) if epsilon else None
        return Federation(model, self.rounds, self.participation, holdout=0.0, seed=seed, local=local, privacy=plan)

    def plan(self, epsilon: float) -> DpPlan:
        """The privacy plan that keeps to ``epsilon``: the least noise, by PLD with clients counted as known; or, where
        the published counting is asked for, the paper's, by PRV with hidden coins."""
        view = Participation.HIDDEN if self.published_counting else Participation.KNOWN
        accountant = Accountant.PRV if self.published_counting else Accountant.PLD
        plain = Mechanism(0.0, self.rounds, self.unit_rate, self.participation, participation=view)
        mechanism = _found(plain, epsilon, self.delta, accountant)
        return DpPlan(mechanism, self.clip_norm, self.denominator, self.delta, self.published_counting)

    def sentence(self, private: bool) -> str:
        """The settings in words."""
        rounds = "one training" if self.rounds == 1 else f"{self.rounds} rounds"
        text = (
            f"{rounds} of {counted_words(self.epochs, 'epoch')}, batches of {self.batch_size}, learning rate "
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


@lru_cache(maxsize=64)
def _found(plain: Mechanism, epsilon: float, delta: float, accountant: Accountant) -> Mechanism:
    return noise_for(plain, epsilon, delta, accountant).mechanism


@dataclass(frozen=True)
class Preset:
    """The data of a scale, and its trainings: plain ones by target, private ones by target."""

    data: Data
    plain: Mapping[str, Training]
    private: Mapping[str, Training]
    #: Some budgets have a clip norm of their own.
    clip_norms: Mapping[tuple[str, float], float] = field(default_factory=dict)

    def training(self, target: str, epsilon: float) -> Training:
        """The settings of a target that is trained."""
        settings = (self.private if epsilon else self.plain)[target]
        return replace(settings, clip_norm=self.clip_norms.get((target, epsilon), settings.clip_norm))


TINY_PLAIN = {
    CENTRAL: Training(rounds=10, epochs=4, batch_size=16, learning_rate=1e-3, dropout=False),
    FEDERATED: Training(rounds=16, epochs=4, batch_size=16, learning_rate=1e-3, dropout=False, participation=0.2),
}
#: So that at epsilon 8 the noise of all rounds is about 0.006 per weight, which the public model stands.
TINY_PRIVATE = {
    CENTRAL: Training(rounds=10, batch_size=8, learning_rate=5e-4, dropout=False, unit_rate=0.25, clip_norm=0.05,
                      denominator=25, repeatable=True),
    FEDERATED: Training(rounds=10, batch_size=8, learning_rate=5e-4, dropout=False, participation=0.2, clip_norm=0.02,
                        denominator=6, repeatable=True),
}  # fmt: skip
PRESETS: dict[str, Preset] = {
    "paper": Preset(
        Data("pfl-docvqa:PATH", official=True),
        # One centralised training of 10 epochs, whose optimiser begins once: a round each would begin it anew.
        {CENTRAL: Training(rounds=1, epochs=10), FEDERATED: Training(participation=0.2)},
        {
            CENTRAL: Training(batch_size=8, unit_rate=1000 / 4149, denominator=1000),
            FEDERATED: Training(batch_size=8, participation=0.2, denominator=400),
        },
        {(CENTRAL, 1.0): 1.0},
    ),
    "tiny": Preset(Data(), TINY_PLAIN, TINY_PRIVATE),
    # As many documents of more providers: "fewer than one in a hundred" takes 368 members of whom none is read.
    "crowd": Preset(
        Data(providers=800, per_provider=4.0, plan=BlueRedPlan(test=0.2)),
        {**TINY_PLAIN, FEDERATED: replace(TINY_PLAIN[FEDERATED], rounds=8)},
        {**TINY_PRIVATE, CENTRAL: replace(TINY_PRIVATE[CENTRAL], rounds=5)},
    ),
    # Few enough that larger readers can be trained on them, many times over.
    "repeated": Preset(
        Data(providers=80, plan=BlueRedPlan(clients=2)),
        {CENTRAL: Training(rounds=4, epochs=5, batch_size=16, learning_rate=5e-4, dropout=False),
         FEDERATED: replace(TINY_PLAIN[FEDERATED], participation=1.0)},
        TINY_PRIVATE,
    ),
    # One step a client: bytes, memory and seconds of the published size, and nothing learned.
    "base": Preset(
        Data(providers=96, per_provider=4.0),
        {CENTRAL: Training(rounds=1, batch_size=2, max_steps=1),
         FEDERATED: Training(batch_size=2, max_steps=1, participation=0.2)},
        {CENTRAL: Training(rounds=1, batch_size=2, max_steps=1, unit_rate=0.25, denominator=5, repeatable=True),
         FEDERATED: Training(batch_size=2, max_steps=1, participation=0.2, denominator=2, repeatable=True)},
    ),
}  # fmt: skip


D = TypeVar("D", Data, Training, BlueRedPlan)


@dataclass(frozen=True)
class Target:
    """A released model: what it started from, whose documents it saw, and how. Equal targets are the same model.

    RecipeError for a kind that does not exist, or a budget that makes no sense.
    """

    model: str
    data: Data
    kind: str = NONE
    epsilon: float = 0.0
    training: Training = field(default_factory=Training)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in TARGETS:
            raise RecipeError(f"there is no target {self.kind!r}; known: {', '.join(TARGETS)}.")
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0) or (self.epsilon and self.kind == NONE):
            raise RecipeError(
                f"target {self.kind!r} with epsilon {self.epsilon}; expected 0 for no privacy, or a finite number "
                f"above it for a target that is trained: {CENTRAL} or {FEDERATED}."
            )

    @property
    def name(self) -> str:
        """As the paper's tables write it, such as ``VT5_C+DP (epsilon 8)``."""
        if not self.epsilon:
            return TARGETS[self.kind]
        if self.training.published_counting:  # its epsilon holds for nobody, and is no part of its name
            noise = self.training.plan(self.epsilon).mechanism.noise_multiplier
            return f"{TARGETS[self.kind]}+DP (noise {noise:.4f} by the published counting, no bound)"
        return f"{TARGETS[self.kind]}+DP (epsilon {self.epsilon:g})"

    def to_json(self) -> dict[str, Any]:
        """Plain values; what a folder of another target is told apart by."""
        return {**asdict(self), "training": asdict(self.training) if self.kind != NONE else None}


def target_of(
    model: str, preset: str, kind: str, epsilon: float, *, data: Mapping[str, Any], training: Mapping[str, Any],
    seed: int,
) -> Target:  # fmt: skip
    """The target of a row: the settings of its preset, some of ``data`` and ``training`` changed.

    RecipeError for unknown ones, with the nearest right one.
    """
    if preset not in PRESETS:
        raise RecipeError(f"there is no preset {preset!r}; known: {', '.join(PRESETS)}.")
    given = dict(data)
    plan = _changed(PRESETS[preset].data.plan, given.pop("plan", {}), "data.plan")
    made = replace(_changed(PRESETS[preset].data, given, "data"), plan=plan, seed=seed)
    if made.missed and made.documents != ISSUERS:
        raise RecipeError(
            f"data.missed is of synthetic documents; the row reads {made.documents}. Leave one of the two out."
        )
    if kind not in (CENTRAL, FEDERATED):
        return Target(model, made, kind, epsilon, seed=seed)
    trained = _changed(PRESETS[preset].training(kind, epsilon), training, "training")
    return Target(model, made, kind, epsilon, trained, seed)


def _changed(settings: D, changes: Mapping[str, Any], place: str) -> D:
    """The settings with some replaced; RecipeError for unknown ones, with the nearest right one."""
    known = [item.name for item in fields(settings)]
    for key in changes:
        if key not in known:
            raise RecipeError(f"{place}: {unknown('key', key, known)}")
    return replace(settings, **changes)
