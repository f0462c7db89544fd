"""The memorisation test (Tito et al., 2024, section 5.1 and appendix D.1): ask for what the page no longer shows.

A page's answer is hidden (``documents.redaction``) and asked for; what the model then says right, it remembers, cued by
a logo perhaps. The second test has no question at all: what the model says is hidden, and it is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from docleak.attacks.answers.asking import Item, Spoken, nls
from docleak.documents.page import Page, Question
from docleak.documents.pages import gathered
from docleak.documents.phrasings import PHRASINGS
from docleak.documents.redaction import THOROUGH, Removal, redact, traces
from docleak.errors import AttackError

#: Sends items to one model: ``partial(ask, view)``, or one that remembers replies on disk.
Asker = Callable[[Iterable[Item]], list[Spoken]]
#: Where the right answer of a case comes from: the page's question, its annotation, or the owner's training pages.
Source = Literal["question", "field", "training"]

Pick = TypeVar("Pick")
NOTHING_SAID = Question("", ())


@dataclass(frozen=True)
class Case:
    """A question to be asked about page ``number`` of a sequence of pages; its answers are hidden first, if it has any.

    It holds no picture, so that thousands of cases take no memory.
    """

    number: int
    provider: str
    document: str
    question: Question
    source: Source = "question"


@dataclass(frozen=True)
class Drawn:
    """The test of one key, and the documents it leaves out: no answer is known, or the words do not show it."""

    key: str
    cases: tuple[Case, ...]
    unanswered: tuple[str, ...]
    not_found: tuple[str, ...]


@dataclass(frozen=True)
class Unprompted:
    """What a model said of a page without a question, and what it said once that was hidden.

    ``hidden`` is False where the first words were not on the page, which then was asked about again as it was.
    """

    provider: str
    document: str
    first: str
    second: str
    hidden: bool

    @property
    def similarity(self) -> float:
        """NLS of the two in 0..1: high where the words did not come from the page. Silence remembers nothing: 0."""
        return nls(self.second, [self.first]) if self.first.strip() else 0.0


def draw_cases(
    pages: Sequence[Page],
    key: str,
    *,
    rng: np.random.Generator,
    training: Mapping[str, Sequence[str]] | None = None,
    phrasings: Mapping[str, Sequence[str]] = PHRASINGS,
    removal: Removal = THOROUGH,
) -> Drawn:
    """One case per document whose answer to ``key`` is known and found on one of its pages.

    The answer is that of the page's question for the key, else of its field, else (D.1.3) of the owner's ``training``
    pages: provider -> spellings of its answer. The question is drawn from ``phrasings[key]``, or, without any, the
    page's own. Raises AttackError if a page names no provider, or there is no way to ask for the key.
    """
    candidates: dict[str, list[Case]] = {}
    documents: dict[str, bool] = {}  # whether any page has an answer
    for number, page in enumerate(pages):
        document = _document(page)
        known = _known(page, key, (training or {}).get(page.provider, ()))
        documents[document] = documents.get(document, False) or known is not None
        if known is not None and traces(page, known[0].answers, removal):
            question, source = known
            candidates.setdefault(document, []).append(Case(number, page.provider, document, question, source))
    cases = []
    for choices in candidates.values():
        case = _drawn(choices, rng)
        asked = _phrased(case.question, key, phrasings, rng)
        cases.append(Case(case.number, case.provider, case.document, asked, case.source))
    missed = [document for document in documents if document not in candidates]
    unanswered = tuple(document for document in missed if not documents[document])
    return Drawn(key, tuple(cases), unanswered, tuple(document for document in missed if documents[document]))


def hidden_items(pages: Sequence[Page], cases: Iterable[Case], *, removal: Removal = THOROUGH) -> Iterator[Item]:
    """What to ask: every case's question about its page without the answer."""
    for case in cases:
        yield Item(redact(pages[case.number], case.question.answers, removal).page, case.question)


