"""Where values stand among the words of a document's pages, and what a person should look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from docleak.documents.locate import SHORTEST, WordStream, letters, spelling
from docleak.documents.page import Field, Word
from docleak.documents.pdfs.values import Value
from docleak.documents.redaction import similarity

#: Normalised Levenshtein similarity of letters and digits from which words are called nearly a value, and how much
#: more than any other place the best one must have.
NEARLY, CLEARLY = 0.8, 0.05
#: Places that a remark shows.
SHOWN = 4

#: What became of a value, as the list for a person says it.
NEAR = "placed where the words are nearly it"
SHARED = "placed in order: several fields have this value"
REPEATED = "placed at the first of several places on a page; the others are private as repeats"
AMBIGUOUS = "not placed: several places, and too short to tell them apart"
UNCLEAR = "not placed: several places are nearly it"
ALIKE = "not placed: no words are it; a text layer was not misread, so what is near is another text"
MISSING = "not placed: no words are nearly it"


@dataclass(frozen=True)
class Sheet:
    """The words of one page, and whether OCR, which misreads, made them."""

    words: tuple[Word, ...]
    ocr: bool = False


@dataclass(frozen=True)
class Remark:
    """Something to look at: a value, what became of it, and places as (page from 1, text there)."""

    value: Value
    what: str
    places: tuple[tuple[int, str], ...] = ()

    @property
    def placed(self) -> bool:
        return not self.what.startswith("not placed")


@dataclass(frozen=True)
class _Place:
    sheet: int
    words: tuple[int, ...]
    likeness: float = 1.0


def place(
    values: Sequence[Value], sheets: Sequence[Sheet], *, public: frozenset[str] = frozenset()
) -> tuple[list[tuple[Field, ...]], list[Remark]]:
    """Fields of each page of one document, and what of them a person should look at.

    A value that is printed is a field on every page that prints it, so that no page gives it away. Where one page
    prints it several times, the field is the first place that no other field has taken: the others repeat it, and are
    blanked with it. A value of fewer than SHORTEST characters that stands at several places is not placed. Without a
    place it is placed at the words that are nearly it: the letters are the same, or OCR read the page and no other
    place is as near. A value without a place is a field without words, on the page it was said to be on or the first.
    """
    streams = [WordStream.of([word.text for word in sheet.words]) for sheet in sheets]
    fields: list[list[Field]] = [[] for _ in sheets]
    remarks: list[Remark] = []
    taken: set[tuple[int, int]] = set()
    for value in values:
        looked = range(len(sheets)) if value.page is None else [value.page - 1]
        chosen, what, places = _choose(value, [i for i in looked if i < len(sheets)], streams, sheets, taken)
        told = tuple((p.sheet + 1, " ".join(streams[p.sheet].texts[i] for i in p.words)) for p in places)
        if what:
            remarks.append(Remark(value, what, told))
        for spot in chosen:
            taken.update((spot.sheet, index) for index in spot.words)
            fields[spot.sheet].append(Field(value.key, value.text, spot.words, value.key not in public))
        if not chosen and sheets:
            home = min((value.page or 1) - 1, len(sheets) - 1)
            fields[home].append(Field(value.key, value.text, (), value.key not in public))
    return [tuple(page) for page in fields], remarks


def _choose(
    value: Value, looked: Sequence[int], streams: Sequence[WordStream], sheets: Sequence[Sheet],
    taken: set[tuple[int, int]],
) -> tuple[list[_Place], str, list[_Place]]:  # fmt: skip
    """Where the value is placed, what a person should know of that ("" for nothing), and the places to show."""
    exact = [place for i in looked for place in _printed(value.text, i, streams[i])]
    if exact:
        if len(exact) > 1 and len(value.text) < SHORTEST:
            return [], AMBIGUOUS, exact
        chosen, shared = [], False
        for i in dict.fromkeys(place.sheet for place in exact):
            here = [place for place in exact if place.sheet == i]
            free = [place for place in here if not taken & {(i, index) for index in place.words}]
            shared |= len(free) < len(here)
            chosen.append((free or here)[0])
        several = len(exact) > len(chosen)
        return chosen, SHARED if shared else REPEATED if several else "", exact if shared or several else []
    near = _distinct([place for i in looked for place in _nearly(value.text, i, streams[i])])
    if not near:
        return [], MISSING, []
    best = near[0]
    if len(near) > 1 and best.likeness - near[1].likeness < CLEARLY:
        return [], UNCLEAR, near
    if best.likeness < 1 and not sheets[best.sheet].ocr:
        return [], ALIKE, near
    return [best], NEAR, near[:1]


def _printed(text: str, sheet: int, stream: WordStream) -> Iterator[_Place]:
    """Places that spell the value but for case and spacing; signs between digits count."""
    for words in stream.find_all(text):
        if spelling(text) in spelling(" ".join(stream.texts[index] for index in words)):
            yield _Place(sheet, words)


def _nearly(text: str, sheet: int, stream: WordStream) -> Iterator[_Place]:
    """Runs of about as many words as the value has, whose letters are nearly the value's."""
    wanted, count = letters(text), len(text.split())
    parts = [letters(word) for word in stream.texts]
    for start in range(len(parts)):
        for end in range(start + max(count - 1, 1), min(start + count + 2, len(parts)) + 1):
            likeness = (
                similarity("".join(parts[start:end]), wanted) if wanted and parts[start] and parts[end - 1] else 0
            )
            if likeness >= NEARLY:
                yield _Place(sheet, tuple(range(start, end)), likeness)


def _distinct(places: Sequence[_Place]) -> list[_Place]:
    """The most alike first, without those that share a word with a more alike one."""
    kept: list[_Place] = []
    for place in sorted(places, key=lambda p: (-p.likeness, len(p.words))):
        if not any(place.sheet == other.sheet and set(place.words) & set(other.words) for other in kept):
            kept.append(place)
    return kept
