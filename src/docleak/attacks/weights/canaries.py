"""Was this canary trained on? Scores of canary providers, from the released model's loss and from its weights.

For an audit in one run (Steinke, Nasr & Jagielski, 2023): the scores order the canaries, higher for likelier members.
Any score gives a valid bound, a better one a higher bound. All functions overwrite the weights of ``model``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from docleak.documents.page import Page
from docleak.errors import AttackError
from docleak.models.base import DocumentModel, trainable
from docleak.training.federated.local import batch_loss, set_parameters, train_in_place
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.objectives.objective import objective_of
from docleak.training.private.clipping import clipped_sum

Weights = Mapping[str, NDArray[np.float32]]
Floats = NDArray[np.float64]
#: Keeps the equations of the decoder solvable where canaries are alike, relatively.
RIDGE = 1e-6


@dataclass(frozen=True, eq=False)
class CanaryView:
    """What is released, and what the protocol makes public; never the coins, nor the other providers' pages.

    ``canaries`` are the pages of each canary provider. ``released`` are global models in order, the public start
    first, ``rounds_between`` rounds apart: (start, final) for whoever sees the final model only. ``local``,
    ``clip_norm`` (C), ``denominator`` (M) and ``noise_std`` (of a parameter in the sum of differences, before M) are
    the plan's. One client, and a server that averages. ``places`` (m,) are the weights that dirac canaries move, as
    numbers in the flat model, parameters sorted by name. AttackError for fewer than two models or no canary.
    """

    canaries: Sequence[Sequence[Page]]
    released: Sequence[Weights]
    rounds_between: int
    local: LocalPlan
    clip_norm: float
    denominator: int
    noise_std: float
    places: NDArray[np.intp] | None = None

    def __post_init__(self) -> None:
        if len(self.released) < 2 or not self.canaries:
            raise AttackError(
                f"{len(self.released)} released models and {len(self.canaries)} canaries; expected the start and at "
                "least one later model, and a canary."
            )

    @property
    def text(self) -> str:
        """The threat model in a sentence."""
        seen = "the final model" if len(self.released) == 2 else "the model after every round"
        knows = (
            "knows every canary's pages, the training and privacy plan" if self.places is None else
            "chose what every canary provider sends (one weight moved, by software of its own); knows the privacy plan"
        )  # fmt: skip
        return (
            f"sees {seen} and the public start; {knows}; does not know the coins, the noise, or any other provider's "
            "pages"
        )


def loss_scores(model: DocumentModel, view: CanaryView, *, at_start: Floats | None = None) -> Floats:
    """Black box: by how much the mean loss on each canary's own pages fell from the start to the final model, (m,).

    ``at_start`` are the losses of the start (``losses``), where they are known already.
    """
    first = losses(model, view.canaries, view.local, view.released[0]) if at_start is None else at_start
    return first - losses(model, view.canaries, view.local, view.released[-1])


def losses(model: DocumentModel, canaries: Sequence[Sequence[Page]], local: LocalPlan, weights: Weights) -> Floats:
    """The mean loss on each canary's pages of the model with these weights, (m,)."""
    objective = objective_of(local.objective)
    set_parameters(model, dict(weights))
    model.module.eval()
    means = []
    with torch.no_grad():
        for pages in canaries:
            rng = np.random.default_rng(0)  # the same draws before and after
            means.append(float(batch_loss(model, pages, objective.examples(pages), objective, rng)))
    return np.array(means)


