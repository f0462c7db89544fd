"""CDMI: Dentan, Paran & Shabou (2024), "Reconstructing training data from document understanding models".

Algorithm 2, token by token from left to right: a public masked language model proposes candidates, the target's loss
of each is turned into a likelihood, both are averaged, and the next token is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

import torch

from docleak.attacks.protocol import Attack
from docleak.attacks.weights.probing import AnswersProbe, Probe, target_probe
from docleak.attacks.weights.sampling import (
    Mean,
    Temperature,
    likelihoods,
    loss_likelihoods,
    sample_top_p,
    weighted_mean,
)
from docleak.attacks.weights.view import PublicKnowledge, WeightsView
from docleak.errors import AttackError, refuse, those


@dataclass(frozen=True)
class Attempt:
    """One reconstruction: its ``tokens``, and each one's likelihood at sampling and to the public model alone."""

    tokens: tuple[int, ...]
    target: tuple[float, ...]
    public: tuple[float, ...]


@dataclass(frozen=True)
class Finding:
    """What the attack says of one field; ``calls`` counts pages passed through the target or the public model."""

    attempts: tuple[Attempt, ...]
    calls: int


@runtime_checkable
class WeightsAttack(Attack[WeightsView, PublicKnowledge, Finding], Protocol):
    """What every attack on weights offers; its ``run`` is given a budget of attempts."""

    def baseline(self) -> WeightsAttack:
        """What is left of it without the target: public data alone."""


def check_budget(attempts: int) -> None:
    """AttackError for no attempt."""
    if attempts < 1:
        raise AttackError(f"{attempts} attempts were asked for; expected 1 or more.")


@dataclass(frozen=True)
class CdmiConfig:
    """Hyper-parameters with the values of appendix A; where it gives a range, its middle.

    Where the public temperature begins is ours. ``candidates`` is N_c. ``weight`` is the target's in the mean (the best
    were 0.2 to 0.6, of which of the two likelihoods the paper does not say); 0 is the baseline that knows public data
    only (section 5.2), which never calls the target.
    """

    name: ClassVar[str] = "cdmi"
    paper: ClassVar[str] = "Dentan et al. (2024)"
    summary: ClassVar[str] = "CDMI, algorithm 2: token by token, from left to right"
    candidates: int = 128
    public_temperature: Temperature = Temperature()
    target_temperature: Temperature = Temperature(first=0.3, steps=0)
    mean: Mean = "geometric"
    weight: float = 0.4
    top_p: float = 0.10

    def __post_init__(self) -> None:
        faults = those(
            (self.candidates < 1, f"candidates is {self.candidates}, expected 1 or more"),
            (self.mean not in ("geometric", "arithmetic"), f"mean is {self.mean!r}, expected geometric or arithmetic"),
            (not 0 <= self.weight <= 1, f"weight is {self.weight}, expected 0 to 1"),
            (not 0 < self.top_p <= 1, f"top_p is {self.top_p}, expected above 0 and up to 1"),
        )
        refuse(AttackError, faults, "CDMI cannot be set up: ")

    def baseline(self) -> CdmiConfig:
        """The same by public data alone."""
        return replace(self, weight=0.0)

    def run(
        self, view: WeightsView, knowledge: PublicKnowledge, *, budget: int = 1, generator: torch.Generator
    ) -> Finding:
        """``budget`` reconstructions of the scrubbed field: 1 is the one-shot variant, the paper's multi-shot has 8.

        A target that was trained to guess tokens proposes the candidates itself, and its likelihoods are sampled
        directly (section 4.3); the baseline never looks at it. AttackError if the public model does not fit the target.
        """
        check_budget(budget)
        knowledge.check(view)
        public = Probe(knowledge.model, view.page, view.positions)
        target = target_probe(view) if self.weight else None
        made = tuple(_attempt(public, target, len(view.positions), self, generator) for _ in range(budget))
        return Finding(made, public.calls + (target.calls if target else 0))


def _attempt(
    public: Probe, target: Probe | None, length: int, config: CdmiConfig, generator: torch.Generator
) -> Attempt:
    tokens: tuple[int, ...] = ()
    at_sampling: list[float] = []
    to_public: list[float] = []
    for _ in range(length):
        ids, mixed, guessed = _step(public, target, tokens, config)
        chosen = sample_top_p(mixed, config.top_p, generator=generator)
        at_sampling.append(float(mixed[chosen]))
        to_public.append(float(guessed[chosen]))
        tokens = (*tokens, int(ids[chosen]))
    return Attempt(tokens, tuple(at_sampling), tuple(to_public))


def _step(
    public: Probe, target: Probe | None, prefix: tuple[int, ...], config: CdmiConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Candidates behind ``prefix`` with the likelihoods they are drawn by and those of the public model, (N,) each."""
    step = len(prefix)
    soft, sharp = config.public_temperature.at(step), config.target_temperature.at(step)
    if target is not None and target.model.task == "mlm":
        ids = target.propose(prefix, config.candidates).ids
        if isinstance(target, AnswersProbe):  # a single one: beside it the public model's, to say how public it is
            others = public.propose(prefix, config.candidates).ids
            ids = torch.cat([ids, others[others != ids[0]]])
        liked, guessed = (likelihoods(probe.token_logits(prefix)[ids], soft) for probe in (target, public))
        return ids, liked, guessed
    candidates = public.propose(prefix, config.candidates)
    guessed = likelihoods(candidates.logits, soft)
    if target is None:
        return candidates.ids, guessed, guessed
    fitting = loss_likelihoods(target.losses(prefix, candidates.ids), sharp)
    return candidates.ids, weighted_mean(fitting, guessed, config.weight, config.mean), guessed
