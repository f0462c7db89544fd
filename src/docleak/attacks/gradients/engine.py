"""The one loop behind every optimisation attack: a published attack is a choice of its parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from docleak.attacks.gradients.canvas import Canvas, Region, Start
from docleak.attacks.gradients.matching import Distance, Gradient, dummy_of, relative
from docleak.attacks.gradients.priors import PRIORS
from docleak.attacks.gradients.schedules import SCHEDULES
from docleak.attacks.gradients.solvers import Solver
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.attacks.gradients.whitening import WhiteningConfig, fit_whiteners, whitened
from docleak.errors import AttackError

#: Called after each gradient evaluation with its number, the matching loss and the current pixels.
OnEvaluation = Callable[[int, float, Tensor], None]
#: A further term of the objective, of pixels (B, 3, H, W); what it means is its maker's business.
Guide = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Finding:
    """What a gradient attack says it recovered.

    ``pixels`` (B, 3, H, W) in [0, 1]; ``explained`` is the attack's own confidence, the share of the
    gradient that the blank template leaves unexplained and the reconstruction explains (1 = all, <= 0 =
    none; relative distance over all informative parameters, the same for every attack).
    """

    pixels: Tensor
    matching: float
    explained: float
    evaluations: int
    seconds: float
    history: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class GradientAttack:
    """A composition: matching distance + priors x schedule + solver + what may change.

    ``matching`` None means the whitened distance of ``whitening``; ``solver`` None keeps the random start.
    """

    name: str
    paper: str
    summary: str
    matching: Callable[[GradientView], Distance] | None
    solver: Solver | None
    priors: Mapping[str, float] = field(default_factory=dict)
    schedule: str = "constant"
    grey: bool = False
    region: Region = "private"
    start: Start = "uniform"
    whitening: WhiteningConfig = WhiteningConfig()

    def __post_init__(self) -> None:
        unknown = [p for p in self.priors if p not in PRIORS]
        if unknown or self.schedule not in SCHEDULES:
            raise AttackError(
                f"attack {self.name!r}: unknown prior {unknown} or schedule {self.schedule!r}; "
                f"priors are {sorted(PRIORS)}, schedules {sorted(SCHEDULES)}."
            )

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
        """Reconstruct the private pixels with at most ``budget`` gradient evaluations.

        ``start_at`` (B, 3, H, W) in [0, 1] is where to begin instead of at random. ``guide`` is added to the objective,
        and what is returned is then the best by the whole of it; without one, by the matching distance alone.
        """
        if budget < 1:
            raise AttackError(f"budget is {budget}; expected at least one gradient evaluation.")
        started = time.perf_counter()
        with inference_mode_of(view):
            canvas = Canvas.of(knowledge.template, knowledge.private, region=self.region, grey=self.grey)
            start = canvas.start(self.start, generator) if start_at is None else canvas.unknowns(start_at)
            pursuit = Pursuit(self, view, knowledge, canvas, on_evaluation, guide)
            best = pursuit.pursue(start, budget, generator)
            pixels = canvas.pixels(best).detach().clamp(0, 1)
            explained = explained_share(view, knowledge, pixels)
        seconds = time.perf_counter() - started
        return Finding(pixels, pursuit.best_loss, explained, pursuit.evaluations, seconds, tuple(pursuit.history))


class Surface(Protocol):
    """What a Pursuit needs of a canvas: pixels (B, 3, H, W) of unknowns (n,), and which of them count (B, H, W)."""

    @property
    def mask(self) -> Tensor: ...

    def pixels(self, unknowns: Tensor) -> Tensor: ...


class Pursuit:
    """State of one run: the budget spent, and the best unknowns by the attack's own matching loss."""

    def __init__(
        self,
        attack: GradientAttack,
        view: GradientView,
        knowledge: Knowledge,
        canvas: Surface,
        report: OnEvaluation,
        guide: Guide | None = None,
    ) -> None:
        self.attack, self.view, self.knowledge, self.canvas, self.report = attack, view, knowledge, canvas, report
        self.guide = guide
        self.evaluations = 0
        self.best_loss = self.best_whole = float("inf")
        self.best: Tensor | None = None
        self.history: list[tuple[int, float]] = []
        self.distance: Distance | None = None

    def pursue(self, start: Tensor, budget: int, generator: torch.Generator) -> Tensor:
        if self.attack.solver is None:
            return start
        self.distance = self._distance(start, generator)
        left = budget - self.evaluations
        if left < 1:
            raise AttackError(
                f"budget {budget} is spent by the {self.evaluations} draws of {self.attack.name!r}'s whitening; "
                "raise the budget or lower whitening.draws."
            )
        last = self.attack.solver.minimise(self.objective, start, budget=left)
        return last if self.best is None else self.best

    def _distance(self, start: Tensor, generator: torch.Generator) -> Distance:
        if self.attack.matching is not None:
            return self.attack.matching(self.view)
        config = replace(self.attack.whitening, noise=self.view.noise)
        whiteners = fit_whiteners(self._first_order, start, config, generator)
        return whitened(self.view.gradient, whiteners)

    def _first_order(self, unknowns: Tensor) -> Gradient:
        self.evaluations += 1
        pixels = self.canvas.pixels(unknowns)
        gradient = dummy_of(self.view, pixels, self.knowledge.inputs, create_graph=False)
        return {name: value.detach() for name, value in self.view.as_sent(gradient).items()}

    def objective(self, unknowns: Tensor, progress: float) -> tuple[float, Tensor]:
        """One gradient evaluation: matching loss plus scheduled priors (eq. 4), and its gradient."""
        assert self.distance is not None
        free = unknowns.detach().requires_grad_(True)
        pixels = self.canvas.pixels(free)
        dummy = dummy_of(self.view, pixels, self.knowledge.inputs, create_graph=True)
        matching = self.distance(self.view.as_sent(dummy))
        guided = matching if self.guide is None else matching + self.guide(pixels)
        total = guided + self._priors(pixels, progress)
        (gradient,) = torch.autograd.grad(total, free)
        self._note(float(matching.detach()), float(guided.detach()), free.detach(), pixels.detach())
        return float(total.detach()), gradient

    def _priors(self, pixels: Tensor, progress: float) -> Tensor:
        factor = SCHEDULES[self.attack.schedule](progress)
        terms = [w * PRIORS[name](pixels, self.canvas.mask) for name, w in self.attack.priors.items()]
        return factor * torch.stack(terms).sum() if terms else pixels.new_zeros(())

    def _note(self, matching: float, whole: float, unknowns: Tensor, pixels: Tensor) -> None:
        self.evaluations += 1
        if whole < self.best_whole:
            self.best_whole, self.best_loss, self.best = whole, matching, unknowns.clone()
        self.history.append((self.evaluations, matching))
        self.report(self.evaluations, matching, pixels)


@contextmanager
def inference_mode_of(view: GradientView) -> Iterator[None]:
    """Run the adversary's copy without dropout: its masks cannot be known, their mean can."""
    module = view.model.module
    before = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(before)


def explained_share(view: GradientView, knowledge: Knowledge, pixels: Tensor) -> float:
    """1 - distance(reconstruction) / distance(blank template), both to the observed gradient."""
    distance = relative(view)

    def at(image: Tensor) -> float:
        dummy = dummy_of(view, image, knowledge.inputs, create_graph=False)
        return float(distance(view.as_sent(dummy)))

    blank = at(knowledge.template)
    return 1 - at(pixels) / blank if blank > 0 else 0.0
