"""The reconstruction game's division of a data set by document (Dentan et al., 2024, sections 3.2 and 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from docleak.documents.partition import by_document
from docleak.errors import DocumentError


@dataclass(frozen=True)
class GameSplit:
    """Numbers of pages, ascending: the target trains on ``private``, the adversary on ``public``.

    ``validation`` chooses the checkpoint of both.
    """

    private: tuple[int, ...]
    public: tuple[int, ...]
    validation: tuple[int, ...]


def split_game(documents: Sequence[str], *, validation: float, rng: np.random.Generator) -> GameSplit:
    """A share of the documents for validation, half of the rest private, the others public.

    ``documents`` names the document of every page; pages of unknown document ("") are documents of their own. At least
    one document goes to each part. Raises DocumentError for a share outside (0, 1) or fewer than three documents.
    """
    groups = by_document(documents, range(len(documents)))
    if not 0 < validation < 1 or len(groups) < 3:
        raise DocumentError(
            f"{len(groups)} documents with a validation share of {validation}; expected 3 documents or more and a "
            "share between 0 and 1."
        )
    order = [groups[i] for i in rng.permutation(len(groups)).tolist()]
    held_out = min(max(1, round(validation * len(order))), len(order) - 2)
    return GameSplit(*_halves(order[held_out:]), _pages(order[:held_out]))


def shadow_split(split: GameSplit, documents: Sequence[str], *, rng: np.random.Generator) -> GameSplit:
    """The game that the adversary can play by itself: half of the public documents as private ones.

    ``validation`` stays. Raises DocumentError for fewer than two public documents.
    """
    groups = by_document(documents, split.public)
    if len(groups) < 2:
        raise DocumentError(
            f"{len(groups)} public documents; a shadow game needs 2 or more, since one half of them plays the private."
        )
    return GameSplit(*_halves([groups[i] for i in rng.permutation(len(groups)).tolist()]), split.validation)


def _halves(groups: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The pages of the second half of the documents, and of the first."""
    half = len(groups) // 2
    return _pages(groups[half:]), _pages(groups[:half])


def _pages(groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sorted(page for group in groups for page in group))


def require_disjoint(parts: dict[str, Sequence[str]]) -> None:
    """DocumentError if a document is in two of the named ``parts``, or one is empty: a leak would prove nothing."""
    empty = [name for name, documents in parts.items() if not documents]
    names = list(parts)
    shared = [
        f"{a} and {b} share {sorted(both)[:3]}"
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        if (both := set(parts[a]) & set(parts[b]))
    ]
    if empty or shared:
        faults = "; ".join([*(f"{name} is empty" for name in empty), *shared])
        raise DocumentError(f"the parts of the game cannot be used: {faults}. Every document belongs to one part only.")
