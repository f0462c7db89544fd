"""The noise is normal, independent and unrepeatable unless seeded; a wrong scale and a shared stream are caught."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from docleak.privacy.randomness import CHUNK, Randomness

COUNT = 400_000


def looks_standard_normal(sample: np.ndarray) -> bool:
    """Shape, variance, and independence of neighbours; each wrongly false once in a thousand."""
    n = len(sample)
    shape = stats.kstest(sample, "norm").pvalue > 1e-3
    variance = stats.chi2.cdf((sample**2).sum(), n)
    neighbours = abs(float(np.corrcoef(sample[:-1], sample[1:])[0, 1])) * np.sqrt(n) < 3.3
    halves = abs(float(np.corrcoef(sample[: n // 2], sample[n // 2 :])[0, 1])) * np.sqrt(n / 2) < 3.3
    return bool(shape and 5e-4 < variance < 1 - 5e-4 and neighbours and halves)


def test_normal_and_independent() -> None:
    assert looks_standard_normal(Randomness.seeded(1).gaussian(COUNT))


def test_planted_faults_are_caught() -> None:
    sample = Randomness.seeded(1).gaussian(COUNT)
    assert not looks_standard_normal(1.01 * sample)
    assert not looks_standard_normal(np.repeat(sample[::2], 2))
    assert not looks_standard_normal(np.concatenate([sample[: COUNT // 2]] * 2))
    assert not looks_standard_normal(np.random.default_rng(0).uniform(-(3**0.5), 3**0.5, COUNT))


def test_the_tails_are_there() -> None:
    sample = np.abs(Randomness.seeded(2).gaussian(2_000_000))
    expected = 2_000_000 * 2 * stats.norm.sf(4.0)
    assert abs((sample > 4.0).sum() - expected) < 4 * expected**0.5
    assert sample.max() < 8.6


def test_seeded_streams_repeat_and_others_do_not() -> None:
    first, again, other = Randomness.seeded(3, "a"), Randomness.seeded(3, "a"), Randomness.seeded(3, "b")
    drawn = first.gaussian(10)
    np.testing.assert_array_equal(drawn, again.gaussian(10))
    assert not np.isin(other.gaussian(10), drawn).any()
    assert not np.isin(first.gaussian(10), drawn).any(), "the stream goes on"
    assert first.coins.random() == again.coins.random()
    fresh = [Randomness.fresh() for _ in range(2)]
    assert not np.isin(fresh[0].gaussian(1000), fresh[1].gaussian(1000)).any()
    assert fresh[0].coins.random() != fresh[1].coins.random()
    assert [r.secret for r in (first, fresh[0])] == [False, True]


def test_noise_and_coins_share_nothing() -> None:
    """Drawing coins leaves the noise as it was, and the other way round."""
    plain, mixed = Randomness.seeded(4), Randomness.seeded(4)
    mixed.coins.random(1000)
    np.testing.assert_array_equal(plain.gaussian(100), mixed.gaussian(100))
    assert plain.coins.random(1000)[0] == Randomness.seeded(4).coins.random()
    correlation = np.corrcoef(plain.gaussian(100_000), plain.coins.standard_normal(100_000))[0, 1]
    assert abs(correlation) * 100_000**0.5 < 4


@pytest.mark.parametrize("count", [0, 1, 2, 7, CHUNK - 1, CHUNK + 1])
def test_any_count(count: int) -> None:
    sample = Randomness.seeded(5).gaussian(count)
    assert sample.shape == (count,) and sample.dtype == np.float64 and np.isfinite(sample).all()
    assert len(np.unique(sample)) == count
