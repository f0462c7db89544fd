"""Everything that is asked of a released model about RED and BLUE, and what the replies say of utility and its gap."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from docleak.attacks.answers.asking import answerable, batches, reply_of
from docleak.attacks.answers.features import Reply
from docleak.attacks.answers.memorisation import (
    Asker,
    Case,
    Drawn,
    ask_unprompted,
    draw_cases,
    hidden_items,
    memory_features,
)
from docleak.documents.blue_red import RED_NEGATIVE, RED_POSITIVE
from docleak.documents.blue_red_files import BlueRed
from docleak.documents.loaders import load_pages
from docleak.documents.page import Page
from docleak.documents.pages import grouped, joined, picked, provider_names
from docleak.documents.phrasings import PHRASINGS
from docleak.errors import AttackError
from docleak.metrics.estimate import Estimate
from docleak.metrics.memorisation import Outcome, remembered
from docleak.studies.answers.memorisation import Trained, trained_values, training_answers

#: Items that are held in memory at once.
TOGETHER = 256
#: Below this similarity an answer counts as wrong (Biten et al., 2019).
ANLS_THRESHOLD = 0.5
#: Keeps the draws of one seed apart from others: which words a key is asked for in.
CASES = 31
#: And this: which providers an attack is made on, where it is not all of them.
PROVIDERS = 32


@dataclass(frozen=True, eq=False)
class Red:
    """What the adversary asks about (``pages``), and what only the evaluator knows: provider -> trained on?"""

    pages: Sequence[Page]
    members: Mapping[str, bool]

    @classmethod
    def of(cls, blue_red: BlueRed, chosen: Container[str] | None = None) -> Red:
        """RED positive and negative of a division, of all providers or the ``chosen`` ones.

        Raises AttackError if a provider of one class is missing.
        """
        parts = {part: pages_of(blue_red.pages(part), chosen) for part in (RED_POSITIVE, RED_NEGATIVE)}
        if empty := [part for part, pages in parts.items() if not len(pages)]:
            raise AttackError(
                f"{blue_red.path} has no {' and no '.join(empty)}; an attack is measured on both classes."
            )
        members = {
            provider: part == RED_POSITIVE for part, pages in parts.items() for provider in provider_names(pages)
        }
        return cls(joined(list(parts.values())), members)


def pages_of(pages: Sequence[Page], chosen: Container[str] | None) -> Sequence[Page]:
    """The pages of the ``chosen`` providers; all pages for None."""
    if chosen is None:
        return pages
    return picked(pages, [number for number, name in enumerate(provider_names(pages)) if name in chosen])


def draw_providers(blue_red: BlueRed, count: int, *, seed: int) -> frozenset[str]:
    """So many of the providers, whether members or not; all of them if there are no more."""
    names = sorted((*blue_red.members, *blue_red.outsiders))
    return frozenset(np.random.default_rng((seed, PROVIDERS)).permutation(names)[:count].tolist())


def replies_to(pages: Sequence[Page], asker: Asker) -> list[Reply]:
    """One reply per question with an answer (``answerable``), in order of the pages."""
    return [
        reply_of(item, said)
        for part in batches(answerable(pages), TOGETHER) for item, said in zip(part, asker(part), strict=True)
    ]  # fmt: skip


def outcomes(replies: Sequence[Reply], members: Mapping[str, bool]) -> list[Outcome]:
    """The replies as accuracy and ANLS, with the truth; providers that ``members`` does not know count as out."""
    return [
        Outcome(
            reply.provider, members.get(reply.provider, False), reply.accuracy,
            reply.nls if reply.nls >= ANLS_THRESHOLD else 0.0, reply.confidence,
        )
        for reply in replies
    ]  # fmt: skip


def together(found: Sequence[Outcome], rng: np.random.Generator) -> tuple[Estimate, Estimate]:
    """ACC and ANLS over all outcomes, whoever they are about; intervals over providers."""
    return remembered([replace(outcome, member=True) for outcome in found], rng=rng).positive


def by_provider_means(found: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """ANLS and accuracy of each provider: the mean over its questions."""
    providers = grouped(found, lambda outcome: outcome.provider)
    return {key: {name: float(np.mean([getattr(one, key) for one in of])) for name, of in providers.items()}
            for key in ("anls", "accuracy")}  # fmt: skip


def training_values(blue_red: BlueRed) -> list[Trained]:
    """What the owner of the model knows: every answer and field on the pages that were trained on."""
    return trained_values(joined([load_pages(f"folder:{folder}", seed=0) for folder in blue_red.silos.values()]))


def memory_cases(red: Red, key: str, trained: Sequence[Trained], *, seed: int) -> Drawn:
    """The memorisation test of one key on RED; the same cases for every model."""
    rng, phrasings = np.random.default_rng((seed, CASES)), PHRASINGS if key in PHRASINGS else {}
    return draw_cases(red.pages, key, rng=rng, training=training_answers(trained, key), phrasings=phrasings)


def memory_of(red: Red, cases: Sequence[Case], asker: Asker) -> dict[str, tuple[float, float]]:
    """G4 of every provider; the adversary hides what its own questions ask for."""
    said = asker(hidden_items(red.pages, cases))
    return memory_features(cases, said, ask_unprompted(red.pages, asker))
