"""The one vocabulary of verdicts: how bad a finding is, which routes a value left by, and what stands on top of a page.

A private field is *read* if any route of an audit gives its value. Every report counts the same way: a ``Route`` says
of each field what that route gave (a ``Cell``), ``union`` what all routes together gave, ``judge`` how bad that is,
``overall`` what the page says first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

#: Share of the private fields read from which a leak is called severe.
SEVERE_SHARE = 0.5
#: Share of the fields that must be readable on the true page before "no field read" may be said.
LEGIBLE_SHARE = 0.5


class Severity(StrEnum):
    """Worst first. ``NONE`` may be said only where the checks that the measurement rests on have passed."""

    SEVERE = "severe"
    PARTIAL = "partial"
    UNTOLD = "untold"  # a self-test failed, an alarm rang, or the true page cannot be read either
    UNMEASURED = "unmeasured"
    NONE = "none"

    @property
    def label(self) -> str:
        """The words beside the colour."""
        return LABELS[self]


#: Those of what was read.
LEAKS = (Severity.SEVERE, Severity.PARTIAL)

LABELS = {
    Severity.SEVERE: "Severe leak",
    Severity.PARTIAL: "Partial leak",
    Severity.UNTOLD: "Could not tell",
    Severity.UNMEASURED: "Not measured",
    Severity.NONE: "No field read",
}


def worst(severities: Iterable[Severity]) -> Severity:
    """The first of the vocabulary that occurs; UNMEASURED where there is none, since silence is no finding."""
    there = set(severities)
    return next((severity for severity in Severity if severity in there), Severity.UNMEASURED)


class Cell(StrEnum):
    """What a route says of one field. Of several routes the first named here counts: a value that one route gives is
    read, and a doubt weighs more than a route that did not give it."""

    READ = "read"
    NEAR = "near"  # much of it, with characters wrong
    GIVEN = "given"  # the attacker was given the value beforehand: no finding
    PUBLIC = "public"  # the blank template shows it: no finding
    ILLEGIBLE = "illegible"  # not read, and not to be read on the true page either
    UNSCORED = "unscored"  # no place on the page, no value, or no engine that reads
    UNTRIED = "not tried"  # by no route: that it was not read says nothing
    NOT = "not read"
    UNSEEN = "unseen"  # it never entered the model, so this route cannot give it


#: Cells of fields that were neither tried nor can be counted.
OUTSIDE = (Cell.UNSCORED, Cell.UNTRIED, Cell.UNSEEN)
#: These, and cells of fields that can be no finding, whatever is read.
NO_FINDING = (*OUTSIDE, Cell.GIVEN, Cell.PUBLIC)


class Counted:
    """Counts over ``cells``, one for each private field."""

    cells: tuple[Cell, ...]

    @property
    def read(self) -> int:
        """Fields whose value was given: by this route, or by at least one of all."""
        return self.cells.count(Cell.READ)

    @property
    def of(self) -> int:
        """Fields that were tried and that can be counted."""
        return sum(cell not in OUTSIDE for cell in self.cells)


@dataclass(frozen=True)
class Route(Counted):
    """One way in which values may leave, for instance "picture", "words", "answer": a cell per private field, in the
    order of the fields; ``limit`` says why some are UNSEEN ("behind its 256 tokens"), ``handed`` what the attacker had
    from the start ("the OCR words")."""

    name: str
    cells: tuple[Cell, ...]
    limit: str = ""
    handed: str = ""

    def sentence(self) -> str:
        """ "picture 0 of 6", "picture 5 of 6 (1 more was given beforehand)", "words 58 of 58 that the model saw (20 lie
        behind its 256 tokens)", or "words not tried"."""
        unseen, given, untried = (self.cells.count(one) for one in (Cell.UNSEEN, Cell.GIVEN, Cell.UNTRIED))
        if untried and not self.of:
            return f"{self.name} {Cell.UNTRIED}"
        apart = [f"{given} more {'was' if given == 1 else 'were'} given beforehand"] if given else []
        apart += [f"{unseen} {'lies' if unseen == 1 else 'lie'} {self.limit or 'outside'}"] if unseen else []
        apart += [f"{untried} more {'was' if untried == 1 else 'were'} {Cell.UNTRIED}"] if untried else []
        counted = f"{self.name} {self.read} of {self.of}{' that the model saw' if unseen else ''}"
        apart += [f"with {self.handed} given"] if self.handed else []
        return f"{counted} ({'; '.join(apart)})" if apart else counted


def routes_sentence(routes: Sequence[Route]) -> str:
    """All routes side by side: "picture 0 of 6, answer 1 of 6"; "" without any that could give a field."""
    return ", ".join(route.sentence() for route in routes if any(cell is not Cell.UNSCORED for cell in route.cells))


def union(routes: Sequence[Route]) -> tuple[Cell, ...]:
    """What all routes together say of each field; ValueError where they are not about the same number of fields."""
    order = list(Cell)
    return tuple(min(cells, key=order.index) for cells in zip(*(route.cells for route in routes), strict=True))


@dataclass(frozen=True)
class Judgement(Counted):
    """Counts over the fields of ``union``, how bad that is, and the ``doubts`` that forbid an all-clear."""

    severity: Severity
    cells: tuple[Cell, ...]
    doubts: tuple[str, ...] = ()

    @property
    def could(self) -> int:
        """Of these, the fields that could be a finding: neither given beforehand nor on the blank template."""
        return sum(cell not in NO_FINDING for cell in self.cells)

    @property
    def illegible(self) -> bool:
        """Whether too few of the fields that could be a finding can be read on the true page to conclude anything."""
        return self.cells.count(Cell.ILLEGIBLE) > (1 - LEGIBLE_SHARE) * self.could


