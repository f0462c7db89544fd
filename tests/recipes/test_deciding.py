"""What it would take to decide an open statement, held against intervals of so many parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from docleak.metrics.estimate import Estimate, ratio_interval
from docleak.metrics.sequence import mean_over_time
from docleak.recipes.statements import CONFIRMED, OPEN
from scripts.deciding import EFFECTLESS, all_or_none_needed, parts_needed, spent_on, to_decide

ABOVE = (0.0, float("inf"))


def measured(values: np.ndarray) -> Estimate:
    """A mean of values in [-1, 1] as a statement has it."""
    low, high = mean_over_time(list((values + 1) / 2), planned=len(values))
    return Estimate(float(values.mean()), 2 * low - 1, 2 * high - 1, len(values), len(values))


def draws(count: int, mean: float) -> np.ndarray:
    """Values whose mean is ``mean``, half a unit to either side of it."""
    values = np.where(np.arange(count) % 2 == 0, mean + 0.5, mean - 0.5)
    return np.random.default_rng(count).permutation(values)


@pytest.mark.parametrize("mean", [0.04, 0.08, -0.06])
def test_so_many_parts_decide_and_half_of_them_do_not(mean: float) -> None:
    count = parts_needed(measured(draws(60, mean)), ABOVE)
    assert count is not None and count > 60
    more, less = measured(draws(2 * round(0.75 * count), mean)), measured(draws(2 * round(0.2 * count), mean))
    assert more.low is not None and more.high is not None and less.low is not None and less.high is not None
    assert more.low > 0 if mean > 0 else more.high < 0
    assert less.low < 0 < less.high


def test_nothing_of_n_narrows_with_n() -> None:
    """None of 122 members leaves 3 %: for one in a hundred it takes 368."""
    rng = np.random.default_rng(0)
    low, high = ratio_interval(np.zeros(122), np.ones(122, int), rng, 0.95, 100, share=True)
    count = parts_needed(Estimate(0.0, low, high, 122, 122), (0.0, 0.01))
    assert count is not None and 360 <= count <= 368
    ends = [ratio_interval(np.zeros(n), np.ones(n, int), rng, 0.95, 100, share=True)[1] for n in (350, count + 5)]
    assert ends[0] is not None and ends[1] is not None and ends[1] <= 0.01 < ends[0]


def test_nothing_of_n_is_asked_of_the_sequence_itself() -> None:
    """0 of 8 pages: with 32 of them, as many as a line through 8 promises, one field in ten could still be read."""
    low, high = mean_over_time([0.0] * 8, planned=8)
    seen = Estimate(0.0, low, high, 8, 8, of="documents")
    open_one = said(seen, how="mean over documents: april", between=[0, 0.1])
    del open_one["above"]
    assert to_decide({"recipe": "t", "rows": []}, open_one) == "about 39 documents"
    ends = [mean_over_time([0.0] * n, planned=n)[1] for n in (38, 39)]
    assert ends[1] <= 0.1 < ends[0]
    assert all_or_none_needed(seen, (0.0, 1e-4)) is None  # more than it asks for
    assert all_or_none_needed(Estimate(1.0, 1 - high, 1.0, 8, 8), (0.9, 1.0)) == 39


def said(quantity: Estimate, **more: Any) -> dict[str, Any]:
    text = {"says": "a above b", "model": "m", "column": "x", "row": "a", "above": "b", "by": 0.0, "verdict": OPEN}
    return {**text, "quantity": quantity.to_json(), **more}


def test_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"row": name, "model": "m", "ours": {"seconds": {"value": 6.0}}} for name in "abc"]
    table = {"recipe": "gi-dqa/t", "rows": rows}
    twice = Estimate(0.1, -0.1, 0.3, 20, 20)  # twice as wide as it may be
    assert spent_on(table, said(twice)) == 2 * 6 * 20  # two rows, twenty documents each
    assert to_decide(table, said(twice)) == "about 80 documents, 12 min more"
    assert to_decide({**table, "gpu": True}, said(twice)).endswith("12 min more on a GPU"), "elsewhere it takes days"
    assert to_decide(table, said(twice, verdict=CONFIRMED)) == ""
    assert to_decide(table, said(Estimate(0.0, -0.1, 0.1, 20, 20))) == EFFECTLESS
    assert to_decide(table, said(Estimate(0.2))) == "no interval, too few were counted"
    assert to_decide(table, said(Estimate(1e-5, -0.1, 0.1, 20, 20))) == "more than 100,000 documents"
    within = said(Estimate(0.02, -0.08, 0.12, 20, 20), by=0.05)
    within["like"] = within.pop("above")
    assert to_decide({**table, "rows": []}, within) == "about 223 documents"
