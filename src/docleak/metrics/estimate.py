"""A number that was measured: its value, the interval around it, and what it rests on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtr, stdtrit

#: Groups from which resampling tells enough; that all of five moved one way has by chance a probability of 1/16.
FEWEST = 6
#: Skewness below which there is none.
TINY = 1e-6
#: Groups drawn at once by the bootstrap, which bounds its memory.
DRAWS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Estimate:
    """``value`` with its interval ``low`` to ``high``, from ``n`` measurements of ``groups`` that stand or fall as one.

    ``value`` is None where nothing was measured, ``low`` and ``high`` where nothing says how sure it is: fewer than two
    groups, say. ``missing`` were to be measured and could not be; they do not enter. ``of`` names what was counted
    ("fields", "providers"), ``why`` says why there is no value or no interval.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0
    groups: int = 0
    missing: int = 0
    of: str = ""
    why: str = ""

    @classmethod
    def exactly(cls, value: float | None, *, n: int = 0, of: str = "") -> Estimate:
        """A number that is counted or computed and has no interval."""
        return cls(None if value is None else float(value), n=n, of=of)

    @classmethod
    def spread(cls, values: Sequence[float | None]) -> Estimate:
        """Mean, least and greatest of the values that are there: a spread, and no interval of confidence."""
        known = [float(value) for value in values if value is not None]
        if not known:
            return cls(None)
        return cls(float(np.mean(known)), min(known), max(known), len(known), len(known), len(values) - len(known))

    @classmethod
    def of_json(cls, saved: Mapping[str, Any]) -> Estimate:
        """The inverse of ``to_json``."""
        return cls(**saved)

    def within(self, least: float, most: float) -> Estimate:
        """With ends between the ``least`` and the greatest that the number can be."""
        return self if self.low is None or self.high is None else replace(
            self, low=max(self.low, least), high=min(self.high, most)
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Plain values; the words are left out where there are none."""
        return {name: value for name, value in asdict(self).items() if value != ""}

    def text(self, digits: int = 3, *, percent: bool = False, signed: bool = False) -> str:
        """ "0.512 [0.400, 0.624]"; "-" where nothing was measured."""
        if self.value is None:
            return "-"
        value = number_text(self.value, digits, percent=percent, signed=signed)
        interval = self.interval_text(digits, percent=percent, signed=signed)
        return f"{value} [{interval}]" if interval else value

    def interval_text(self, digits: int = 3, *, percent: bool = False, signed: bool = False, to: str = ", ") -> str:
        """ "0.400, 0.624"; "" without an interval, or where every resample gave the same: nothing is that certain."""
        if self.low is None or self.high is None or self.low == self.high:
            return ""
        return to.join(number_text(end, digits, percent=percent, signed=signed) for end in (self.low, self.high))


def number_text(value: float, digits: int, *, percent: bool = False, signed: bool = False) -> str:
    """The value with so many digits; as a percentage, or with its sign, if asked for."""
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    sign = "+" if signed else ""
    return f"{100 * value:{sign}.{digits}f}%" if percent else f"{value:{sign},.{digits}f}"


def ratio_interval(
    sums: NDArray[np.float64],
    counts: NDArray[np.int64],
    rng: np.random.Generator,
    level: float,
    resamples: int,
    share: bool,
) -> tuple[float | None, float | None]:
    """Interval of sum(sums) / sum(counts) over groups, (G,) each, as in ``score.aggregate``; None with fewer than two.

    ``share`` says that every value lies in 0..1. Its interval over fewer than FEWEST groups is no narrower than the
    exact one of as many that are all alike, for resamples stay between the least and the greatest group; where groups
    hold unequal numbers of values, some of which were hits, they are as many as ``effective`` says. That of other
    numbers is no narrower than Student's over so few (of two that lie around the truth one half of the draws has both
    on one side), and than ``skewed`` over any. Groups of which nothing was counted are none.
    """
    sums, counts = sums[counts > 0], counts[counts > 0]
    n = len(sums)
    if n < 2:
        return None, None
    if share and (not sums.any() or np.array_equal(sums, counts)):
        return share_ends(float(sums.any()), float(sums.any()), n, level)
    means: list[float] = []
    for _ in range(0, resamples, step := max(1, DRAWS_AT_ONCE // n)):
        drawn = rng.integers(n, size=(min(step, resamples - len(means)), n))  # (resamples of this round, G)
        means.extend(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    alike = effective(counts) if share else n
    widened = expanded_tail(alike, level)
    low, high = (float(end) for end in np.quantile(means, (widened, 1 - widened)))
    value = float(sums.sum() / counts.sum())
    if share:
        return share_interval(low, high, value, n, level, alike)
    apart = (sums - value * counts) / counts.mean()
    ends = [skewed(value, apart, level)]
    if n < FEWEST:
        ends.append(skewed(value, apart, level, skewness=0.0))
    return min(low, *(end for end, _ in ends)), max(high, *(end for _, end in ends))


def skewed(
    value: float, apart: NDArray[np.float64], level: float, skewness: float | None = None
) -> tuple[float, float]:
    """Student's interval of a mean of groups that lie so far ``apart`` (G,) from it, transformed for their skewness
    (Hall, 1992, "On the removal of skewness by transformation", the cubic one, which no skewness makes fold over);
    Student's own for a ``skewness`` of 0.

    Few groups of a long tail lack it: their mean is too low, and so is their spread.
    """
    n = len(apart)
    spread = math.sqrt(float((apart**2).mean()))
    if not spread:
        return value, value
    if skewness is None:
        skewness = float((apart**3).mean()) / spread**3
    reach, scale = float(stdtrit(n - 1, (1 + level) / 2)) / math.sqrt(n), spread * math.sqrt(n / (n - 1))

    def transformed(at: float) -> float:
        at -= skewness / (6 * n)
        return float(np.cbrt(1 + skewness * at) - 1) * 3 / skewness if abs(skewness) > TINY else at

    return value - scale * transformed(reach), value - scale * transformed(-reach)


def clopper_pearson(hits: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Exact two-sided interval of a binomial proportion (Clopper & Pearson, 1934); (0, 1) for n = 0."""
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else float(betaincinv(hits, n - hits + 1, tail))
    high = 1.0 if hits == n else float(betaincinv(hits + 1, n - hits, 1 - tail))
    return low, high