def weight_scores(model: DocumentModel, view: CanaryView, *, at_start: NDArray[np.float32] | None = None) -> Floats:
    """White box: each canary's coin, estimated from how the weights moved along its own clipped difference, (m,).

    With differences U (m, d) and the change Y = M (theta_t - theta_t-1) = U^T coins + others + noise: z = U Y has mean
    G coins and noise s^2 G, G = U U^T, so that the linear estimate of least squared error, from coins of mean 1/2 and
    variance 1/4, solves (G + 4 s^2) x = z - G/2. It takes off what other canaries' differences have in common with a
    canary's own. Several released models add up their z and G; each needs the differences from its own weights, and m
    copies of them in memory. Where a rate below 1 draws the canaries, it is an approximation. ``at_start`` are the
    first ones (``own_differences``), where they are known already.
    """
    count = len(view.canaries)
    of = partial(own_differences, model, view.canaries, view.local, view.clip_norm)
    along, gram, noise = np.zeros(count), np.zeros((count, count)), 0.0
    for before, after in zip(view.released, view.released[1:], strict=False):
        known = at_start if before is view.released[0] else None
        known_moves = of(before) if known is None else known
        moved = view.denominator * (flat_of(after) - flat_of(before))
        along += known_moves @ moved.astype(np.float32)
        gram += view.rounds_between * (known_moves @ known_moves.T)
        noise += 4 * view.noise_std**2
    noise = noise / (len(view.released) - 1) + RIDGE * float(np.trace(gram)) / count
    return np.asarray(np.linalg.solve(gram + noise * np.eye(count), along - gram.sum(1) / 2))


def dirac_scores(view: CanaryView) -> Floats:
    """White box: how far each dirac canary's own weight moved, over C, from start to final model, (m,).

    No other canary moves it, and what the others move is small beside C. Without noise and at rate 1 it is the coin
    times the number of rounds. Models in between add nothing at rate 1, and were not seen to add anything below it.
    AttackError for canaries that are none.
    """
    if view.places is None:
        raise AttackError("the canaries move no weight of their own; expected dirac canaries.")
    first, last = (
        flat_of(weights)[view.places].astype(np.float64) for weights in (view.released[0], view.released[-1])
    )
    return np.asarray(view.denominator * (last - first) / view.clip_norm)


def flat_of(weights: Weights) -> NDArray[np.float32]:
    """All parameters, sorted by name, (d,)."""
    return np.concatenate([weights[name].ravel() for name in sorted(weights)])


def quiet_places(differences: NDArray[np.float32], count: int, *, rng: np.random.Generator) -> NDArray[np.intp]:
    """The ``count`` weights that public ``differences`` (n, d) move least, (count,); ties are drawn by ``rng``.

    The noise is the same everywhere; what others train is not. AttackError for fewer weights than canaries.
    """
    moved = np.abs(differences).sum(0)
    if len(moved) < count:
        raise AttackError(
            f"{count} dirac canaries, but {len(moved)} weights are trained; expected one weight for each."
        )
    drawn, most = rng.random(len(moved)), np.partition(moved, count - 1)[count - 1]
    fewer, ties = np.flatnonzero(moved < most), np.flatnonzero(moved == most)
    left = count - len(fewer)
    places = np.concatenate([fewer, ties[np.argpartition(drawn[ties], left - 1)[:left]]])  # sorting all takes minutes
    return places[np.lexsort((drawn[places], moved[places]))]


def move_weight(model: DocumentModel, place: int, by: float) -> None:
    """What a dirac canary does: one weight of the flat model is moved; AttackError for a place outside it."""
    named = dict(trainable(model.module))
    for name in sorted(named):
        if place < named[name].numel():
            with torch.no_grad():
                named[name].view(-1)[place] += by
            return
        place -= named[name].numel()
    raise AttackError(f"weight {place} is beyond the model's last.")


def own_differences(
    model: DocumentModel, canaries: Sequence[Sequence[Page]], local: LocalPlan, clip_norm: float, weights: Weights
) -> NDArray[np.float32]:
    """What training on each canary alone changes, from ``weights`` and clipped, (m, d), parameters sorted by name.

    The order of its examples is not known, and does not matter where they are one batch.
    """
    set_parameters(model, dict(weights))
    before = {name: p.detach().clone() for name, p in trainable(model.module)}
    rows = []
    for pages in canaries:
        run = partial(train_in_place, model, pages, local, client="canary", rng=np.random.default_rng(0))
        total = clipped_sum(model.module, before, [run], clip_norm).total
        rows.append(np.concatenate([total[k].cpu().numpy().ravel() for k in sorted(total)]).astype(np.float32))
    return np.stack(rows)
