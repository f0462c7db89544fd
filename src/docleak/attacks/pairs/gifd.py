"""GIFD (Fang et al., ICCV 2023): a generator's latent vector is optimised, then its inner features, outermost last.

Each set of features may leave the place where the one before it ended by so much in L1 only, which keeps the picture
near what the generator can make. Of all sets, the picture that matches the gradient best is kept.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from docleak.attacks.gradients.engine import (
    Finding,
    GradientAttack,
    Guide,
    OnEvaluation,
    Pursuit,
    explained_share,
    inference_mode_of,
)
from docleak.attacks.gradients.matching import squared
from docleak.attacks.gradients.solvers import Adam
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.attacks.protocol import require_evaluations
from docleak.errors import AttackError
from docleak.models.pair.generator import Generator, load_generator
from docleak.models.shipped import SHIPPED_GENERATOR

#: Steps that look for the latent vector of a picture; they ask the generator only, not the attacked model.
FITTING, FITTING_RATE = 60, 0.1


@dataclass(frozen=True, eq=False)
class FeatureCanvas:
    """Unknowns (n,) are what is added to the features ``base`` (B, ...) of number ``level``, kept in an L1 ball.

    ``radius`` is the ball's radius per example and number; none for the latent vector.
    """

    generator: Generator
    level: int
    base: Tensor
    size: tuple[int, int]
    radius: float | None

    @property
    def mask(self) -> Tensor:
        return torch.ones(len(self.base), *self.size, dtype=torch.bool, device=self.base.device)

    def features(self, unknowns: Tensor) -> Tensor:
        """(n,) to the shape of ``base``, differentiable."""
        moved = unknowns.view(len(self.base), -1)
        if self.radius is not None:
            moved = in_ball(moved, self.radius * moved.shape[1])
        return self.base + moved.view_as(self.base)

    def pixels(self, unknowns: Tensor) -> Tensor:
        """(B, 3, H, W) in (0, 1)."""
        return self.generator.picture(self.features(unknowns), self.level, self.size)


def in_ball(values: Tensor, radius: float) -> Tensor:
    """Rows of ``values`` (B, n) projected onto the L1 ball of ``radius`` (Duchi et al., 2008), differentiable."""
    sizes = values.detach().abs()
    ordered = sizes.sort(dim=1, descending=True).values
    sums = ordered.cumsum(1) - radius
    places = torch.arange(1, values.shape[1] + 1, device=values.device)
    last = (ordered * places > sums).sum(1, keepdim=True).clamp_min(1)  # how many stay above the threshold
    threshold = (sums.gather(1, last - 1) / last).clamp_min(0)
    shrunk = values.sign() * (values.abs() - threshold).clamp_min(0)
    return torch.where(sizes.sum(1, keepdim=True) <= radius, values, shrunk)


@dataclass(frozen=True)
class GeneratorAttack:
    """Pictures as a generator makes them; distance, priors and solver are those of ``composition``.

    ``first`` is the latent's share of the budget, the other features share the rest. ``radius`` is how far each number
    of a set of features may move on average. Of ``starts`` drawn latent vectors the best one by the gradient is taken
    (an evaluation each).
    """

    composition: GradientAttack
    generator: str = SHIPPED_GENERATOR
    first: float = 0.5
    radius: float = 0.3
    starts: int = 8

    def __post_init__(self) -> None:
        if not 0 < self.first <= 1 or self.radius < 0 or self.starts < 1:
            raise AttackError(
                f"attack {self.name!r}: first is {self.first}, radius {self.radius}, starts {self.starts}; expected a "
                "share in (0, 1], a distance of 0 or more, and 1 or more."
            )

    @property
    def name(self) -> str:
        return self.composition.name

    def run(
        self,
        view: GradientView,
        knowledge: Knowledge,
        *,
        budget: int,
        generator: torch.Generator,
        on_evaluation: OnEvaluation = lambda number, loss, pixels: None,
        start_at: Tensor | None = None,
        guide: Guide | None = None,
    ) -> Finding:
        """As ``GradientAttack.run``; ``start_at`` is first brought near by the generator alone."""
        require_evaluations(budget)
        began = time.perf_counter()
        with inference_mode_of(view):
            prior = _loaded(self.generator, str(knowledge.template.device))
            search = _Search(self, view, knowledge, prior, on_evaluation, guide)
            pixels = search.run(budget, generator, start_at).detach().clamp(0, 1)
            explained = explained_share(view, knowledge, pixels)
        seconds = time.perf_counter() - began
        return Finding(pixels, search.matching, explained, search.used, seconds, tuple(search.history))


@dataclass(eq=False)
class _Search:
    """State of one run: evaluations used, and the best picture of all sets of features."""

    attack: GeneratorAttack
    view: GradientView
    knowledge: Knowledge
    prior: Generator
    report: OnEvaluation
    guide: Guide | None
    used: int = 0
    history: list[tuple[int, float]] = field(default_factory=list)
    whole: float = float("inf")
    matching: float = float("inf")
    best: Tensor | None = None

    def __post_init__(self) -> None:
        self.size = (int(self.knowledge.template.shape[2]), int(self.knowledge.template.shape[3]))

    def run(self, budget: int, generator: torch.Generator, start_at: Tensor | None) -> Tensor:
        base = self._begin(budget, generator) if start_at is None else self._fit(start_at)
        levels = range(self.prior.depth + 1)
        for level in levels:
            left = budget - self.used
            share = self.attack.first if level == 0 else 1 / (len(levels) - level)
            spent = left if level == levels[-1] else round(left * share)
            canvas = FeatureCanvas(self.prior, level, base, self.size, self.attack.radius if level else None)
            features = self._descend(canvas, spent, generator) if spent else base
            if level < levels[-1]:
                base = self.prior.features(features, level, level + 1).detach()
        assert self.best is not None
        return self.best

    def _begin(self, budget: int, generator: torch.Generator) -> Tensor:
        """(B, latent): for each example of the batch the same draws; the best one by the objective."""
        count = min(self.attack.starts, max(1, budget - 1))
        drawn = torch.randn((count, len(self.knowledge.template), self.prior.latent), generator=generator)
        losses = []
        for start in drawn.to(self.knowledge.template):
            canvas = FeatureCanvas(self.prior, 0, start, self.size, None)
            if count > 1:
                pursuit = self._pursuit(canvas)
                pursuit.pursue(torch.zeros_like(start).flatten(), 1, generator)
                losses.append(pursuit.best_whole)
                self._keep(pursuit, canvas)
        return drawn[int(torch.tensor(losses).argmin()) if losses else 0].to(self.knowledge.template)

    def _fit(self, pixels: Tensor) -> Tensor:
        """(B, latent) whose picture is near ``pixels``."""
        latent = torch.zeros(len(pixels), self.prior.latent, device=pixels.device, requires_grad=True)
        optimiser = torch.optim.Adam([latent], lr=FITTING_RATE)
        for _ in range(FITTING):
            optimiser.zero_grad()
            (self.prior.picture(latent, 0, self.size) - pixels).square().mean().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return latent.detach()

    def _descend(self, canvas: FeatureCanvas, budget: int, generator: torch.Generator) -> Tensor:
        pursuit = self._pursuit(canvas)
        start = torch.zeros(canvas.base.numel(), device=canvas.base.device)
        unknowns = pursuit.pursue(start, budget, generator)
        self._keep(pursuit, canvas)
        return canvas.features(unknowns).detach()

    def _pursuit(self, canvas: FeatureCanvas) -> Pursuit:
        return Pursuit(self.attack.composition, self.view, self.knowledge, canvas, self.report, self.guide)

    def _keep(self, pursuit: Pursuit, canvas: FeatureCanvas) -> None:
        self.history += [(self.used + number, loss) for number, loss in pursuit.history]
        self.used += pursuit.evaluations
        if pursuit.best is not None and pursuit.best_whole < self.whole:
            self.whole, self.matching = pursuit.best_whole, pursuit.best_loss
            self.best = canvas.pixels(pursuit.best).detach()


@lru_cache(maxsize=2)
def _loaded(source: str, device: str) -> Generator:
    return load_generator(source, device=device)


GIFD = GeneratorAttack(
    GradientAttack(
        name="gifd",
        paper="Fang et al. (2023)",
        summary="squared gradient difference over a generator's latent vector, then its inner features",
        matching=squared,
        solver=Adam(learning_rate=0.1, final_factor=0.1, clamp=False),
        priors={"tv-spatial": 1e-5},
    )
)
