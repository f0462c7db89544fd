"""ROUGE-1, ROUGE-2 and ROUGE-L F-scores (Lin, 2004): how much of a text's words and word order was read back.

Texts are lower-cased and everything but a-z and 0-9 parts words, nothing is stemmed: as in Google's rouge_score, whose
values (0.1.2) the tests hold. An empty text scores 0 against anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rapidfuzz.distance import LCSseq


@dataclass(frozen=True)
class Rouge:
    """F-scores in 0..1: shared words, shared pairs of neighbours, longest common subsequence of words."""

    rouge1: float
    rouge2: float
    rouge_l: float


def rouge(read: str, truth: str) -> Rouge:
    """Of one text read against the true one; symmetric."""
    a, b = words_of(read), words_of(truth)
    return Rouge(_overlap(a, b, 1), _overlap(a, b, 2), _f(LCSseq.similarity(a, b), len(a), len(b)))


def words_of(text: str) -> list[str]:
    """The words that ROUGE compares."""
    return re.findall(r"[a-z0-9]+", text.lower())


def _overlap(a: Sequence[str], b: Sequence[str], n: int) -> float:
    first, second = (Counter(tuple(row[i : i + n]) for i in range(len(row) - n + 1)) for row in (a, b))
    return _f((first & second).total(), first.total(), second.total())


def _f(shared: int, first: int, second: int) -> float:
    return 2 * shared / (first + second) if first and second else 0.0
