"""Who a presence study asks about: single pages, or providers by several pages of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from docleak.documents import Page, load_pages
from docleak.documents.loaders import SYNTHETIC
from docleak.documents.pages import gathered, provider_names
from docleak.errors import DocumentError
from docleak.studies.presence.config import PresenceConfig

#: Pages among which those of one provider are looked for.
POOL = 4000


@dataclass(frozen=True)
class Subject:
    """A page, or a provider: the ``pages`` that an update holds if it is in, and ``others`` of the same provider."""

    pages: tuple[Page, ...]
    others: tuple[Page, ...] = ()


@dataclass(frozen=True)
class Dealt:
    """Those asked about, round by round (first the ones inside), those known to be out, and the warm-up's pages."""

    asked: list[Subject]
    controls: list[Subject]
    warm_up: list[Page]

    @property
    def pages(self) -> list[Page]:
        """All of them."""
        subjects = [*self.asked, *self.controls]
        return [*(page for s in subjects for page in (*s.pages, *s.others)), *self.warm_up]


def deal(c: PresenceConfig) -> Dealt:
    """Pages with one question each; DocumentError where there are not enough."""
    asked, warm_up = c.rounds * 2 * c.subjects, c.warm_up * c.batch_size
    subjects, left = (_providers if c.per_provider else _single)(c, asked + c.controls, warm_up)
    return Dealt(subjects[:asked], subjects[asked:], left)


def _single(c: PresenceConfig, count: int, warm_up: int) -> tuple[list[Subject], list[Page]]:
    source = load_pages(c.documents, count=count + warm_up, seed=c.seed)
    kept = [one for page in source if (one := asked_once(page))]
    if len(kept) < count + warm_up:
        raise DocumentError(
            f"{c.documents!r} has {len(kept)} pages with a question; expected {count + warm_up}: {c.pages} to ask "
            f"about, {c.controls} controls, and {c.warm_up} rounds of warm-up."
        )
    if c.documents != SYNTHETIC:  # in their own order one kind of pages may be in, and another out
        kept = [kept[place] for place in np.random.default_rng(c.seed).permutation(len(kept))]
    return [Subject((page,)) for page in kept[:count]], kept[count : count + warm_up]


def _providers(c: PresenceConfig, count: int, warm_up: int) -> tuple[list[Subject], list[Page]]:
    """Each provider once; the warm-up's pages are of further providers."""
    source = load_pages(c.documents, count=POOL, seed=c.seed)
    numbers = gathered((name, number) for number, name in enumerate(provider_names(source)))
    numbers.pop("", None)
    needed, subjects, left = 2 * c.per_provider, list[Subject](), list[Page]()
    for name in np.random.default_rng(c.seed).permutation(sorted(numbers)):
        rows = numbers[str(name)] if len(subjects) < count else numbers[str(name)][: warm_up - len(left)]
        if len(subjects) < count and len(rows) < needed:  # too few, whatever is on them
            continue
        pages = [one for row in rows[: 2 * needed] if (one := asked_once(source[row]))]
        if len(subjects) == count:
            left += pages
        elif len(pages) >= needed:
            subjects.append(Subject(tuple(pages[: c.per_provider]), tuple(pages[c.per_provider : needed])))
        if len(subjects) == count and len(left) >= warm_up:
            return subjects, left[:warm_up]
    raise DocumentError(
        f"{c.documents!r} has {len(subjects)} providers with {needed} pages that have a question; expected {count} "
        f"({count - c.controls} to ask about, {c.controls} controls), and {warm_up} pages of others for the warm-up. "
        "Ask fewer --pages, or a smaller --per-provider."
    )


def asked_once(page: Page) -> Page | None:
    """The page with its first question alone; None where that has no answer."""
    questions = page.questions[:1]
    return replace(page, questions=questions) if questions and questions[0].answers else None
