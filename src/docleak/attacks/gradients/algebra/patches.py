"""The patches of a LayoutLMv3 client's page from its gradient, by linear algebra.

The input at patch n is W x_n + b + p_n, so the position table's gradient holds e_n, the gradient there, and the patch
embedding's is G = sum_n e_n x_nᵀ: a linear system for the patches, of full rank if no more than h - 1 of them are
unknown (the layer norm takes one direction away). Known for vision transformers (Lu et al., APRIL, 2021); docleak's own
is to use the public template. A pixel at the same place of every patch is a system of its own, with as many unknowns
as patches in which that pixel is private, so that a width of 128 is enough for hundreds of patches; and what the
systems leave over says how exact the gradient is and so how far to trust them, with no look at the truth.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from docleak.attacks.gradients.algebra.recovered import Condition
from docleak.attacks.gradients.algebra.subset_sums import FLOAT32, MOST_STEPS, SLACK, Floats, Indices, Mask
from docleak.attacks.gradients.view import GradientView
from docleak.errors import AttackError

POSITIONS, WEIGHTS = "layoutlmv3.pos_embed", "layoutlmv3.patch_embed.proj.weight"
PATCH_TENSORS = (POSITIONS, WEIGHTS)
#: First guess of the standard deviation of private pixels around the template, in pixel units.
SPREAD = 0.5
#: How often that guess is refined by what was found.
REFINEMENTS = 3
#: A pixel counts as determined if its error has at most this standard deviation: five grey levels.
CLEAR = 5 / 255
#: A template is contradicted if it leaves over this many times what rounding and noise explain ...
CONTRADICTION = 10.0
#: ... and is at fault if without it less than this share of that is left over.
MENDED = 0.1
#: Share of a system's rank that its unknown ink must stay below to count as the only explanation.
SPARSE = 0.9


class UnsentError(AttackError):
    """The client does not send what an attack reads, so that nothing could be tried."""


def obstacle(
    architecture: str, name: str, tensors: Collection[str], batch_size: int, needed: Sequence[str] = PATCH_TENSORS,
    *, one_page: bool = True,
) -> str:  # fmt: skip
    """Why closed-form recovery does not apply to a gradient of these ``tensors`` of the model ``name``; "" if it does.

    It needs no gradient to be told, so that an audit can leave out beforehand what cannot work.
    """
    if (blind := architecture == "lilt") and needed is PATCH_TENSORS:
        needed = ()  # it reads no picture
    if architecture not in ("layoutlmv3", "lilt"):
        return (
            f"closed-form needs learned absolute position embeddings of tokens and patches; {name!r} is a "
            f"{architecture}. Use it on a layoutlmv3, or attack with gi-dqa."
        )
    if one_page and batch_size != 1:
        return (
            f"the gradient is an average over {batch_size} pages; closed-form recovery needs one page, because "
            f"each position's row then mixes the pages. {'' if blind else 'Attack with gi-dqa, or '}"
            f"{'A' if blind else 'a'}udit batches of one page."
        )
    missing = [tensor for tensor in needed if tensor not in tensors]
    if missing and all(".lora_" in tensor for tensor in tensors):
        return (
            "the gradient is of adapters alone, and closed-form recovery reads that of embeddings and patches. Attack "
            "with gi-dqa."
        )
    if missing:
        return (
            f"the gradient lacks {', '.join(missing)}, which closed-form recovery reads: the client has to train them "
            f"and to send their gradient.{'' if blind else ' gi-dqa attacks the picture without them.'}"
        )
    return ""


def require_tensors(view: GradientView, names: Sequence[str], *, one_page: bool = True) -> None:
    """Raise AttackError unless the view is the gradient of a LayoutLMv3, of one page, with the named tensors;
    UnsentError where some of them were not sent."""
    fault = obstacle(view.model.architecture, view.model.name, view.gradient, view.batch_size, names, one_page=one_page)
    if fault:
        raise (AttackError if {*names} <= {*view.gradient} else UnsentError)(fault)


def recover_pixels(
    view: GradientView, template: Tensor, private: Tensor
) -> tuple[Tensor, Tensor, tuple[Condition, ...]]:
    """Pixels (1, 3, H, W) in [0, 1], which of them (1, H, W) are determined, and the conditions for that.

    ``template`` (1, 3, H, W) in [0, 1] stays where ``private`` (1, H, W) is False. A template that contradicts the
    gradient is used nowhere else. Raises AttackError for other architectures, batches of several pages, and gradients
    without the tensors.
    """
    require_tensors(view, PATCH_TENSORS)
    return pixels_of_system(System.of(view), template, private)


def pixels_of_system(system: System, template: Tensor, private: Tensor) -> tuple[Tensor, Tensor, tuple[Condition, ...]]:
    """The same from the system of any model's patches."""
    known, unknown = system.blocks(template), system.blocks(private[:, None])[..., 0] > 0
    solution = solve(system, known, unknown)
    if solution.contradicts(system):
        other = replace(solve(system, known, np.ones_like(unknown)), contradicted=True)
        better = other.leftover is not None and other.leftover < MENDED * (solution.leftover or 0.0)
        solution = other if better else replace(solution, contradicted=True)
    pixels = system.picture(solution.pixels, template).clamp(0, 1)
    pixels = torch.where(private[:, None], pixels, template)
    determined = system.picture(solution.determined[..., None], template)[:, 0] > 0
    return pixels, determined & private, solution.conditions(system, unknown)


