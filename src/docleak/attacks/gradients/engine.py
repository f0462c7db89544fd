"""The one loop behind every optimisation attack: a published attack is a choice of its parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from typing import Annotated, Literal, Protocol

import torch
from torch import Tensor

from docleak.attacks.gradients.canvas import Canvas, Region, Start
from docleak.attacks.gradients.journal import Evaluation, Search
from docleak.attacks.gradients.levenberg import LevenbergMarquardt, Linear
from docleak.attacks.gradients.linearised import Joined, Linearised
from docleak.attacks.gradients.matching import (
    Distance,
    Gradient,
    cosine,
    distance_at,
    dummy_of,
    squared,
    squared_and_cosine,
    squared_and_cosine_of_all,
    squared_and_position,
)
from docleak.attacks.gradients.precision import DoubleLoss, sure
from docleak.attacks.gradients.priors import DEFAULT_WEIGHT, PRIORS
from docleak.attacks.gradients.schedules import SCHEDULES
from docleak.attacks.gradients.shallow import Layers, constant_but, shallow
from docleak.attacks.gradients.solvers import Adam, BoundedLBFGS, Solver
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.attacks.gradients.whitening import Whitener, WhiteningConfig, fit_whiteners, residuals, whitened
from docleak.attacks.protocol import require_evaluations
from docleak.errors import AttackError
from docleak.models.base import in_mode
from docleak.models.donut import Donut
from docleak.models.recompute import recomputation
from docleak.runs.searches import next_search
from docleak.spec import Said, weights

#: Called after each gradient evaluation with its number, the matching loss and the current pixels.
OnEvaluation = Callable[[int, float, Tensor], None]
#: Which of several rounds are matched.
Rounds = Literal["largest", "all"]
#: A further term of the objective, of pixels (B, 3, H, W); what it means is its maker's business.
Guide = Callable[[Tensor], Tensor]
#: Which of the visited iterates is the reconstruction: the best by the attack's own distance, the last, or the best by
#: all that is minimised, priors too, as where the distance hardly tells a picture from noise.
Keep = Literal["best", "last", "objective"]
#: How a distance, a solver and the weights of priors are said in text.
MATCHINGS = Said(
    values={
        "whitened": None, "squared": squared, "cosine": cosine, "squared-and-cosine": squared_and_cosine,
        "squared-and-cosine-of-all": squared_and_cosine_of_all, "squared-and-position": squared_and_position,
    }
)  # fmt: skip
SOLVERS = Said(values={"lbfgs": BoundedLBFGS(), "lm": LevenbergMarquardt(), "adam": Adam()}, inside=True)
WEIGHTS = Said(read=partial(weights, default=DEFAULT_WEIGHT))


@dataclass(frozen=True)
class Finding:
    """What a gradient attack says it recovered.

    ``pixels`` (B, 3, H, W) in [0, 1]; ``explained`` is how much of the gradient is explained: the share that the
    template leaves unexplained and the reconstruction explains (1 = all, <= 0 = none; relative distance over all
    informative parameters, the same for every attack). It is no probability that anything was read. Of a search, its
    ``start`` ("given": where a step of the attack before it ended) and the precision of its ``loss`` as they were
    taken, in the words of the attack's options, also where the gradient's size chose; "" of what does not search.
    """

    pixels: Tensor
    matching: float
    explained: float
    evaluations: int
    seconds: float
    history: tuple[tuple[int, float], ...] = ()
    start: str = ""
    loss: str = ""


@dataclass(frozen=True)
class GradientAttack:
    """A composition: matching distance + priors x schedule + solver + what may change.

    ``matching`` None means the whitened distance of ``whitening``; ``solver`` None keeps the random start. Of a view
    with several ``rounds`` the one with the largest gradient is matched, or the mean of all their distances; then
    every round's gradient is an evaluation. ``layers`` says whether all tensors are matched or, of a deep encoder,
    those next to the pixels. ``double_loss`` takes the adversary's softmax in double precision. It (as None) and
    ``start`` may be left to the gradient's size, which an adversary sees (``precision.sure``). ``recompute`` keeps
    less of a Donut's encoder in memory and computes it anew, which takes longer and changes nothing else.
    ``keep`` says which iterate is returned of those whose gradient was evaluated; eq. 4 of GI-DQA may mean either.
    The search ends before its budget is spent where the least matching loss is at most ``stop_at`` of the first
    (it has converged), or has not halved in ``patience`` evaluations (it is hopeless); 0 of either: never.
    """

    name: str
    paper: str
    summary: str
    matching: Annotated[Callable[[GradientView], Distance] | None, MATCHINGS]
    solver: Annotated[Solver | LevenbergMarquardt | None, SOLVERS]
    priors: Annotated[Mapping[str, float], WEIGHTS] = field(default_factory=dict)
    schedule: str = "constant"
    grey: bool = False
    region: Region = "private"
    start: Start = "uniform"
    whitening: WhiteningConfig = WhiteningConfig()
    rounds: Rounds = "largest"
    layers: Layers = "all"
    double_loss: Annotated[bool | None, Said("loss", {"float": False, "double": True, "by-size": None})] = False
    recompute: Annotated[bool, Said(values={"no": False, "yes": True})] = False
    keep: Keep = "best"
    stop_at: float = 0.0
    patience: int = 0

    def __post_init__(self) -> None:
        unknown = [p for p in self.priors if p not in PRIORS]
        if unknown or self.schedule not in SCHEDULES:
            raise AttackError(
                f"attack {self.name!r}: unknown prior {unknown} or schedule {self.schedule!r}; "
                f"priors are {sorted(PRIORS)}, schedules {sorted(SCHEDULES)}."
            )
        if isinstance(self.solver, LevenbergMarquardt) and (self.matching is not None or self.priors):
            raise AttackError(
                f"attack {self.name!r}: Levenberg-Marquardt minimises squares, and so takes the whitened distance "
                "without priors; use another solver, or leave matching and priors out."
            )

        share = 0 <= self.stop_at < 1
        if not share or self.patience < 0:
            found = f"patience is {self.patience}" if share else f"stop-at is {self.stop_at:g}"
            raise AttackError(
                f"attack {self.name!r}: {found}; expected a share of the first matching loss, from 0 to below "
                "1, as stop-at, and a number of evaluations, 0 for no end, as patience."
            )
        if isinstance(self.solver, LevenbergMarquardt) and self.recompute:
            raise AttackError(
                f"attack {self.name!r}: Levenberg-Marquardt asks one graph for many products; leave recompute out."
            )

    @property
    def draws(self) -> int:
        """First-order gradients that whitening takes of each round before the search begins."""
        return 0 if self.matching is not None else 1 + self.whitening.draws

    def chosen(self, view: GradientView) -> tuple[Start, bool]:
        """The start, and whether the loss is in double precision, with what is left to the gradient's size chosen."""
        small = (self.start == "by-size" or self.double_loss is None) and sure(view)
        start = self.start
        if start == "by-size":
            start = "light" if small else "uniform"
        return start, small if self.double_loss is None else self.double_loss

    def least_budget(self, rounds: int = 1) -> int:
        """The fewest gradient evaluations that it can start with, on a view of so many ``rounds``."""
        if self.solver is None:
            return 1
        matched = rounds if self.rounds == "all" else 1
        return matched * (1 + self.draws)

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
        and what is kept as the best is then the best by the whole of it; without one, by the matching distance alone.
        """
        require_evaluations(budget)
        if self.recompute and (not isinstance(view.model, Donut) or any(one.local for one in view.rounds)):
            raise AttackError(
                f"attack {self.name!r}: recompute=yes is for plain gradients of a Donut; found those of "
                f"{view.model.name!r}{'' if view.local is None else ' after local steps'}. Leave recompute out."
            )
        started = time.perf_counter()
        with inference_mode_of(view), recomputation(self.recompute):
            canvas = Canvas.of(knowledge.template, knowledge.private, region=self.region, grey=self.grey)
            kind, double = self.chosen(view)
            start = canvas.start(kind, generator) if start_at is None else canvas.unknowns(start_at)
            pursuit = Pursuit(self, view, knowledge, canvas, on_evaluation, guide)
            with DoubleLoss() if double else nullcontext(), constant_but(pursuit.views):
                best = pursuit.pursue(start, budget, generator)
            pixels = canvas.pixels(best).detach().clamp(0, 1)
            explained = explained_share(pursuit.sent[0], knowledge, pixels)
        seconds = time.perf_counter() - started + (pursuit.kept.seconds if pursuit.kept else 0.0)
        finding = Finding(
            pixels.float(), pursuit.best_loss, explained, pursuit.evaluations, seconds, tuple(pursuit.history)
        )
        if not self.solver:
            return finding
        return replace(finding, start=kind if start_at is None else "given", loss="double" if double else "float")


class Settled(Exception):
    """Raised inside a solver to end it where going on is not worth an evaluation."""


class Surface(Protocol):
    """What a Pursuit needs of a canvas: pixels (B, 3, H, W) of unknowns (n,), and which of them count (B, H, W)."""

    @property
    def mask(self) -> Tensor: ...

    def pixels(self, unknowns: Tensor) -> Tensor: ...


@dataclass(eq=False)
class Pursuit:
    """State of one run: the budget spent, and the unknowns to return: the best by the attack's own matching loss, or
    the last."""

    attack: GradientAttack
    view: InitVar[GradientView]
    knowledge: Knowledge
    canvas: Surface
    report: OnEvaluation
    guide: Guide | None = None
    evaluations: int = 0
    best_loss: float = float("inf")
    best_whole: float = float("inf")
    best: Tensor | None = None
    history: list[tuple[int, float]] = field(default_factory=list)
    #: (evaluation, loss) each time that the matching loss was below half of the one before.
    halvings: list[tuple[int, float]] = field(default_factory=list)
    whiteners: list[Mapping[str, Whitener]] = field(default_factory=list)
    distances: list[Distance] = field(default_factory=list)
    #: What an earlier process evaluated of the same search, where that is kept.
    kept: Search | None = None

    def __post_init__(self, view: GradientView) -> None:
        self.sent = view.rounds if self.attack.rounds == "all" else (view.largest,)
        self.views = tuple(map(shallow, self.sent)) if self.attack.layers == "shallow" else self.sent
        if self.guide is not None and isinstance(self.attack.solver, LevenbergMarquardt):
            raise AttackError(f"attack {self.attack.name!r}: Levenberg-Marquardt minimises squares and takes no guide.")

    def pursue(self, start: Tensor, budget: int, generator: torch.Generator) -> Tensor:
        if self.attack.solver is None:
            return start
        drawn = len(self.views) * self.attack.draws
        left = (budget - self.evaluations - drawn) // len(self.views)
        if left < 1:
            apiece = "" if len(self.views) == 1 else f", and a step takes one in each of {len(self.views)} rounds"
            raise AttackError(
                f"budget {budget} is spent by the {self.evaluations + drawn} draws of {self.attack.name!r}'s "
                f"whitening{apiece}; raise the budget or lower whitening.draws."
            )
        self._prepare(start, generator)
        place = None if self.guide else next_search()  # what a guide remembers is not known
        self.kept = Search(*place) if place else None
        last = start
        with suppress(Settled):
            if isinstance(self.attack.solver, LevenbergMarquardt):
                last = self.attack.solver.minimise_squares(self.linearise, start, budget=left)
            else:
                last = self.attack.solver.minimise(self.objective, start, budget=left)
        return last if self.best is None else self.best

    def _prepare(self, start: Tensor, generator: torch.Generator) -> None:
        """The distance of each round, in whitened matching by what pixels could cause in that round."""
        for view in self.views:
            if self.attack.matching is not None:
                self.distances.append(self.attack.matching(view))
                continue
            config = replace(self.attack.whitening, noise=view.noise)
            whiteners = fit_whiteners(partial(self._first_order, view), start, config, generator)
            self.whiteners.append(whiteners)
            self.distances.append(whitened(view.gradient, whiteners))

    def _first_order(self, view: GradientView, unknowns: Tensor) -> Gradient:
        self._count()
        pixels = self.canvas.pixels(unknowns)
        gradient = dummy_of(view, pixels, self.knowledge.inputs, create_graph=False)
        return {name: value.detach() for name, value in view.as_sent(gradient).items()}

    def objective(self, unknowns: Tensor, progress: float) -> tuple[float, Tensor]:
        """One gradient evaluation: matching loss plus scheduled priors (eq. 4), and its gradient."""
        known = self.kept.known(unknowns) if self.kept else None
        evaluation, pixels = (known, self.canvas.pixels(unknowns)) if known else self._evaluated(unknowns, progress)
        if self.kept and not known:
            self.kept.note(unknowns, evaluation)
        self._note(evaluation.matching, evaluation.whole, unknowns.detach(), pixels.detach())
        return evaluation.total, evaluation.gradient

    def _evaluated(self, unknowns: Tensor, progress: float) -> tuple[Evaluation, Tensor]:
        free = unknowns.detach().requires_grad_(True)
        pixels = self.canvas.pixels(free)
        rounds = [
            distance(view.as_sent(dummy_of(view, pixels, self.knowledge.inputs, create_graph=True)))
            for view, distance in zip(self.views, self.distances, strict=True)
        ]
        matching = torch.stack(rounds).mean()
        guided = matching if self.guide is None else matching + self.guide(pixels)
        total = guided + self._priors(pixels, progress)
        (gradient,) = torch.autograd.grad(total, free)
        whole = total if self.attack.keep == "objective" else guided
        return Evaluation(float(total.detach()), float(matching.detach()), float(whole.detach()), gradient), pixels

    def linearise(self, unknowns: Tensor) -> Linear:
        """One evaluation of the distance as a sum of squares; each of its products counts as one more."""
        parts = [
            Linearised(
                view, self.knowledge.inputs, self.canvas.pixels, unknowns, self._count,
                residuals(whiteners, share=1 / len(self.views)),
            )
            for view, whiteners in zip(self.views, self.whiteners, strict=True)
        ]  # fmt: skip
        here = Joined(parts)
        matching = float(here.residual.square().sum())
        self._note(matching, matching, unknowns.detach(), self.canvas.pixels(unknowns.detach()))
        return here

    def _count(self) -> None:
        self.evaluations += 1

    def _priors(self, pixels: Tensor, progress: float) -> Tensor:
        factor = SCHEDULES[self.attack.schedule](progress, len(self.history))
        terms = [w * PRIORS[name](pixels, self.canvas.mask) for name, w in self.attack.priors.items()]
        return factor * torch.stack(terms).sum() if terms else pixels.new_zeros(())

    def _note(self, matching: float, whole: float, unknowns: Tensor, pixels: Tensor) -> None:
        self.evaluations += len(self.views)
        if whole < self.best_whole or self.attack.keep == "last":
            self.best_whole, self.best_loss, self.best = whole, matching, unknowns.clone()
        self.history.append((self.evaluations, matching))
        self.report(self.evaluations, matching, pixels)
        self._settle(matching)

    def _settle(self, matching: float) -> None:
        """Settled where the attack's own matching loss says that the rest of the budget is not worth spending."""
        if not self.halvings or matching < self.halvings[-1][1] / 2:
            self.halvings.append((self.evaluations, matching))
        first, (halved, _) = self.history[0][1], self.halvings[-1]
        converged = self.attack.stop_at > 0 and matching <= self.attack.stop_at * first
        if converged or 0 < self.attack.patience <= self.evaluations - halved:
            raise Settled


@contextmanager
def inference_mode_of(view: GradientView) -> Iterator[None]:
    """Run the adversary's copies, one per round, without dropout: its masks cannot be known, their mean can."""
    with ExitStack() as stack:
        for one in view.rounds:
            stack.enter_context(in_mode(one.model.module))
        yield


def explained_share(view: GradientView, knowledge: Knowledge, pixels: Tensor) -> float:
    """1 - distance(reconstruction) / distance(template), both to the observed gradient; ``knowledge`` says which
    template the adversary had."""
    blank = distance_at(view, knowledge.template, knowledge.inputs)
    return 1 - distance_at(view, pixels, knowledge.inputs) / blank if blank > 0 else 0.0
