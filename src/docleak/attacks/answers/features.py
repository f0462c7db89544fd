"""What a model's answers say about each provider: features for membership inference (Tito et al., 2024, section 5.2.2).

The adversary owns pages of a provider that were not used in training, knows the answers to its own questions, asks the
target, and, if it can, the public model that the training started from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from docleak.documents.pages import grouped
from docleak.errors import AttackError, refuse, those

#: The groups of section 5.2.2, by column. They need the text (G1), its loss and confidence (G2), the public model (G3),
#: and pages without their answer (G4).
GROUPS: dict[str, tuple[str, ...]] = {
    "G1": ("accuracy", "nls"),
    "G2": ("loss", "confidence"),
    "G3": ("delta_loss", "delta_confidence"),
    "G4": ("nls_memory", "delta_nls_memory"),
}


@dataclass(frozen=True)
class Reply:
    """What one question to one model gave, scored by the adversary, who knows the answer to its own question.

    ``accuracy`` 0 or 1; ``nls`` (normalised Levenshtein similarity, no threshold) in 0..1; ``loss`` in nats, 0 or
    more, of the true answer; ``confidence`` in 0..1. Both are None where the model gives its text only.
    Raises AttackError for other values.
    """

    provider: str
    document: str
    key: str
    accuracy: float
    nls: float
    loss: float | None = None
    confidence: float | None = None

    def __post_init__(self) -> None:
        faults = those(
            (self.accuracy not in (0, 1), f"accuracy is {self.accuracy}, expected 0 or 1"),
            (not 0 <= self.nls <= 1, f"nls is {self.nls}, expected 0 to 1"),
            (self.loss is not None and not (math.isfinite(self.loss) and self.loss >= 0),
             f"loss is {self.loss}, expected a finite number of 0 or more, or None"),
            (self.confidence is not None and not 0 <= self.confidence <= 1,
             f"confidence is {self.confidence}, expected 0 to 1, or None"),
        )  # fmt: skip
        refuse(AttackError, faults, f"reply on {self.key!r} of document {self.document!r}: ")


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """One row per provider, in alphabetical order unless rows were chosen.

    ``values`` (P, F) float64 has a column for each of ``columns``; ``questions`` (P,) int64 counts what each provider
    was asked.
    """

    providers: tuple[str, ...]
    columns: tuple[str, ...]
    values: NDArray[np.float64]
    questions: NDArray[np.int64]

    def more_than(self, questions: int) -> FeatureTable:
        """T_s of Tito et al. (2024), table 4: "all providers with fewer than s + 1 test questions are eliminated"."""
        return self._rows(np.flatnonzero(self.questions > questions))

    def of(self, providers: Iterable[str]) -> FeatureTable:
        """The rows of these providers, in their order; AttackError names those that have none."""
        return self._rows(np.array(rows_of(self.providers, providers), dtype=np.int64))

    def select(self, groups: Sequence[str]) -> NDArray[np.float64]:
        """The columns of these groups (names of ``GROUPS``), (P, F'); AttackError if one is unknown or absent."""
        if unknown := [group for group in groups if group not in GROUPS] or ([] if groups else ["none at all"]):
            raise AttackError(f"unknown feature group {', '.join(unknown)}; expected some of {', '.join(GROUPS)}.")
        wanted = [name for group in groups for name in GROUPS[group]]
        if absent := [name for name in wanted if name not in self.columns]:
            raise AttackError(
                f"the feature table has no {', '.join(absent)}, which {' + '.join(groups)} needs. Loss and confidence "
                "come from the replies, the deltas from the public model's, G4 from the memorisation test."
            )
        return self.values[:, [i for i, column in enumerate(self.columns) if column in wanted]]

    def column(self, name: str) -> NDArray[np.float64]:
        """One column, (P,); AttackError if there is none of that name."""
        if name not in self.columns:
            raise AttackError(f"the feature table has no column {name!r}; it has {', '.join(self.columns)}.")
        return self.values[:, self.columns.index(name)]

    def _rows(self, chosen: NDArray[np.int64]) -> FeatureTable:
        names = tuple(self.providers[row] for row in chosen)
        return FeatureTable(names, self.columns, self.values[chosen], self.questions[chosen])


def rows_of(known: Sequence[str], wanted: Iterable[str]) -> list[int]:
    """Where each of ``wanted`` stands in ``known``; AttackError names those that do not."""
    places = {name: row for row, name in enumerate(known)}
    asked = list(wanted)
    if missing := sorted(set(asked) - set(places)):
        raise AttackError(
            f"{len(missing)} of {len(asked)} providers have no row, such as {missing[0]!r}; expected providers among "
            f"the {len(places)} that were asked."
        )
    return [places[name] for name in asked]


def provider_features(
    target: Sequence[Reply],
    public: Sequence[Reply] | None = None,
    memory: Mapping[str, tuple[float, float]] | None = None,
) -> FeatureTable:
    """Replies become one row per provider; columns whose source is not given are absent.

    ``public`` are the public model's replies to the same questions: they give ``delta_loss`` and ``delta_confidence``,
    |target - public| of each mean as in the authors' code; the paper only says "difference". ``memory`` maps each
    provider to its ``nls_memory`` and ``delta_nls_memory``. Raises AttackError if questions differ, or a provider lacks
    its memory.
    """
    if not target:
        raise AttackError("the target gave no reply; ask it at least one question about each provider's pages.")
    groups = _by_provider(target)
    outputs = _means(groups)
    if public is not None:
        _check_same_questions(target, public)
        others = _means(_by_provider(public))
        shared = [name for name in GROUPS["G2"] if name in outputs and name in others]
        outputs |= {f"delta_{name}": np.abs(outputs[name] - others[name]) for name in shared}
    if memory is not None:
        if missing := sorted(set(groups) - set(memory)):
            raise AttackError(
                f"{len(missing)} of {len(groups)} providers were not in the memorisation test, such as {missing[0]!r}; "
                "test them too, or leave them out of the replies."
            )
        measured = np.array([memory[name] for name in groups], dtype=np.float64)
        outputs |= {"nls_memory": measured[:, 0], "delta_nls_memory": measured[:, 1]}
    questions = np.array([len(replies) for replies in groups.values()], dtype=np.int64)
    return FeatureTable(tuple(groups), tuple(outputs), np.stack(list(outputs.values()), axis=1), questions)


def _by_provider(replies: Sequence[Reply]) -> dict[str, list[Reply]]:
    return dict(sorted(grouped(replies, lambda reply: reply.provider).items()))


def _means(groups: Mapping[str, Sequence[Reply]]) -> dict[str, NDArray[np.float64]]:
    """Column -> (P,), the replies' own columns only."""
    columns = {}
    for name in (*GROUPS["G1"], *GROUPS["G2"]):
        values = [[getattr(reply, name) for reply in replies] for replies in groups.values()]
        absent = sum(value is None for row in values for value in row)
        if absent == sum(len(row) for row in values):
            continue
        if absent:
            raise AttackError(f"{absent} replies have no {name}, others have; expected it in all replies or in none.")
        columns[name] = np.array([np.mean(row) for row in values], dtype=np.float64)
    return columns


def _check_same_questions(target: Sequence[Reply], public: Sequence[Reply]) -> None:
    asked, again = (Counter((r.provider, r.document, r.key) for r in replies) for replies in (target, public))
    if asked != again:
        odd = sorted((asked - again) + (again - asked))[0]
        raise AttackError(
            f"target and public model were asked {asked.total()} and {again.total()} questions that differ, such as "
            f"{odd[2]!r} of document {odd[1]!r}; ask both the same."
        )