@dataclass(frozen=True)
class System:
    """sums[q, c] = sum_n gradients[n] pixels[n, q, c], in pixel units.

    ``gradients`` (N, h) at the N patches; ``sums`` (p², 3, h) per place q in a patch of p x p and channel c;
    ``noise`` is that of each number: the layer norm behind the patches makes every row of the gradients add up to 0, so
    what the rows do add up to is rounding and noise.
    """

    gradients: Floats
    sums: Floats
    side: int
    noise: float

    @classmethod
    def of(cls, view: GradientView) -> System:
        gradients = numbers_of(view.gradient[POSITIONS])[0, 1:]  # the first position is the CLS token's
        weights = numbers_of(view.gradient[WEIGHTS])  # (h, 3, p, p)
        width, channels, side, _ = weights.shape
        sums = weights.transpose(2, 3, 1, 0).reshape(side * side, channels, width)
        black = torch.zeros(1, channels, 1, 1, dtype=torch.float64)
        offset = view.model.normalise(black).flatten().numpy()
        slope = view.model.normalise(black + 1).flatten().numpy() - offset
        sums = (sums - offset[:, None] * gradients.sum(axis=0)) / slope[:, None]
        noise = float(np.sqrt(np.square(gradients.sum(axis=1)).mean() / width))
        return cls(gradients, sums, side, noise / float(np.min(slope)))

    @property
    def scale(self) -> float:
        """Root mean square of the sums."""
        return float(np.sqrt(np.square(self.sums).mean()))

    def blocks(self, picture: Tensor) -> Floats:
        """A picture (1, C, H, W) as patches (N, p², C)."""
        p = self.side
        values = numbers_of(picture)[0]
        channels, height, width = values.shape
        values = values.reshape(channels, height // p, p, width // p, p)
        return np.asarray(values.transpose(1, 3, 2, 4, 0).reshape(-1, p * p, channels))

    def picture(self, blocks: Floats | Mask, like: Tensor) -> Tensor:
        """Patches (N, p², C) as a picture (1, C, H, W)."""
        p, (height, width) = self.side, like.shape[2:]
        values = blocks.reshape(height // p, width // p, p, p, -1).transpose(4, 0, 2, 1, 3)
        return torch.from_numpy(values.reshape(1, -1, height, width).astype(np.float64)).to(like)


@dataclass(frozen=True)
class Solution:
    """``pixels`` (N, p², 3); ``determined`` (N, p²); ``leftover`` is the noise that the systems show, per number.

    ``most`` is the largest number of unknowns of one system, ``condition`` the worst condition number.
    """

    pixels: Floats
    determined: Mask
    leftover: float | None
    most: int
    condition: float
    contradicted: bool = False

    def contradicts(self, system: System) -> bool:
        """Whether the known pixels fail to reproduce the gradient by more than its noise allows."""
        noise = max(system.noise * float(np.sqrt(1 + len(system.gradients))), SLACK * FLOAT32 * system.scale)
        return self.leftover is not None and self.leftover > CONTRADICTION * noise

    def conditions(self, system: System, unknown: Mask) -> tuple[Condition, ...]:
        """For the report."""
        rank = min(system.gradients.shape[1] - 1, len(system.gradients))
        left = "no system has more equations than unknowns"
        if self.contradicted:
            left = "its public pixels do not reproduce it"
        elif self.leftover is not None:
            left = f"the systems leave {self.leftover / system.scale:.1e} of the gradient unexplained"
        share = float(self.determined[unknown].mean()) if unknown.any() else 1.0
        return (
            Condition("no more unknown patches than the rank", f"{self.most} of {rank}", self.most <= rank),
            Condition("the unknown patches' gradients are independent", f"condition {self.condition:.0f}",
                      self.condition * FLOAT32 < CLEAR),
            Condition("the template agrees with the gradient", left, not self.contradicted),
            Condition("every private pixel is determined", f"{share:.1%}", share == 1.0),
        )  # fmt: skip


@dataclass(frozen=True)
class _Group:
    """Places in the patch whose pixel is unknown in the same patches: ``rows`` (k,) patches, ``places`` (m,)."""

    places: Indices
    rows: Indices
    left: Floats  # (h, r), r = min(h, k)
    sizes: Floats  # (r,) singular values
    right: Floats  # (r, k)


def solve(system: System, known: Floats, unknown: Mask) -> Solution:
    """Pixels from ``known`` (N, p², 3) where ``unknown`` (N, p²) is False, and from the gradient elsewhere, which tells
    none where no patch was trained."""
    if not system.gradients.any():
        most = int(unknown.sum(axis=0).max(initial=0))
        return Solution(known.copy(), np.zeros_like(unknown), None, most, float("inf"))
    rest = system.sums - np.einsum("nh,nqc->qch", system.gradients, known)
    groups = _groups(system, unknown)
    leftover = _leftover(rest, groups)
    noise = max(leftover or system.noise, FLOAT32 * system.scale / 2)
    spread = _spread(rest, groups, noise)
    pixels, determined = known.copy(), np.zeros(unknown.shape, dtype=np.bool_)
    misfits = []
    for group in groups:
        here = np.ix_(group.rows, group.places)
        clear = _error(group, noise, SPREAD) <= CLEAR
        rank = int((group.sizes * spread > noise).sum())
        short = not _overdetermined(group)  # then nothing shows the noise, and nothing counts as clear unchecked
        determined[here] = clear[:, None] & (not short)
        if (clear.all() and not short) or (short and rank < SPARSE * (len(group.left) - 1)):
            pixels[here] += _ridge(rest[group.places], group, noise, spread)
            continue
        gradients = system.gradients[group.rows]
        sums = rest[group.places] + np.einsum("nh,nqc->qch", gradients, known[here])
        ink, left = _ink(gradients, sums, noise, 1 - known[here], 0.0 if short else noise / spread)
        pixels[here] = 1 - ink
        if short:
            determined[here] = _only_explanation(gradients, ink, noise, rank) & (left <= 3 * noise).all(axis=1)
            misfits.append(float(np.sqrt(np.square(left).mean())))
    worst = max((float(g.sizes[0] / max(g.sizes[-1], 1e-300)) for g in groups if _overdetermined(g)), default=1.0)
    most = int(unknown.sum(axis=0).max(initial=0))
    return Solution(pixels, determined, max(misfits, default=None) if leftover is None else leftover, most, worst)


def misfit(system: System, known: Floats, unknown: Mask) -> float:
    """Root mean square of what no unknown pixel can explain beside the ``known`` ones; infinite where they can
    explain anything."""
    left = _leftover(system.sums - np.einsum("nh,nqc->qch", system.gradients, known), _groups(system, unknown))
    return float("inf") if left is None else left


def _groups(system: System, unknown: Mask) -> list[_Group]:
    patterns, number = np.unique(unknown.T, axis=0, return_inverse=True)
    groups = []
    for k, pattern in enumerate(patterns):
        rows = np.flatnonzero(pattern)
        if len(rows):
            left, sizes, right = np.linalg.svd(system.gradients[rows].T, full_matrices=False)
            groups.append(_Group(np.flatnonzero(number.ravel() == k), rows, left, sizes, right))
    return groups


def _overdetermined(group: _Group) -> bool:
    return len(group.rows) < len(group.left) - 1


def _leftover(rest: Floats, groups: Sequence[_Group]) -> float | None:
    """Root mean square of what no unknown pixel can explain, or None where they can explain anything."""
    total, freedom = 0.0, 0
    for group in filter(_overdetermined, groups):
        sums = rest[group.places]
        total += float(np.square(sums).sum() - np.square(sums @ group.left).sum())
        freedom += (len(group.left) - 1 - len(group.rows)) * sums.shape[0] * sums.shape[1]
    return float(np.sqrt(max(total, 0.0) / freedom)) if freedom else None


def _spread(rest: Floats, groups: Sequence[_Group], noise: float) -> float:
    """Standard deviation of the unknown changes by expectation maximisation; it matters where noise drowns them."""
    spread = SPREAD
    for _ in range(REFINEMENTS if groups else 0):
        squares = [
            np.square(_ridge(rest[g.places], g, noise, spread)) + np.square(_error(g, noise, spread))[:, None, None]
            for g in groups
        ]
        spread = float(np.sqrt(np.concatenate([s.ravel() for s in squares]).mean()))
    return spread


def _ridge(sums: Floats, group: _Group, noise: float, spread: float) -> Floats:
    """Mean (k, m, 3) of the unknown changes, normal with standard deviation ``spread`` before the gradient is seen."""
    inverse = group.sizes / (np.square(group.sizes) + (noise / spread) ** 2)
    return np.asarray(np.einsum("rk,r,hr,qch->kqc", group.right, inverse, group.left, sums, optimize=True))


def _error(group: _Group, noise: float, spread: float) -> Floats:
    """Standard deviation (k,) that is left of each unknown change."""
    damping, seen = (noise / spread) ** 2, np.square(group.right)
    missing = np.clip(1 - seen.sum(axis=0), 0, None) + (damping / (np.square(group.sizes) + damping)) @ seen
    return np.asarray(spread * np.sqrt(missing))


def _ink(gradients: Floats, sums: Floats, noise: float, prior: Floats, damping: float) -> tuple[Floats, Floats]:
    """Ink (k, m, 3), paper (1) less pixel, by non-negative least squares; what it leaves over (m, 3) on average.

    With ``damping`` it is drawn to the ``prior`` (k, m, 3). Without, of many explanations it is a corner, where few
    patches are inked. Pages that the sums show to be grey are solved once for all channels.
    """
    goal = gradients.sum(axis=0) - sums  # (m, 3, h)
    grey = np.sqrt(np.square(goal - goal.mean(axis=1, keepdims=True)).mean()) <= 3 * noise
    if grey:
        goal, prior = goal.mean(axis=1, keepdims=True), prior.mean(axis=2, keepdims=True)
    count = len(gradients)
    system = np.concatenate([gradients.T, damping * np.eye(count)]) if damping else gradients.T
    ink, left = np.zeros((count, *goal.shape[:2])), np.zeros(goal.shape[:2])
    for place, channel in np.ndindex(*goal.shape[:2]):
        pull = damping * prior[:, place, channel] if damping else np.zeros(0)
        ink[:, place, channel] = values = _non_negative(system, np.concatenate([goal[place, channel], pull]))
        left[place, channel] = np.sqrt(np.square(gradients.T @ values - goal[place, channel]).mean())
    return np.broadcast_to(ink, (count, len(goal), sums.shape[1])), left


def _only_explanation(gradients: Floats, ink: Floats, noise: float, rank: int) -> Mask:
    """(k, m): fewer inked patches than the rank are no coincidence; and no ink there would drown in noise."""
    visible = CLEAR * np.linalg.norm(gradients, axis=1) >= noise
    gram = gradients @ gradients.T
    certain = np.ones(ink.shape[1], dtype=np.bool_)
    for place, channel in np.ndindex(*ink.shape[1:]):
        inked = np.flatnonzero(ink[:, place, channel])
        smallest = np.linalg.eigvalsh(gram[np.ix_(inked, inked)])[0] if len(inked) else np.inf
        certain[place] &= len(inked) < SPARSE * rank and noise <= CLEAR * np.sqrt(max(smallest, 0.0))
    return np.asarray(visible[:, None] & certain)


def _non_negative(system: Floats, goal: Floats) -> Floats:
    size = float(np.linalg.norm(goal))
    if size == 0.0:
        return np.zeros(system.shape[1])
    try:
        return np.asarray(size * nnls(system, goal / size, maxiter=MOST_STEPS)[0])
    except RuntimeError:  # no convergence: no ink, and what that leaves over shows it
        return np.zeros(system.shape[1])


def numbers_of(tensor: Tensor) -> Floats:
    """A tensor as float64 numbers, detached and on the CPU."""
    return np.asarray(tensor.detach().cpu().double().numpy())