def judge(cells: Sequence[Cell], doubts: Sequence[str] = ()) -> Judgement:
    """How bad the union of the routes is: SEVERE where at least SEVERE_SHARE of the fields that could be a finding are
    read.

    ``doubts`` are sentences that say why what was not read cannot be called unread: a failed self-test, an alarm,
    pages that are missing. With any of them, or where fewer than LEGIBLE_SHARE of the fields that could count could
    have been read at all, nothing read means UNTOLD; what was read stays read. Fields that were given beforehand or
    stand on the blank template cannot count: where there are no others, nothing was measured.
    """
    said = Judgement(Severity.UNTOLD, tuple(cells), tuple(doubts))
    if said.read and said.read >= SEVERE_SHARE * said.could:
        return replace(said, severity=Severity.SEVERE)
    if said.read or Cell.NEAR in said.cells:
        return replace(said, severity=Severity.PARTIAL)
    if doubts or said.illegible:
        return said
    return replace(said, severity=Severity.NONE if said.could else Severity.UNMEASURED)


@dataclass(frozen=True)
class Part:
    """One part of a page (a model, a client, the weights): its verdict, and where it stands (``anchor``, an HTML id).
    ``label`` stands beside the colour where the common words do not fit what was measured. ``chance``: how often chance
    alone calls such a part a leak, at most; 0 where no test decides."""

    name: str
    severity: Severity
    sentence: str
    label: str = ""
    anchor: str = ""
    chance: float = 0.0

    @property
    def said(self) -> str:
        """The words beside the colour."""
        return self.label or self.severity.label


@dataclass(frozen=True)
class Overall:
    """What stands on top of a page: the worst of the parts, a ``headline``, what belongs to it (``more``), then the
    parts, the worst first, and what is ``unfinished``, in sentences."""

    severity: Severity
    headline: str
    more: str
    parts: tuple[Part, ...]
    unfinished: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The words beside the colour: those of the only part, if there is but one and no other is to come that may
        change them."""
        open_still = self.unfinished and self.severity in (Severity.UNTOLD, Severity.UNMEASURED)
        return self.parts[0].said if len(self.parts) == 1 and not open_still else self.severity.label

    @property
    def sentence(self) -> str:
        """Headline and the rest in one."""
        return f"{self.headline} {self.more}".strip()


def overall(parts: Sequence[Part], counted: str, unfinished: Sequence[str] = ()) -> Overall:
    """One verdict over all parts: its colour is the worst part's. ``counted`` says what was read of all fields by any
    route ("7 of 9 private fields of 2 pages were read, by picture or answer."); the sentence adds which part is the
    worst, which leak in part, what is ``unfinished``, in sentences, and what could not be told or was not measured, so
    that no silence passes for an all-clear."""
    severity = worst(part.severity for part in parts)
    order = list(Severity)
    ranked = tuple(sorted(parts, key=lambda part: order.index(part.severity)))
    lines = [*unfinished]
    if len(parts) > 1:
        named = [part.name for part in ranked if part.severity is severity]
        lines.append(f"{severity.label} in {len(named)} of {len(parts)} parts: {'; '.join(named)}.")
    partial = [part for part in ranked if part.severity is Severity.PARTIAL and severity is Severity.SEVERE]
    for said in dict.fromkeys(part.said for part in partial):
        named = [part.name for part in partial if part.said == said]
        lines.append(f"{said} in {len(named)} more: {'; '.join(named)}.")
    for other, words in ((Severity.UNTOLD, "could not be told"), (Severity.UNMEASURED, "was not measured")):
        silent = [part.name for part in ranked if part.severity is other]
        if silent and other is not severity:
            lines.append(f"What leaves by the following {words}: {'; '.join(silent)}.")
    return Overall(severity, counted, " ".join(lines), ranked, tuple(unfinished))


#: Leaks that chance makes in a smaller share of reports are not chance's.
BY_CHANCE = 0.05


def chance_of(many: int, n: int, chance: float) -> float:
    """How often so ``many`` or more of ``n`` independent tests are passed, each with this chance (binomial)."""
    from scipy.stats import binom  # takes half a second

    return float(binom.sf(many - 1, n, chance))


def chance_of_many(parts: Sequence[Part]) -> str:
    """What chance alone would call a leak of several parts that are each decided by a test, in a sentence; "" where
    fewer than two are, none of these is a leak, or more are than chance makes (in at most BY_CHANCE of reports)."""
    tested = [part for part in parts if part.chance]
    leaks = sum(part.severity in LEAKS for part in tested)
    if len(tested) < 2 or not leaks:
        return ""
    most, n = max(part.chance for part in tested), len(tested)
    so_many = chance_of(leaks, n, most)
    if so_many <= BY_CHANCE:
        return ""
    return (
        f"Of these parts {n} are each decided by a test of its own, which chance alone makes a leak with a "
        f"probability of at most {100 * most:.2g} %: if nothing leaked, that would be {n * most:.2g} of {n} on "
        f"average, and {leaks} or more ({leaks} here) in at most {math.ceil(100 * so_many)} % of such "
        "reports, were the tests independent."
    )
