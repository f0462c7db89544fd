"""ROUGE against Google's rouge_score, whose values are kept beside the test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docleak.metrics.text import rouge, words_of

GOLDEN = json.loads(Path(__file__).with_name("golden").joinpath("rouge.json").read_text())["rows"]


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row["read"][:20] or "empty")
def test_as_rouge_score_has_it(row: dict[str, float | str]) -> None:
    ours = rouge(str(row["read"]), str(row["true"]))
    assert ours.rouge1 == pytest.approx(row["rouge1"])
    assert ours.rouge2 == pytest.approx(row["rouge2"])
    assert ours.rouge_l == pytest.approx(row["rougeL"])


def test_order_counts_only_where_it_should() -> None:
    shuffled = rouge("c b a", "a b c")
    assert shuffled.rouge1 == 1.0
    assert shuffled.rouge2 == 0.0
    assert shuffled.rouge_l == pytest.approx(1 / 3)


def test_words() -> None:
    assert words_of("IBAN: DE49-67, é") == ["iban", "de49", "67"]
