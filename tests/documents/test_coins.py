"""Coins by name: uniform, independent, and nobody else's business."""

from __future__ import annotations

import numpy as np
from scipy import stats

from docleak.documents.coins import coin, stream, told_apart

NAMES = [f"provider {i}" for i in range(4000)]


def test_coins_are_uniform_over_names_and_over_keys() -> None:
    for drawn in ([coin(7, "use", name) for name in NAMES], [coin(key, "use", "name") for key in range(4000)]):
        assert stats.kstest(drawn, "uniform").pvalue > 1e-4 and min(drawn) >= 0 and max(drawn) < 1


def test_purposes_keys_and_names_draw_apart() -> None:
    one = [coin(7, "use", name) for name in NAMES]
    for other in (
        [coin(8, "use", name) for name in NAMES],
        [coin(7, "other", name) for name in NAMES],
        [coin(b"7\0", "use", name) for name in NAMES],
    ):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.08
    assert coin(7, "ab", "c") != coin(7, "a", "bc")
    assert stream(7, "use", "a").random() == stream(7, "use", "a").random() != stream(7, "use", "b").random()


def test_equal_names_are_told_apart_alike_whichever_goes() -> None:
    assert told_apart(["a", "b", "a"]) == ["a", "b", "a\0" + "2"]
    assert (
        set(told_apart(["a", "b"])) == set(told_apart(["b", "a"])) == set(told_apart(["a", "b", "a"])) - {"a\0" + "2"}
    )
