"""The blind baseline of membership: what a classifier tells of two sets of documents that asks no model at all.

Where it tells them apart, so may an attack, without the model having learned anything: the sets differ in the words,
boxes or pictures of their pages, or one hand asked about members and another about the others. Then no AUC of an
attack says what training left behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from docleak.documents.page import Page
from docleak.errors import AttackError
from docleak.metrics.estimate import Estimate
from docleak.metrics.membership import membership_rates

#: Parts into which the documents are divided, and side of the picture that is looked at, in pixels.
FOLDS, SIDE = 5, 12


def blind_auc(documents: Sequence[Sequence[Page]], members: NDArray[np.bool_], *, seed: int) -> Estimate:
    """AUC with its 95 % interval of telling members (D,) by the pages of each document.

    Two logistic regressions, on words and answers (whole ones, and letters of them) and on numbers of the page (boxes,
    counts, a small picture), learn from four fifths and rank the others; a document's score is the mean of its ranks.
    Documents of a provider are in one fifth: a classifier that learned one's label would say the other's, and no attack
    is told labels. That holds of those on one side, too: with theirs apart, fair draws had an AUC of 0.54.
    AttackError for fewer than FOLDS documents of a kind.
    """
    numbers = [np.mean([_numbers(page) for page in pages], axis=0) for pages in documents]
    of = [(_words(seed), [_text(pages) for pages in documents]), (_places(seed), numbers)]
    return _told(of, [pages[0].provider for pages in documents], members, seed)


def wording_auc(
    asked: Sequence[Sequence[str]], providers: Sequence[str], members: NDArray[np.bool_], *, seed: int
) -> Estimate:
    """The same by the words of the questions alone, those ``asked`` of each document, whose provider is in
    ``providers``: members (D,) that are asked in other words than the rest may be answered better for that. 1/2 where
    all are asked in the same, however often. AttackError as ``blind_auc``."""
    return _told([(_Questions(seed), asked)], providers, members, seed)


def _told(
    of: Sequence[tuple[_Classifier, Sequence[Any]]], providers: Sequence[str], members: NDArray[np.bool_], seed: int
) -> Estimate:
    """AUC of the mean rank by each classifier, which learns from its view of the documents."""
    require_enough(int(members.sum()), int((~members).sum()))
    scores, folds = np.zeros(len(providers)), StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed)
    for train, test in folds.split(scores, members, _together(providers)):
        told = [_ranks(classifier, [seen[i] for i in train], members[train], [seen[i] for i in test])
                for classifier, seen in of]  # fmt: skip
        scores[test] = np.mean(told, axis=0)
    rates = membership_rates(scores, scores > 0.5, members, rng=np.random.default_rng(seed))
    return _widened(replace(rates["auc"], of="documents"))


def require_enough(members: int, others: int) -> None:
    """AttackError where ``blind_auc`` cannot be had of so few documents."""
    if min(members, others) < FOLDS:
        raise AttackError(
            f"the sets have {members} and {others} documents; expected {FOLDS} or more of each, so that a blind "
            "classifier can be trained beside the attack."
        )


def _widened(auc: Estimate) -> Estimate:
    """The interval as wide as scores of FOLDS folds need, whose classifiers learn from one another's documents: 1 + K /
    (K - 1) times the variance (Nadeau & Bengio, 2003). Resampled documents alone refuse one fair draw in six."""
    if auc.value is None or auc.low is None or auc.high is None:
        return auc
    factor = (1 + FOLDS / (FOLDS - 1)) ** 0.5
    low, high = (auc.value + factor * (end - auc.value) for end in (auc.low, auc.high))
    return replace(auc, low=max(low, 0.0), high=min(high, 1.0))


def _together(providers: Sequence[str]) -> list[str]:
    """The group of each document: its provider, if that has no more than half a fold of them, else itself."""
    most, count = max(2, len(providers) // (2 * FOLDS)), Counter(providers)
    return [
        f"provider {name}" if name and count[name] <= most else str(number) for number, name in enumerate(providers)
    ]


class _Classifier(Protocol):
    """What learns members from a view of each document, and says of others how like them they are."""

    def fit(self, seen: Any, members: NDArray[np.bool_]) -> _Classifier: ...

    def decision_function(self, seen: Any) -> NDArray[np.float64]: ...


class _Questions:
    """Learns from each question alone, and says of a document the mean over its own: of how many there are it knows
    nothing."""

    def __init__(self, seed: int) -> None:
        self.words = _words(seed)

    def fit(self, seen: Sequence[Sequence[str]], members: NDArray[np.bool_]) -> _Questions:
        counts = [max(1, len(texts)) for texts in seen]
        self.words.fit(self._texts(seen), np.repeat(members, counts))
        return self

    def decision_function(self, seen: Sequence[Sequence[str]]) -> NDArray[np.float64]:
        ends = np.cumsum([max(1, len(texts)) for texts in seen])[:-1]
        return np.array([part.mean() for part in np.split(self.words.decision_function(self._texts(seen)), ends)])

    def _texts(self, seen: Sequence[Sequence[str]]) -> list[str]:
        return [f"asked {text}" for texts in seen for text in texts or ("nothing",)]


def _words(seed: int) -> Pipeline:
    words = TfidfVectorizer(binary=True, token_pattern=r"\S+")
    letters = TfidfVectorizer(binary=True, analyzer="char_wb", ngram_range=(3, 3))
    joined = FeatureUnion([("words", words), ("letters", letters)])
    return make_pipeline(joined, LogisticRegression(solver="liblinear", random_state=seed))


def _places(seed: int) -> Pipeline:
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, solver="liblinear", random_state=seed))


def _ranks(classifier: _Classifier, learned: Any, members: NDArray[np.bool_], asked: Any) -> NDArray[np.float64]:
    """What the classifier says of the documents of a fold, as ranks in 0..1."""
    said = classifier.fit(learned, members).decision_function(asked)
    return np.asarray((rankdata(said) - 0.5) / len(said))


def _text(pages: Sequence[Page]) -> str:
    """Words, and questions under marks of their own; never empty."""
    return " ".join(
        ["page"]
        + [word.text for page in pages for word in page.words]
        + [f"asked:{part}" for page in pages for q in page.questions for part in (q.key or "", *q.answers)]
    )


def _numbers(page: Page) -> NDArray[np.float64]:
    """Sizes, counts, where the words stand, and the picture in SIDE x SIDE grey values."""
    boxes = np.array([word.box for word in page.words], dtype=np.float64).reshape(-1, 4)
    places = boxes / np.array([page.width, page.height, page.width, page.height])
    lengths = [len(word.text) for word in page.words]
    digits = [sum(c.isdigit() for c in word.text) for word in page.words]
    told = [page.width, page.height, len(boxes), len(page.questions), len(page.fields), sum(lengths), sum(digits)]
    spread = [*places.mean(0), *places.std(0)] if len(boxes) else [0.0] * 8
    small = PIL.Image.fromarray(page.image).convert("L").resize((SIDE, SIDE), PIL.Image.Resampling.BOX)
    return np.array([*told, *spread, *np.asarray(small, dtype=np.float64).ravel() / 255])
