"""Sequences of words, token by token: which continuations does the span of a deeper layer's gradient allow?

DAGER's second filter (Petrov et al., 2024). What a layer behind the first attention reads at a place of a causal
decoder depends on the words up to that place and on nothing behind it, so that a sequence is extended by each word in
turn, and what that layer would read is held against the span of what its weights sent. docleak's own is the cut-off:
a place counts where noise and rounding explain how far from the span it is. Encoders read both ways, so that only whole
sequences can be tried (``arrange``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.subspace import Subspace
from docleak.errors import AttackError

#: Sequences that are held at once; more than these are cut, the furthest from the span first.
MOST = 64
#: Sequences that go through the network at once.
CHUNK = 256
#: Whole sequences of an encoder that are tried at most.
TRIED = 50_000

#: Token ids (n, t) -> what the deeper layer reads (n, d) at their last place, or (n, t, d) at all.
Reads = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Sequences:
    """``rows`` are the sequences that cannot be continued, in no order; ``cut`` whether some were given up for others.

    Of all continuations tried, ``furthest`` is the largest distance from the span, as a share of what is allowed, of
    one that was taken, ``nearest`` the smallest of one that was not.
    """

    rows: tuple[tuple[int, ...], ...]
    furthest: float
    nearest: float
    cut: bool

    @property
    def clear(self) -> bool:
        """Whether a gap of a factor 10 separates what was taken from what was not, and nothing was given up."""
        return bool(self.rows) and not self.cut and self.nearest >= 10 * self.furthest


def grow(
    space: Subspace, choices: Callable[[int], Tensor], reads: Reads, *, begun: Tensor, longest: int, most: int = MOST,
    allowed: float | None = None,
) -> Sequences:  # fmt: skip
    """Continue ``begun`` (n, t) until nothing can be added, to ``longest`` tokens at most.

    ``choices(t)`` are the ids that may stand at place t, ``reads`` what the deeper layer reads at a row's last place.
    ``allowed`` is the distance at which a place counts, where that of known places tells it; otherwise the span's own.
    Of several examples the rows of all are found; one that begins another, or equals it, is not told from it.
    """
    rows, done, cut = begun, list[tuple[int, ...]](), False
    furthest, nearest = 0.0, math.inf
    while len(rows) and rows.shape[1] < longest:
        words = choices(rows.shape[1])
        longer = torch.cat([rows.repeat_interleave(len(words), 0), words.repeat(len(rows))[:, None]], 1)
        apart = _apart(space, longer, reads, allowed)
        taken = apart <= 1
        furthest = max([furthest, *apart[taken].tolist()])
        nearest = min([nearest, *apart[~taken].tolist()])
        ended = ~taken.view(len(rows), len(words)).any(1) if len(words) else torch.ones(len(rows), dtype=torch.bool)
        done += [tuple(row) for row in rows[ended].tolist() if rows.shape[1] > begun.shape[1]]
        best = apart.argsort()[: int(taken.sum())]
        cut |= len(best) > most
        rows = longer[best[:most].sort().values]
    done += [tuple(row) for row in rows.tolist() if rows.shape[1] > begun.shape[1]]
    return Sequences(tuple(done), furthest, nearest, cut)


def arrange(space: Subspace, choices: Sequence[Tensor], reads: Reads) -> Sequences:
    """Whole sequences of an encoder, one word of ``choices[t]`` at each place t, all of whose places are in the span.

    ``reads`` gives all places. Raises AttackError beyond TRIED sequences.
    """
    number = math.prod(len(words) for words in choices)
    if number > TRIED:
        raise AttackError(
            f"{number:.1e} sequences have one of the words at each of {len(choices)} places; an encoder reads both "
            f"ways, so all would have to be tried, and at most {TRIED} are."
        )
    rows = torch.cartesian_prod(*choices).reshape(number, len(choices))
    apart = _apart(space, rows, reads, None)
    taken = apart <= 1
    return Sequences(
        tuple(tuple(row) for row in rows[taken].tolist()),
        max(apart[taken].tolist(), default=0.0),
        min(apart[~taken].tolist(), default=math.inf),
        cut=False,
    )


def _apart(space: Subspace, rows: Tensor, reads: Reads, allowed: float | None) -> Tensor:
    """(n,): distance of each row from the span as a share of what is allowed; of the worst place."""
    distances = [torch.zeros(0, dtype=torch.float64)]
    for part in torch.split(rows, CHUNK) if len(rows) else ():
        read = reads(part).detach().flatten(0, -2)
        shares = space.residual(read) / (allowed or space.tolerance(read))
        distances.append(shares.view(len(part), -1).amax(1))
    return torch.cat(distances)
