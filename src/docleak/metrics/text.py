"""How much of a text was read back: exact match, fuzz ratio, DocVQA's accuracy and ANLS, and ROUGE.

ROUGE-1, ROUGE-2 and ROUGE-L F-scores (Lin, 2004) are of words and their order: texts are lower-cased and everything but
a-z and 0-9 parts words, nothing is stemmed, as in Google's rouge_score, whose values (0.1.2) the tests hold. An empty
text scores 0 against anything.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rapidfuzz import fuzz
from rapidfuzz.distance import LCSseq, Levenshtein

from docleak.documents.names import seen
from docleak.errors import DocumentError


def normalise(text: str) -> str:
    """The text without any white space: how recovered text is compared. Case, accents and punctuation stay.

    OCR engines drop and invent spaces at small sizes (rapidocr reads "(555) 123" as "(555)123"), and a space says
    nothing about what leaked; nor does what nobody sees (control and format characters, selectors of a variant,
    an accent apart from its letter), which PDFs' texts have.
    """
    solid = "".join(text.split())
    if solid.isascii() and solid.isprintable():
        return solid
    return unicodedata.normalize("NFC", "".join(map(seen, solid)))


def exact(read: str, truth: str) -> bool:
    """GI-DQA's Binary for one field: the same characters, case included; white space is ignored (see ``normalise``)."""
    return normalise(read) == normalise(truth)


def fuzz_ratio(read: str, truth: str) -> float:
    """GI-DQA's fuzz ratio for one field, in 0..1: rapidfuzz's ``ratio`` of the normalised texts, divided by 100.

    That is 1 - (insertions + deletions) / (both lengths), so twice the longest common subsequence over the sum of
    the lengths. It is 1 exactly where ``exact`` holds.
    """
    return float(fuzz.ratio(normalise(read), normalise(truth))) / 100


def anls(prediction: str, answers: Sequence[str], threshold: float = 0.5) -> float:
    """Normalised Levenshtein similarity with the nearest answer, in 0..1; below ``threshold`` it counts as 0.

    Biten et al. (2019), eq. 1, for one question; average it over questions. As in the code of DocVQA and of
    PFL-DocVQA: lower case, outer white space stripped, a similarity of exactly ``threshold`` kept (the paper's
    formula drops it), an empty prediction 0. PFL-DocVQA also counts the prediction "none" as 0; here it is a text
    like any other. Raises DocumentError if there are no answers.
    """
    given = _folded(prediction)
    truths = _folded_answers(answers)
    if not given:
        return 0.0
    similarity = max(Levenshtein.normalized_similarity(given, truth) for truth in truths)
    return float(similarity) if similarity >= threshold else 0.0


def accuracy(prediction: str, answers: Sequence[str]) -> float:
    """1 if the prediction is one of the answers, else 0; lower case, outer white space stripped, as in DocVQA.

    Raises DocumentError if there are no answers.
    """
    return float(_folded(prediction) in _folded_answers(answers))


def _folded(text: str) -> str:
    return text.lower().strip()


def _folded_answers(answers: Sequence[str]) -> list[str]:
    if isinstance(answers, str) or not answers:
        raise DocumentError(f"answers are {answers!r}; expected a sequence of one or more texts")
    return [_folded(answer) for answer in answers]


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
