"""Which token stood at which position, from the gradient of an embedding table whose rows add up over positions.

The gradient of a token table of V rows and width d is

    G = scale · Aᵀ Δ + W,    Δ (T, d) the gradient at each position's input, A (T, V) one-hot rows: the tokens.

W is 0 where the table serves the input only. Where it is tied to the output layer, W = (p - y)ᵀ H / S with one
row of H per label: its rank is at most S, the number of labels, and its rows are large where y is 1, at the label
tokens. Δ and G are given; A is sought. Seen at right angles to W's row space the problem is sparse in A, but W's row
space is only known once A is. So both are found in turn, from coarse to fine: A is kept as a probability per position
and token (mean field), and the noise it is judged by falls from the size of the signal to the size of the observed
noise (deterministic annealing, Rose, 1998; the combination is docleak's own).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

#: Levels of the annealing by how sure the costs alone are of the average position, at least.
LEVELS = ((0.9, 4), (0.5, 6), (0.0, 12))
#: Sweeps over all positions per level, and the change of a probability below which a level ends.
SWEEPS = 3
SETTLED = 1e-3
#: Positions of which the costs alone are this sure stay as they are.
DECIDED = 0.9999
#: Up to this many tokens all take part. Of larger vocabularies those do that the costs at some position put at most
#: CANDIDATE behind the likeliest there (log-odds), no more than MOST_TOKENS, and as many again as W needs to show.
FEW_TOKENS = 512
CANDIDATE = 12.0
MOST_TOKENS = 4096
#: A swap is made where it leaves less than this share: other errors stay, and rounding alone decides nothing.
CLEARLY_LESS = 0.9
#: What is left in units of the noise counts as this much at least.
LEAST = 1e-9
#: Rows handled at a time where all of a large vocabulary's are.
BLOCK = 8192


@dataclass(frozen=True)
class Mixture:
    """The observed side of G = scale · Aᵀ Δ + W.

    ``rows`` (V, d) is G, ``deltas`` (T, d, float64) is Δ. Noise, as variances per coordinate: ``variance`` of a row
    of G, ``blur`` of a row of scale · Δ. ``rank`` is the largest rank of W (0: no dense part). Positions from
    ``first_label`` on hold tokens that are also labels.
    """

    rows: Tensor
    deltas: Tensor
    scale: float
    variance: float
    blur: float
    rank: int = 0
    first_label: int = 0

    @property
    def power(self) -> Tensor:
        """Mean square (T,) per coordinate of what each position adds to its token's row."""
        return self.scale**2 * self.deltas.square().mean(1)

    def over(self, tokens: Tensor) -> Mixture:
        """The same mixture over some of the tokens, in float64."""
        return replace(self, rows=self.rows[tokens].double())

    def left(self, belief: Tensor) -> Tensor:
        """What is left (V, d) of the rows once each position is taken from its tokens by ``belief`` (T, V)."""
        return self.rows - self.scale * belief.T @ self.deltas

    def doubt(self, belief: Tensor) -> Tensor:
        """Variance (T, V) per coordinate that each position leaves in each row: by its blur, and where undecided."""
        return belief * self.blur + belief * (1 - belief) * self.power[:, None]


def assign(mixture: Mixture, costs: Tensor) -> Tensor:
    """Probability (T, V) of each token at each position, each row summing to 1.

    ``costs`` (T, V) are negative log-likelihoods of what else is known, infinity for what cannot be.
    """
    keep = _participants(mixture, costs)
    part = mixture.over(keep)
    belief = (-costs[:, keep]).softmax(1)
    undecided = (belief.max(1).values < DECIDED).nonzero().flatten().tolist()
    for level in _levels(part, belief) if undecided else ():
        belief = _Field(part, costs[:, keep], belief, level).swept(undecided)
    whole = torch.zeros_like(costs)
    whole[:, keep] = belief
    return whole


@dataclass(frozen=True)
class Residue:
    """What a hypothesis about all tokens leaves, in units of the noise.

    The largest row (noise leaves about 1), and the singular values number rank and rank + 1 of W.
    """

    largest_row: float
    last: float
    next: float


def residue(mixture: Mixture, tokens: Tensor, noise: Tensor) -> Residue:
    """What ``tokens`` (T,) and the best dense part of the mixture's rank leave; ``noise`` (V,) per row, as a norm."""
    keep = _distinct(tokens, _largest(mixture.rows, MOST_TOKENS))
    left = _left(mixture, keep, tokens) / noise[keep, None]
    showing = ~torch.isin(keep, tokens) | torch.isin(keep, tokens[mixture.first_label :])
    values, vectors = _decomposed(left[showing])
    outside, padded = vectors[: mixture.rank], [*values.tolist(), 0.0]
    blocks = zip(torch.split(mixture.rows, BLOCK), torch.split(noise, BLOCK), strict=True)
    norms = torch.cat([_beyond(rows.double() / unit[:, None], outside, values) for rows, unit in blocks])
    norms[keep] = _beyond(left, outside, values)
    at = min(mixture.rank, len(padded) - 1)
    return Residue(float(norms.max()), padded[max(at - 1, 0)], padded[at])


