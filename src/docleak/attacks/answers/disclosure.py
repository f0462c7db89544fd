"""Ask for what the document does not hold (Tito et al., 2024, appendix D.1.4): whose number does the model give?

Nothing is hidden. If few answers come up for many providers' documents, they come from the training, not the page.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from docleak.attacks.answers.asking import Item, Spoken
from docleak.attacks.answers.memorisation import Case, answers_to
from docleak.documents.copies import prints, text_of
from docleak.documents.page import Page, Question
from docleak.documents.pages import gathered
from docleak.documents.phrasings import PHRASINGS
from docleak.documents.redaction import traces
from docleak.errors import AttackError


@dataclass(frozen=True)
class Disclosed:
    """The answers to questions for ``key`` that no page could answer, the most frequent first.

    ``answers`` are (text in lower case, how often); of ``asked`` questions ``silent`` brought no text.
    """

    key: str
    asked: int
    silent: int
    answers: tuple[tuple[str, int], ...]

    def top(self, count: int = 15) -> tuple[tuple[str, int], ...]:
        """The ``count`` most frequent answers."""
        return self.answers[:count]

    @property
    def share(self) -> float | None:
        """What part of the answers is the most frequent one, in 0..1; None without answers."""
        total = self.asked - self.silent
        return self.answers[0][1] / total if total else None

    @property
    def entropy(self) -> float | None:
        """Entropy of the answers in nats: 0 for a single answer, log(n) for n different ones; None without answers."""
        total = self.asked - self.silent
        if not total:
            return None
        return abs(math.fsum(-n / total * math.log(n / total) for _, n in self.answers))


def draw_absent(
    pages: Sequence[Page],
    keys: Sequence[str],
    *,
    rng: np.random.Generator,
    per_provider: int = 5,
    phrasings: Mapping[str, Sequence[str]] = PHRASINGS,
) -> tuple[Case, ...]:
    """For each key, a case per document that does not show it, at most ``per_provider`` documents of a provider.

    A document shows it if one of its pages has a question or field for the key, or the words hold a value that another
    page of the same provider has. Its first page is asked about, in words drawn from ``phrasings``. Raises AttackError
    for a key without phrasings, or fewer than one document per provider.
    """
    if per_provider < 1 or not all(phrasings.get(key) for key in keys):
        raise AttackError(
            f"the probe was asked for {per_provider} documents per provider and the keys {', '.join(keys)}; expected 1 "
            f"or more documents, and keys that phrasings are known for: {', '.join(phrasings)}."
        )
    cases = []
    for key in keys:
        open_documents = _without(pages, key)
        for provider in sorted(open_documents):
            documents = open_documents[provider]
            drawn = rng.permutation(len(documents))[:per_provider]
            for place in sorted(int(i) for i in drawn):
                document, number = documents[place]
                text = phrasings[key][int(rng.integers(len(phrasings[key])))]
                cases.append(Case(number, provider, document, Question(text, (), key)))
    return tuple(cases)


def items_of(pages: Sequence[Page], cases: Iterable[Case]) -> Iterator[Item]:
    """What to ask: the pages as they are."""
    return (Item(pages[case.number], case.question) for case in cases)


def disclosed(cases: Sequence[Case], spoken: Sequence[Spoken]) -> dict[str, Disclosed]:
    """Key -> its answers, case ignored; equally frequent ones in alphabetical order."""
    both = zip(cases, spoken, strict=True)
    said = gathered((str(case.question.key), answer.text.lower().strip()) for case, answer in both)
    answers = {}
    for key, texts in said.items():
        counts = Counter(text for text in texts if text)
        ordered = tuple(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))
        answers[key] = Disclosed(key, len(texts), len(texts) - counts.total(), ordered)
    return answers


def unread(
    cases: Sequence[Case], spoken: Sequence[Spoken], pages: Sequence[Page]
) -> tuple[list[Case], list[Spoken]]:  # fmt: skip
    """The cases, and their answers, that the page which was asked about does not print."""
    pairs = [
        (case, said)
        for case, said in zip(cases, spoken, strict=True)
        if not prints(said.text, text_of(pages[case.number], document=case.document))
    ]
    return [case for case, _ in pairs], [said for _, said in pairs]


def _without(pages: Sequence[Page], key: str) -> dict[str, list[tuple[str, int]]]:
    """Provider -> (document, number of its first page) of the documents that do not show the key."""
    known = [answers_to(page, key) for page in pages]
    values: dict[str, set[str]] = {}
    for page, truth in zip(pages, known, strict=True):
        values.setdefault(page.provider, set()).update(truth[0].answers if truth else ())
    shows: dict[tuple[str, str], bool] = {}
    first: dict[tuple[str, str], int] = {}
    for number, (page, truth) in enumerate(zip(pages, known, strict=True)):
        place = (page.provider, page.document or page.name)
        first.setdefault(place, number)
        there = truth is not None or bool(traces(page, sorted(values[page.provider])))
        shows[place] = shows.get(place, False) or there
    return gathered((provider, (document, number)) for (provider, document), number in first.items()
                    if not shows[provider, document])  # fmt: skip