def effective(counts: NDArray[np.int64]) -> float:
    """As how many equal groups so many values in each (G,), G >= 2, count (Kish, 1965, "Survey Sampling"), 2 to G: of
    forty documents of one to eight fields as 31."""
    return max(2.0, float(counts.sum() ** 2 / (counts**2).sum()))


def share_interval(
    low: float, high: float, value: float, groups: int, level: float, alike: float | None = None
) -> tuple[float, float]:
    """``share_ends`` of ``groups``, or of as many as they count if equal (``alike``); over fewer than FEWEST groups no
    narrower than the exact one of as many that are all alike."""
    low, high = share_ends(low, high, alike or groups, level)
    exact = clopper_pearson(groups * value, groups, level) if groups < FEWEST else (low, high)
    return min(low, exact[0]), max(high, exact[1])


def share_ends(low: float, high: float, groups: float, level: float) -> tuple[float, float]:
    """The ends of a share's interval over resampled groups, where those of some resamples are all 0 (``low`` is), or 1.

    Such resamples do not see the risk of others: the free end is then at least the exact binomial bound for as many
    groups that are all alike (Clopper & Pearson, 1934). One field read of sixty on six documents says no less of other
    documents than none read does.
    """
    risk = unseen(groups, level)
    return min(low, 1 - risk) if high == 1 else low, max(high, risk) if low == 0 else high


def unseen(groups: float, level: float) -> float:
    """The largest share of groups of another kind that so many of one kind do not exclude (Clopper & Pearson, 1934)."""
    return float(1 - ((1 - level) / 2) ** (1 / groups))


def ratio(
    sums: NDArray[np.float64],
    counts: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    share: bool = True,
    level: float = 0.95,
    resamples: int = 2000,
    **more: Any,
) -> Estimate:
    """sum(sums) / sum(counts) over groups with its ``ratio_interval``; no value where nothing was counted. ``more`` are
    other fields of the estimate."""
    low, high = ratio_interval(sums, counts, rng, level, resamples, share)
    value = float(sums.sum() / counts.sum()) if counts.any() else None
    return Estimate(value, low, high, int(counts.sum()), int((counts > 0).sum()), **more)


def ratio_of(groups: Iterable[Sequence[float]], rng: np.random.Generator, **more: Any) -> Estimate:
    """The mean of all values, which come in groups, with its ``ratio_interval`` over these; ``more``: see ``ratio``."""
    values = list(groups)
    sums = np.array([sum(of) for of in values], dtype=np.float64)
    return ratio(sums, np.array([len(of) for of in values], dtype=np.int64), rng, **more)


def expanded_tail(n: float, level: float) -> float:
    """The percentile at which an interval of ``level`` over n >= 2 resampled groups begins (Hesterberg, 2015, 4.3)."""
    return float(ndtr(-np.sqrt(n / (n - 1)) * stdtrit(n - 1, (1 + level) / 2)))


def by_signs(differences: Sequence[int]) -> float:
    """How probable a sum as great is if a coin chose each difference's sign (exact permutation test, one-sided)."""
    ways = np.ones(1)  # of a sum of k less their total: the share at place k
    for size in map(abs, differences):
        none = np.zeros(2 * size)
        ways = (np.concatenate([ways, none]) + np.concatenate([none, ways])) / 2
    return float(ways[sum(differences) + sum(map(abs, differences)) :].sum())