def contested(
    tokens: Tensor, rivals: Sequence[tuple[int, int]], left_by: Callable[[Tensor], Residue]
) -> tuple[Tensor, float]:
    """The ``tokens`` (T,) after every swap for a rival (position, token) that leaves clearly less, and how many times
    as much as they the best swap that is left would leave; infinite without rivals.

    Where W has less than its largest rank, what is spare of it takes up what a wrong token leaves: that is small beside
    the noise then, and W, or what is left beyond it, is larger than with the right one.
    """
    best = left_by(tokens)
    while True:
        swaps = [(t, v) for t, v in rivals if int(tokens[t]) != v]
        times, swap = min(((_times(left_by(_swapped(tokens, *s)), best), s) for s in swaps), default=(math.inf, (0, 0)))
        if times >= CLEARLY_LESS:
            return tokens, times
        tokens = _swapped(tokens, *swap)
        best = left_by(tokens)


def _swapped(tokens: Tensor, at: int, token: int) -> Tensor:
    changed = tokens.clone()
    changed[at] = token
    return changed


def _times(one: Residue, other: Residue) -> float:
    """How many times as much ``one`` leaves: the ratios of the largest row, of the least that W takes up, and of what
    is beyond that, multiplied; a swap shows in one of them, and in which depends on where the token stands."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("largest_row", "last", "next")]
    return float(math.prod(max(a, LEAST) / max(b, LEAST) for a, b in pairs))


def _beyond(rows: Tensor, outside: Tensor, values: Tensor) -> Tensor:
    """Norm (n,) of rows beyond a space that was itself estimated, each direction by its singular value."""
    inside = rows @ outside.T
    uncertain = (inside / values[: len(outside)].clamp_min(1e-30)).square().sum(1)
    beyond: Tensor = (rows - inside @ outside).norm(dim=1) / (1 + uncertain).sqrt()
    return beyond


def dense_rank(mixture: Mixture, tokens: Tensor) -> int:
    """The rank of W if the tokens (T,) are right: singular values above rounding and noise."""
    left = _left(mixture, _distinct(tokens, _largest(mixture.rows, MOST_TOKENS)), tokens)
    values = _decomposed(left)[0]
    edge = math.sqrt(mixture.variance + mixture.blur) * (math.sqrt(left.shape[0]) + math.sqrt(left.shape[1]))
    return int((values > max(edge, 1e-6 * float(values[0]))).sum())


def mismatch(mixture: Mixture, costs: Tensor, tokens: Tensor) -> Tensor:
    """How badly each position alone explains the row of each token (T, n), in units of log-odds; 0 is the best.

    For ``tokens`` (n,) known to stand at one position each and to be no labels. The row space of W is
    estimated from the rows that seem to belong to no position.
    """
    keep = _participants(mixture, costs)
    outside = dense_rows(mixture.over(keep), (-costs[:, keep]).softmax(1), robust=True)
    rows, deltas = without(mixture.rows[tokens].double(), outside), mixture.scale * without(mixture.deltas, outside)
    distance = torch.cdist(deltas, rows).square() / rows.shape[1]  # (T, n), mean square per coordinate
    best = distance.min(0).values.clamp_min(mixture.variance + mixture.blur)
    return (distance / best - 1).clamp_min(0) * (rows.shape[1] / 2)


def dense_rows(mixture: Mixture, belief: Tensor, *, robust: bool) -> Tensor:
    """Orthonormal rows (rank, d) spanning W's row space as far as ``belief`` (T, V) shows it.

    It shows in rows of labels, where W is large, and in rows of no position, which hold nothing else; each counts by
    how sure its positions are. ``robust`` looks only at the smaller half of all rows.
    """
    left, doubt = mixture.left(belief), mixture.doubt(belief).sum(0)
    if robust:
        size = left.square().mean(1) + doubt
        count = max(3 * mixture.rank, len(left) // 2)
        return _row_space(left[size.argsort()[:count]], mixture.rank)
    labels, uses = belief[mixture.first_label :].sum(0), belief.sum(0)
    showing = (labels > 0.5) | (uses < 0.5)
    return _row_space(left[showing] / (mixture.variance + doubt[showing]).sqrt()[:, None], mixture.rank)


def without(matrix: Tensor, basis: Tensor, share: Tensor | float = 1.0) -> Tensor:
    """The rows of ``matrix`` (n, d) less (that ``share`` of) their part in the span of ``basis`` (k, d)."""
    return matrix - (matrix @ basis.T * share) @ basis


def _left(mixture: Mixture, keep: Tensor, tokens: Tensor) -> Tensor:
    """What ``tokens`` (T,) leave of the rows ``keep`` (ascending, containing all of them)."""
    rows = mixture.rows[keep].double()
    return rows.index_add(0, torch.searchsorted(keep, tokens), -mixture.scale * mixture.deltas)


def _participants(mixture: Mixture, costs: Tensor) -> Tensor:
    """Indices of the tokens that take part, ascending: all candidates, and others that show W."""
    rows, width = mixture.rows.shape
    if rows <= FEW_TOKENS:
        return torch.arange(rows, device=costs.device)
    excess = (costs - costs.min(1, keepdim=True).values).min(0).values  # 0 for each position's likeliest token
    likely = excess.argsort()[: min(int((excess <= CANDIDATE).sum()), MOST_TOKENS)]
    return _distinct(likely, _largest(mixture.rows, 3 * width))


def _distinct(*tokens: Tensor) -> Tensor:
    return torch.tensor(sorted({int(v) for some in tokens for v in some}), device=tokens[0].device)


def _largest(rows: Tensor, count: int) -> Tensor:
    return rows.square().sum(1).argsort(descending=True)[:count]


def _row_space(matrix: Tensor, rank: int) -> Tensor:
    """The ``rank`` leading right singular vectors, as rows."""
    return _decomposed(matrix)[1][:rank] if rank else matrix[:0]


def _decomposed(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values and right singular vectors (as rows); QR first keeps tall matrices cheap without squaring."""
    if matrix.shape[0] > matrix.shape[1]:
        matrix = torch.linalg.qr(matrix, mode="r").R
    _, values, vectors = torch.linalg.svd(matrix, full_matrices=False)
    return values, vectors


