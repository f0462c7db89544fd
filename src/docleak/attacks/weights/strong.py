"""A stronger CDMI at no more model calls: another order of tokens, a beam, and the loss where the field stands.

Against the paper's algorithm 2 (``docleak.attacks.weights.cdmi``), for a target that guesses tokens itself:
- the position it is surest of is filled first (Ghazvininejad et al., 2019, "Mask-Predict"), not the leftmost: a wrong
  first token misleads all that follow;
- what the public model expects anyway counts a little less (``reference``), as in calibrated membership inference
  (Watson et al., 2022); the paper calls the public model here too, only to rank.
For a target whose loss is all there is:
- the loss is taken at the field's own positions, where the candidate weighs most;
- a beam of hypotheses, each with fewer candidates, in the place of one that is sampled; they are the attempts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from docleak.attacks.weights.cdmi import Attempt, Finding, check_budget
from docleak.attacks.weights.probing import Probe, target_probe
from docleak.attacks.weights.sampling import loss_likelihoods, sample_top_p
from docleak.attacks.weights.view import PublicKnowledge, WeightsView
from docleak.errors import AttackError, refuse, those
from docleak.models.base import IGNORED
from docleak.models.encoders.tokens import TokenPage


@dataclass(frozen=True)
class StrongConfig:
    """``candidates`` is the number of target calls per token, as the paper's N_c; ``beam`` hypotheses share them.

    ``weight`` is the target's; 0 is the baseline, which searches in the same way and never calls the target.
    ``top_p`` is for the attempts after the first of a target that guesses tokens.
    """

    name: ClassVar[str] = "cdmi-strong"
    paper: ClassVar[str] = "docleak, after Dentan et al. (2024)"
    summary: ClassVar[str] = "CDMI in another order, with a beam and the field's own loss, at equal calls"
    candidates: int = 128
    weight: float = 0.4
    beam: int = 4
    temperature: float = 0.1
    reference: float = 0.15
    top_p: float = 0.5

    def __post_init__(self) -> None:
        faults = those(
            (not 1 <= self.beam <= self.candidates,
             f"beam is {self.beam}, expected 1 to candidates ({self.candidates})"),
            (not 0 <= self.weight <= 1 or not 0 <= self.reference < 1,
             f"weight is {self.weight} and reference {self.reference}, expected 0 to 1, and below 1"),
            (self.temperature <= 0 or not 0 < self.top_p <= 1,
             f"temperature is {self.temperature} and top_p {self.top_p}, expected above 0, and up to 1"),
        )  # fmt: skip
        refuse(AttackError, faults, "the stronger CDMI cannot be set up: ")

    def baseline(self) -> StrongConfig:
        """The same by public data alone."""
        return replace(self, weight=0.0)

    def run(
        self, view: WeightsView, knowledge: PublicKnowledge, *, budget: int = 1, generator: torch.Generator
    ) -> Finding:
        """``budget`` attempts at the scrubbed field; AttackError if the public model does not fit the target."""
        check_budget(budget)
        knowledge.check(view)
        public = Probe(knowledge.model, view.page, view.positions)
        if self.weight and view.target.task == "mlm":
            target = target_probe(view)
            made = tuple(_surest_first(target, public, self, generator, first=not n) for n in range(budget))
            return Finding(made, target.calls + public.calls)
        if not self.weight and view.target.task == "mlm":
            made = tuple(_surest_first(public, None, self, generator, first=not n) for n in range(budget))
            return Finding(made, public.calls)
        focused = focus(view.page, view.positions) if self.weight else None
        probe = target_probe(view, focused) if focused is not None else None
        attempts = _beam(probe, public, self, budget)
        return Finding(attempts, public.calls + (probe.calls if probe else 0))


def focus(page: TokenPage, positions: tuple[int, ...]) -> TokenPage:
    """The page with labels at ``positions`` only; as it is where none is labelled there."""
    labels = {}
    for name, row in page.labels.items():
        kept = torch.full_like(row, IGNORED)
        kept[list(positions)] = row[list(positions)]
        labels[name] = kept
    return replace(page, labels=labels) if any(bool((row != IGNORED).any()) for row in labels.values()) else page


def _surest_first(
    model: Probe, reference: Probe | None, config: StrongConfig, generator: torch.Generator, *, first: bool
) -> Attempt:
    """One reading by a model that guesses tokens: the ``first`` takes the likeliest, others draw where it is unsure."""
    length = len(model.positions)
    filled: list[int | None] = [None] * length
    chances, public = [0.0] * length, [0.0] * length
    while None in filled:
        scores = model.field_logits(filled)
        expected = scores if reference is None else reference.field_logits(filled)
        if reference is not None:
            few = scores >= scores.topk(min(config.candidates, scores.shape[1]), dim=1).values[:, -1:]
            less = torch.where(few & scores.isfinite(), scores - config.reference * expected, -torch.inf)
            scores = torch.log_softmax(less, dim=1)
        free = [i for i in range(length) if filled[i] is None]
        place = max(free, key=lambda i: float(scores[i].max()))
        likely = scores[place].exp()
        token = int(likely.argmax()) if first else sample_top_p(likely, config.top_p, generator=generator)
        filled[place], chances[place], public[place] = token, float(likely[token]), float(expected[place, token].exp())
    return Attempt(tuple(token for token in filled if token is not None), tuple(chances), tuple(public))


@dataclass(frozen=True)
class _Hypothesis:
    attempt: Attempt
    score: float


def _beam(target: Probe | None, public: Probe, config: StrongConfig, attempts: int) -> tuple[Attempt, ...]:
    """The likeliest whole readings, the likeliest first, ``attempts`` of them as far as the beam holds as many."""
    beam = [_Hypothesis(Attempt((), (), ()), 0.0)]
    for step in range(len(public.positions)):
        # One public call per hypothesis counts too; the first step has a single one, and all candidates.
        count = config.candidates if step == 0 else max(1, (config.candidates + 1) // len(beam) - 1)
        grown: list[_Hypothesis] = []
        for one in beam:
            candidates = public.propose(one.attempt.tokens, count)
            guessed = torch.log_softmax(candidates.logits.double(), dim=0)
            mixed = guessed if target is None else _mixed(target, one.attempt.tokens, candidates.ids, guessed, config)
            grown += [_longer(one, int(candidates.ids[i]), mixed, guessed, int(i)) for i in range(len(candidates.ids))]
        beam = sorted(grown, key=lambda one: -one.score)[: config.beam]
    chosen = [one.attempt for one in beam[:attempts]]
    return tuple(chosen + chosen[:1] * (attempts - len(chosen)))


def _mixed(target: Probe, prefix: tuple[int, ...], ids: Tensor, guessed: Tensor, config: StrongConfig) -> Tensor:
    fitting = loss_likelihoods(target.losses(prefix, ids), config.temperature).clamp(min=1e-300).log()
    return torch.log_softmax(config.weight * fitting + (1 - config.weight) * guessed, dim=0)


def _longer(one: _Hypothesis, token: int, mixed: Tensor, guessed: Tensor, index: int) -> _Hypothesis:
    attempt = Attempt(
        (*one.attempt.tokens, token),
        (*one.attempt.target, float(mixed[index].exp())),
        (*one.attempt.public, float(guessed[index].exp())),
    )
    return _Hypothesis(attempt, one.score + float(mixed[index]))
