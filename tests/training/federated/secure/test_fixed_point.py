"""Fixed point: the error bound against exact fractions, the limit, and refusal instead of wrapping."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docleak.errors import FederationError
from docleak.training.federated.secure.fixed_point import CHUNK, FixedPoint, from_words, to_words, words_of

limits = st.floats(1e-9, 1e9)


@given(limit=limits, silos=st.integers(1, 100), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_the_sum_is_within_the_stated_error(limit: float, silos: int, seed: int) -> None:
    """Against the exact sum in fractions, values up to the limit and at it."""
    fixed = FixedPoint.for_limit(limit, silos)
    rng = np.random.default_rng(seed)
    values = rng.uniform(-limit, limit, (silos, 5))
    values[:, 0], values[:, 1] = limit, -limit
    total = sum((fixed.encode(row) for row in values), np.zeros(5, np.uint32))
    exact = [sum(map(Fraction, column)) for column in values.T.tolist()]
    sums = fixed.decode(total)
    assert max(abs(Fraction(f) - e) for f, e in zip(sums.tolist(), exact, strict=True)) <= Fraction(fixed.error(silos))


@given(limit=limits, silos=st.integers(1, 1000))
def test_for_limit_is_the_finest_that_fits(limit: float, silos: int) -> None:
    fixed = FixedPoint.for_limit(limit, silos)
    assert fixed.limit >= limit
    assert fixed.fraction_bits == 64 or FixedPoint(fixed.fraction_bits + 1, silos).limit < limit


@pytest.mark.parametrize("silos", [1, 2, 3, 7, 1000])
def test_for_limit_of_a_limit_that_fits_exactly(silos: int) -> None:
    for bits in range(-64, 65):
        assert FixedPoint.for_limit(FixedPoint(bits, silos).limit, silos).fraction_bits == bits


@given(bits=st.integers(-64, 64), silos=st.integers(1, 1000))
def test_no_sum_of_the_largest_words_wraps(bits: int, silos: int) -> None:
    fixed = FixedPoint(bits, silos)
    assert silos * fixed.steps < 2**31
    for sign in (1, -1):
        word = fixed.encode(np.array([sign * fixed.limit])).view(np.int32)[0]
        assert int(word) == sign * fixed.steps


@pytest.mark.parametrize("place", [0, CHUNK - 1, CHUNK, 2 * CHUNK + 5])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_value_over_the_limit_is_refused_wherever_it_stands(place: int, sign: int) -> None:
    fixed = FixedPoint(20, 4)
    values = np.zeros(2 * CHUNK + 6)
    values[place] = sign * fixed.limit
    assert fixed.encode(values)[place] == (sign * fixed.steps) % 2**32
    values[place] = sign * (fixed.limit + 1 / 2**20)
    with pytest.raises(FederationError, match=r"larger than 511\.9999"):
        fixed.encode(values)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_values_that_are_no_numbers_are_refused(value: float) -> None:
    for weight in (1.0, 1e30):
        with pytest.raises(FederationError, match="finite"):
            FixedPoint(16, 3).encode(np.array([0.0, value]), weight=weight)


@pytest.mark.parametrize(("bits", "silos"), [(65, 2), (-65, 2), (3, 0), (3, 2**31)])
def test_fixed_points_that_make_no_sense(bits: int, silos: int) -> None:
    with pytest.raises(FederationError, match="expected"):
        FixedPoint(bits, silos)


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_limits_that_make_no_sense(limit: float) -> None:
    with pytest.raises(FederationError, match="positive"):
        FixedPoint.for_limit(limit, 3)


def test_updates_there_and_back() -> None:
    """FedAvg's sums of n_k Delta_k and of n_k, against numpy in float64; order of the names does not matter."""
    rng = np.random.default_rng(0)
    shapes = {"b": (3, 4), "a": (5,), "scale": ()}
    deltas = [{name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()} for _ in range(3)]
    weights, fixed = [3, 50, 700], FixedPoint.for_limit(4000, 3)
    sent = [to_words(dict(reversed(delta.items())), n, fixed) for delta, n in zip(deltas, weights, strict=True)]
    assert {words.size for words in sent} == {words_of(shapes)} == {12 + 5 + 1 + 1}
    sums, total = from_words(sent[0] + sent[1] + sent[2], shapes, fixed)
    assert total == sum(weights)
    for name in shapes:
        expected = sum(n * delta[name].astype(np.float64) for n, delta in zip(weights, deltas, strict=True))
        assert sums[name].shape == shapes[name]
        np.testing.assert_allclose(sums[name], expected, rtol=0, atol=fixed.error(3))


@pytest.mark.parametrize("weight", [0, -1, 2**31 // 3 + 1])
def test_weights_that_do_not_fit(weight: int) -> None:
    with pytest.raises(FederationError, match="weight"):
        to_words({"a": np.zeros(2)}, weight, FixedPoint(16, 3))


def test_a_sum_for_other_shapes() -> None:
    with pytest.raises(FederationError, match="5 words; these parameters need 4"):
        from_words(np.zeros(5, np.uint32), {"a": (3,)}, FixedPoint(16, 3))


def test_the_refusal_does_not_tell_the_value() -> None:
    """Engines pass a silo's errors on to the server."""
    with pytest.raises(FederationError) as refused:
        FixedPoint(20, 4).encode(np.array([98765.4321]))
    assert "9876" not in str(refused.value)