@dataclass(frozen=True)
class _Level:
    """One step of the annealing: variance it judges by beside the noise, and how much of labels is not understood."""

    variance: float
    label_share: float
    first: bool


def _levels(mixture: Mixture, belief: Tensor) -> Iterator[_Level]:
    """From the size of the largest signal down to the noise, in equal ratios."""
    floor = mixture.variance + mixture.blur
    top = max(float(mixture.power.max()), floor)
    sure = float(belief.max(1).values.mean())
    count = next(levels for least, levels in LEVELS if sure >= least)
    for i in range(count):
        falling = (floor / top) ** (i / (count - 1))
        yield _Level(top * falling, falling, i == 0)


class _Field:
    """Mean-field sweeps at one level: each position's belief given the mean of all the others.

    Rows of labels are seen at right angles to W's row space. Other rows of W are small and alike, so that in them
    each direction of that space counts by the mean square that the rows of no position show in it.
    """

    def __init__(self, mixture: Mixture, costs: Tensor, belief: Tensor, level: _Level) -> None:
        self.mixture, self.costs, self.level = mixture, costs, level
        self.belief = belief.clone()
        self.power = mixture.power
        self.doubt = mixture.doubt(belief).sum(0)
        self.labels = belief[mixture.first_label :].sum(0)
        self.label_power = float(mixture.rows.square().mean(1).max()) * level.label_share if mixture.rank else 0.0
        outside, left = dense_rows(mixture, belief, robust=level.first), mixture.left(belief)
        unused = belief.sum(0) < 0.5
        usual = (left[unused] @ outside.T).square().mean(0) if bool(unused.any()) else left.new_zeros(len(outside))
        shares = (usual / (usual + level.variance + mixture.variance + mixture.blur), torch.ones_like(usual))
        deltas = [mixture.scale * without(mixture.deltas, outside, share) for share in shares]
        scaled = mixture.scale * mixture.deltas
        self.overlap = [scaled @ some.T for some in deltas]  # (T, T), for other rows and for those of labels
        self.match = [some @ left.T for some in deltas]  # (T, V): each position against what is left of each row

    def swept(self, positions: list[int]) -> Tensor:
        """The belief after at most SWEEPS rounds over these positions, forwards and backwards in turn."""
        for sweep in range(SWEEPS):
            order = positions if sweep % 2 == 0 else positions[::-1]
            if max([self._update(t) for t in order]) < SETTLED:
                break
        return self.belief

    def _update(self, t: int) -> float:
        """Renew position t's belief; the largest change of a probability."""
        old = self.belief[t].clone()
        others = (self.doubt - old * self.mixture.blur - old * (1 - old) * self.power[t]).clamp_min(0)
        labels = self.labels.clamp(0, 1)
        noise = self.level.variance + self.mixture.variance + self.mixture.blur + others + self.label_power * labels
        fits = [m[t] + k[t, t] * (old - 0.5) for m, k in zip(self.match, self.overlap, strict=True)]
        new = (torch.lerp(fits[0], fits[1], labels) / noise - self.costs[t]).softmax(0)
        change = new - old
        touched = (change.abs() > 1e-12).nonzero().flatten()
        for match, overlap in zip(self.match, self.overlap, strict=True):
            match[:, touched] -= overlap[:, t, None] * change[touched]
        self.doubt = others + new * self.mixture.blur + new * (1 - new) * self.power[t]
        if t >= self.mixture.first_label:
            self.labels = self.labels + change
        self.belief[t] = new
        return float(change.abs().max())
