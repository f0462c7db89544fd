"""What one training proves: tests of "it is as private as this", from how many guesses about its canaries are right.

Each of m canaries was included by a fair coin of its own; an attack that sees what was released guesses some of the
coins. A test bounds the chance of so many right guesses by any attack on any training that is as private as claimed.
Bounds on the same chance may be compared after looking: the least of several upper bounds is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, bdtrc, ndtr

from docleak.errors import PrivacyError

#: Fewest guesses that are looked at when their number is chosen afterwards, and by which factor they grow.
FEWEST, STEP = 8, math.sqrt(2)
#: How many canaries delta may give away for nothing, each tried.
GIVEN_AWAY = (0, 1, 2, 4, 9, 19, 39, 99)
#: From how many given away on average the rungs are also counted each by itself; what equal chances may differ by.
MANY, ROUNDING = 0.01, 1e-9


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The chance, at most, of so many right guesses if the training is (epsilon, delta)-private.

    Steinke, Nasr & Jagielski (2023), theorem 5.2 for fair coins: epsilon alone allows a Binomial(r, q) of right
    guesses, q = 1 / (1 + e^-epsilon), and delta adds a number F of them whose mean is at most 2 m delta. Over all such
    F, P[Binomial + F >= v] is at most P[Binomial >= v] + 2 m delta max_i P[v - i <= Binomial < v] / i. Raises
    PrivacyError unless 0 <= v <= r <= m.
    """
    check_counts(canaries, guesses, right)
    chance = 1 / (1 + math.exp(-epsilon))
    enough = float(bdtrc(right - 1.0, guesses, chance))
    if not delta or not right:
        return enough
    added = np.arange(1, right + 1)
    below = np.append(bdtr(np.arange(right - 1.0, -1, -1), guesses, chance), 0.0)  # P[Binomial < v - i], i = 0..v
    nearly = below[0] - below[1:]
    return min(enough + 2 * canaries * delta * float((nearly / added).max()), 1.0)


def curve_refuted(canaries: int, guesses: int, right: int, inverse: Callable[[float], float], error: float) -> bool:
    """Whether a training with the trade-off curve F has so many right guesses with a chance of at most ``error``.

    Mahloujifar, Melis & Chaudhuri (2024), algorithm of their theorem on guesses with abstention; ``inverse`` is that of
    F. Flip one coin: a right guess about it becomes wrong and the number T of right ones falls by one, so that
    E[T; T >= j] / m <= F(E[r - T; T >= j - 1] / m) for every j, by concavity over coins and canaries. From
    P[T >= v] = error downwards, each of these needs more probability at T = j - 1; if all of it is more than 1, such a
    training cannot be. (A test solves the same as a linear program.)
    """
    check_counts(canaries, guesses, right)
    hit, missed = error * right / canaries, error * (guesses - right) / canaries
    for number in range(right - 1, -1, -1):
        wanted = inverse(hit)
        if wanted <= missed:
            break
        hit += number / (guesses - number) * (wanted - missed)
        missed = wanted
        if hit + missed > guesses / canaries:
            return True
    return hit + missed > guesses / canaries


def ladder(canaries: int) -> tuple[int, ...]:
    """The numbers of guesses that ``ordered_p_value`` looks at: all canaries, and steps down to FEWEST."""
    sizes = {math.ceil(canaries / STEP**i) for i in range(64)}
    return tuple(sorted(size for size in sizes if size >= min(FEWEST, canaries)))