def nls_memory(cases: Sequence[Case], spoken: Sequence[Spoken], *, threshold: float = 0.5) -> dict[str, float]:
    """NLS_mem: provider -> mean similarity, in 0..1, of what was said with what was hidden; providers ascending.

    Similarities below ``threshold`` are 0, as in ANLS: any two names share some letters, so without it the paper's
    CLS1, which takes every provider above 0 for a member, would take them all.
    """
    return _means(
        (case.provider, nls(said.text, case.question.answers, threshold=threshold))
        for case, said in zip(cases, spoken, strict=True)
    )


def ask_unprompted(pages: Sequence[Page], asker: Asker, *, removal: Removal = THOROUGH) -> list[Unprompted]:
    """The second test on every page: the empty question before and after its answer is hidden."""
    first = [said.text for said in asker(Item(page, NOTHING_SAID) for page in pages)]
    hidden: list[bool] = []

    def without() -> Iterator[Item]:
        for page, text in zip(pages, first, strict=True):
            redacted = redact(page, [text], removal)
            hidden.append(bool(redacted.dropped))
            yield Item(redacted.page, NOTHING_SAID)

    second = [said.text for said in asker(without())]
    return [
        Unprompted(page.provider, _document(page), *row)
        for page, row in zip(pages, zip(first, second, hidden, strict=True), strict=True)
    ]


def delta_nls_memory(outputs: Iterable[Unprompted]) -> dict[str, float]:
    """Delta NLS_mem: provider -> mean similarity of the two outputs, in 0..1; high is a sign of memory.

    Words that were not on the page come again of necessity: similarity 1, for the paper does not except them.
    """
    return _means((output.provider, output.similarity) for output in outputs)


def memory_features(
    cases: Sequence[Case], spoken: Sequence[Spoken], outputs: Iterable[Unprompted]
) -> dict[str, tuple[float, float]]:
    """G4 for ``provider_features``: provider -> (NLS_mem, delta NLS_mem).

    A provider with outputs but no case has NLS_mem 0: nothing shows that it is remembered.
    """
    remembered, constant = nls_memory(cases, spoken), delta_nls_memory(outputs)
    return {provider: (remembered.get(provider, 0.0), change) for provider, change in constant.items()}


def answers_to(page: Page, key: str) -> tuple[Question, Source] | None:
    """What is known about the key from the page itself: its question, else its field; None where there is neither."""
    asked = next((q for q in page.questions if q.key == key and any(a.strip() for a in q.answers)), None)
    if asked is not None:
        return asked, "question"
    values = tuple(dict.fromkeys(field.value for field in page.fields if field.key == key and field.value.strip()))
    return (Question("", values, key), "field") if values else None


def _known(page: Page, key: str, training: Sequence[str]) -> tuple[Question, Source] | None:
    asked = answers_to(page, key)
    return asked if asked or not training else (Question("", tuple(training), key), "training")


def _phrased(
    question: Question, key: str, phrasings: Mapping[str, Sequence[str]], rng: np.random.Generator
) -> Question:
    """The question in words drawn for the key, or its own."""
    text = _drawn(phrasings[key], rng) if phrasings.get(key) else question.text
    if not text:
        raise AttackError(
            f"there is no way to ask for {key!r}: the page has no question of its own, and phrasings are known for "
            f"{', '.join(phrasings) or 'nothing'}. Pass phrasings for it."
        )
    return Question(text, question.answers, key)


def _drawn(options: Sequence[Pick], rng: np.random.Generator) -> Pick:
    return options[int(rng.integers(len(options)))]


def _document(page: Page) -> str:
    """The document's name; AttackError for a page without provider, which no feature could be counted for."""
    if not page.provider:
        raise AttackError(f"page {page.name!r} names no provider; expected one on every page that is asked about.")
    return page.document or page.name


def _means(values: Iterable[tuple[str, float]]) -> dict[str, float]:
    return {name: float(np.mean(of)) for name, of in sorted(gathered(values).items())}
