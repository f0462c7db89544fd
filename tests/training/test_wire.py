"""What is sent: exact, in half precision within its range, or the largest entries, by hand and by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from docleak.errors import FederationError
from docleak.training.federated.wire import Compression, pack, relative_error, unpack

FP16, EXACT = Compression("fp16"), Compression()


def array(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("largest", [65504.0, -65504.0])
def test_half_precision_holds_its_largest_number_and_refuses_the_next(largest: float) -> None:
    sent = unpack(pack({"a": array(1.0, largest)}, FP16), {"a": (2,)}, FP16)
    assert sent["a"].tolist() == [1.0, largest] and sent["a"].dtype == np.float32
    for larger in (np.nextafter(np.float32(largest), np.float32(math.copysign(math.inf, largest))), 1.07 * largest):
        with pytest.raises(FederationError, match="'b' changed by more than half precision can hold"):
            pack({"a": array(1.0), "b": array(0.0, float(larger))}, FP16)
    with pytest.raises(FederationError, match="half precision"):
        pack({"a": array(70_000.0)}, FP16)
    assert pack({"a": array()}, FP16)["a"].size == 0, "a parameter without numbers is no fault"


@pytest.mark.parametrize(("share", "size", "kept"), [(0.3, 5, 2), (0.5, 4, 2), (0.01, 3, 1), (1.0, 3, 3), (0.2, 5, 1)])
def test_a_share_of_each_parameter_is_rounded_up(share: float, size: int, kept: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.permutation(size).astype(np.float32) - 1.5  # of both signs, and no two alike in size but for sign
    packed = pack({"a": values}, Compression("topk", share))
    largest = sorted(range(size), key=lambda i: -abs(values[i]))
    assert len(packed["a::index"]) == len(packed["a::value"]) == kept
    assert sorted(np.abs(packed["a::value"])) == sorted(abs(values[i]) for i in largest[:kept])
    assert packed["a::value"].tolist() == values[packed["a::index"].astype(int)].tolist()
    assert packed["a::index"].tolist() == sorted(packed["a::index"].tolist())


def test_what_is_not_sent_is_zero_in_the_parameters_own_shape() -> None:
    delta = {"a": array(3.0, -4.0, 0.5, 1.0, -2.0, 0.1).reshape(2, 3), "b": array(5.0)}
    compression = Compression("topk", 0.5)
    sent = unpack(pack(delta, compression), {"a": (2, 3), "b": (1,)}, compression)
    assert sent["a"].tolist() == [[3.0, -4.0, 0.0], [0.0, -2.0, 0.0]] and sent["b"].tolist() == [5.0]
    lost = 0.5**2 + 1 + 0.1**2
    whole = 9 + 16 + 0.5**2 + 1 + 4 + 0.1**2 + 25
    assert relative_error(delta, compression) == pytest.approx(math.sqrt(lost / whole), rel=1e-6)


def test_errors_of_the_other_ways() -> None:
    delta = {"a": array(1.0, 1.0 + 2.0**-12), "b": array(2.0)}
    assert relative_error(delta, EXACT) == 0.0
    assert relative_error(delta, FP16) == pytest.approx(2.0**-12 / math.sqrt(6), rel=1e-3)
    for compression in (EXACT, FP16, Compression("topk", 0.5)):
        assert relative_error({"a": np.zeros(4, np.float32)}, compression) == 0.0


def test_a_sparse_parameter_that_does_not_fit_is_refused() -> None:
    compression = Compression("topk", 1.0)
    packed = pack({"a": array(1.0, 2.0, 3.0)}, compression)
    assert unpack(packed, {"a": (3,)}, compression)["a"].tolist() == [1.0, 2.0, 3.0], "the last place is one"
    wrong = (
        {**packed, "a::index": np.array([0, 1, 3], np.uint32)},
        {**packed, "a::index": np.array([0, 1], np.uint32)},
        {"a::index": packed["a::index"]},
    )
    for arrays in wrong:
        with pytest.raises(FederationError, match="does not fit the model"):
            unpack(arrays, {"a": (3,)}, compression)
    nothing = {"a::index": np.zeros(0, np.uint32), "a::value": np.zeros(0, np.float32)}
    assert unpack(nothing, {"a": (3,)}, compression)["a"].tolist() == [0.0] * 3


def test_bytes_are_those_of_the_numbers() -> None:
    delta = {"a": np.zeros((3, 5), np.float32), "b": np.zeros(2, np.float32)}
    for compression, expected in ((EXACT, 4 * 17), (FP16, 2 * 17), (Compression("topk", 0.2), (4 + 4) * (3 + 1))):
        assert sum(value.nbytes for value in pack(delta, compression).values()) == expected


@pytest.mark.parametrize("text", ["none", "fp16", "topk:0.01", " topk:1e-2 ", "topk:1"])
def test_names_are_read_and_written(text: str) -> None:
    compression = Compression.of(text)
    assert Compression.of(str(compression)) == compression
    if "topk" in text:
        assert compression.share == float(text.strip().split(":")[1])