def ordered_p_value(right: NDArray[np.bool_], epsilon: float, delta: float) -> float:
    """As ``one_run_p_value``, for the number of guesses that looks best afterwards.

    ``right`` (m,): whether the guess about each canary is right, the surest first, in an order that depends on what was
    released alone. T_k are the right ones of the first k, k in ``ladder``; the statistic is the least
    P[Binomial(k, q) >= T_k], and the p-value the chance, at most, that it is so small.

    Why it holds. Let p(o | u_1..u_i) be the density of the release given the first coins, the later ones averaged:
    (epsilon, delta)-private in coin i. Call canary i given away with probability [1 - e^epsilon p(o | .., not u_i) /
    p(o | .., u_i)]_+, which happens in delta of all cases at most. Given o, the coins before, and what was given away
    of them, a canary is guessed right without being given away with probability at most q. Hence, given o, the
    canaries that are right and not given away are below independent coins of probability q, as a vector, and in the
    order of o too. If at most j canaries are given away, every T_k is at most j above a path of such coins; more than j
    are given away with probability at most m delta / (j + 1). The chance that a path comes within j of the boundary is
    computed exactly, and the best j of GIVEN_AWAY is taken; so is the sum over k of what ``one_run_p_value`` says of
    each rung by itself, which is less where m delta is large: all are bounds on one chance.
    """
    canaries = len(right)
    sizes = ladder(canaries)
    chance = 1 / (1 + math.exp(-epsilon))
    counts = np.cumsum(right)[np.array(sizes) - 1]
    least = float(bdtrc(counts - 1.0, sizes, chance).min()) * (1 + ROUNDING)
    boundary = [int(np.argmax(_tail(size, chance) <= least)) for size in sizes]
    best = 1.0
    for lost in GIVEN_AWAY if delta else (0,):
        crossed = _crossing(sizes, [count - lost for count in boundary], chance)
        best = min(best, crossed + canaries * delta / (lost + 1))
        if crossed >= best:
            break
    if canaries * delta > MANY:
        rungs = zip(sizes, boundary, strict=True)
        best = min(best, sum(one_run_p_value(canaries, k, v, epsilon, delta) for k, v in rungs if v <= k))
    return best


def _tail(size: int, chance: float) -> NDArray[np.float64]:
    """P[Binomial(size, chance) >= v] for v = 0..size + 1."""
    return np.append(bdtrc(np.arange(-1.0, size), size, chance), 0.0)


def _crossing(sizes: Sequence[int], boundary: Sequence[int], chance: float) -> float:
    """P[some T_k >= its boundary] of independent coins of probability ``chance``."""
    law, crossed, before = np.ones(1), 0.0, 0
    for size, enough in zip(sizes, boundary, strict=True):
        if enough <= 0:
            return 1.0
        law = np.convolve(law, -np.diff(_tail(size - before, chance)))
        crossed += float(law[enough:].sum())
        law, before = law[:enough], size
    return min(crossed, 1.0)


def best_guesses(canaries: int, tell: Callable[[float], float], bound: Callable[[int, int], float]) -> int:
    """How many canaries to guess about, fixed before any score is seen.

    ``tell(share)`` is the expected share of right guesses about the surest ``share`` of canaries, ``bound(r, v)`` what
    v of r right ones prove: the even number of the ladder whose expected outcome proves most.
    """
    sizes = sorted({max(size // 2 * 2, 2) for size in ladder(canaries)})
    proved = [bound(size, math.floor(size * tell(size / canaries))) for size in sizes]
    return sizes[int(np.argmax(proved))]


def told_by_gaussian(strength: float, share: float) -> float:
    """The expected share of right guesses about the surest ``share`` of many coins, seen as N(coin * strength, 1)."""
    near, far = -strength / 2, strength / 2

    def called(at: float) -> float:
        return float(ndtr(-at - near) + ndtr(-at - far))

    low, high = 0.0, 40.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if called(middle) > share else (low, middle)
    return float(ndtr(-low - near)) / called(low)


def check_counts(canaries: int, guesses: int, right: int) -> None:
    """PrivacyError unless 0 <= right <= guesses <= canaries, and there is a canary."""
    if not 0 <= right <= guesses <= canaries or not canaries:
        raise PrivacyError(
            f"{right} of {guesses} guesses right about {canaries} canaries; expected no more right than guessed, no "
            "more guessed than there are canaries, and at least one."
        )
