"""Find which words of a page carry a value whose text alone is known, and where private values are printed again."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from docleak.documents.page import Field, Page, Question, Word

#: Ranks a candidate (indices of words): the highest wins.
Rank = Callable[[tuple[int, ...]], float]

#: Letters and digits a value needs before its digits may come from several words (letter-spaced print): fewer would
#: often match by chance.
PIECED = 6
#: Characters a value needs before its repeats are looked for: a "1" stands everywhere and gives nothing away.
SHORTEST = 4


def letters(text: str) -> str:
    """What is compared: letters and digits only, case folded, compatibility forms unified."""
    return "".join(c for c in unicodedata.normalize("NFKC", text).casefold() if c.isalnum())


@dataclass(frozen=True)
class WordStream:
    """The letters of all words of a page in one string, so that a value may span words and lines."""

    texts: tuple[str, ...]
    stream: str
    owner: tuple[int, ...]  # word index of each letter of the stream

    @classmethod
    def of(cls, texts: Sequence[str]) -> WordStream:
        parts = [letters(text) for text in texts]
        owner = tuple(i for i, part in enumerate(parts) for _ in part)
        return cls(tuple(texts), "".join(parts), owner)

    def find(self, value: str, *, rank: Rank | None = None) -> tuple[int, ...]:
        """The words that carry ``value``, ignoring case, punctuation and spacing; () if it is not on the page.

        Of several places the one with the highest ``rank`` wins, then the one that spells the value literally, then
        the one made of whole words, then the first.
        """
        places = self.find_all(value)
        if not places:
            return ()

        def merit(words: tuple[int, ...]) -> tuple[float, bool, bool]:
            spelled = " ".join(self.texts[i] for i in words).casefold()
            whole = letters(spelled) == letters(value)
            return (rank(words) if rank else 0.0, value.casefold() in spelled, whole)

        return max(places, key=merit)  # max keeps the first of equals

    def find_all(self, value: str) -> list[tuple[int, ...]]:
        """Every place that carries ``value``, in the order of the words.

        A run of digits or of letters is never cut out of a longer one, and one of digits is not put together from two
        words ("19.00" is not in "1 9.00"), except a value of PIECED or more letters that is nowhere in one piece.
        """
        needle = letters(value)
        if not needle:
            return self._find_signs(value)
        starts = []
        start = self.stream.find(needle)
        while start >= 0:
            if not (self._cuts(start) or self._cuts(start + len(needle))):
                starts.append(start)
            start = self.stream.find(needle, start + 1)
        joined = _joined_digits(value)
        whole = [s for s in starts if all(self.owner[s + i] == self.owner[s + i + 1] for i in joined)]
        if not whole and len(needle) >= PIECED:
            whole = starts
        return [tuple(range(self.owner[s], self.owner[s + len(needle) - 1] + 1)) for s in whole]

    def _cuts(self, at: int) -> bool:
        """Whether a border before letter ``at`` would cut a run of letters or digits inside one word."""
        if not 0 < at < len(self.stream) or self.owner[at - 1] != self.owner[at]:
            return False
        return self.stream[at - 1].isdigit() == self.stream[at].isdigit()

    def _find_signs(self, value: str) -> list[tuple[int, ...]]:
        """Places of a value without letters or digits ("-", "***"): only whole words count."""
        wanted = value.split()
        size = len(wanted)
        if not size:
            return []
        starts = range(len(self.texts) - size + 1)
        return [tuple(range(i, i + size)) for i in starts if list(self.texts[i : i + size]) == wanted]


def _joined_digits(value: str) -> list[int]:
    """Positions i in ``letters(value)`` such that letters i and i + 1 are digits of one unbroken run."""
    joined: list[int] = []
    position = 0
    for run in re.findall(r"\d+|\D+", unicodedata.normalize("NFKC", value)):
        size = len(letters(run))
        if run[0].isdigit():
            joined.extend(range(position, position + size - 1))
        position += size
    return joined


def answer_fields(words: Sequence[Word], questions: Sequence[Question]) -> tuple[Field, ...]:
    """A private field for each question with an answer, whose key is the question: the first answer that the words
    spell, and where; else the first one, without a place."""
    stream = WordStream.of([word.text for word in words])
    fields = []
    for question in questions:
        places = [(answer, stream.find(answer)) for answer in question.answers if answer.strip()]
        if places:
            answer, place = next((pair for pair in places if pair[1]), places[0])
            fields.append(Field(question.text, answer, place))
    return tuple(dict.fromkeys(fields))


def repeats_of(page: Page) -> tuple[Field, ...]:
    """Each place that prints a private value again, as a private field of the same key and value.

    Words of the page's own fields are never part of it: those of private fields are private already, and those of
    public fields were declared public. A place is one or several whole words in reading order that spell the value, or
    what the page prints in its field, but for case, spacing and punctuation; signs between digits count, so that "900"
    does not repeat "9.00". Values of fewer than SHORTEST characters are not looked for.
    """
    stream = WordStream.of([word.text for word in page.words])
    taken = {index for field in page.fields for index in field.words}
    repeats = []
    for field in page.private_fields:
        for text in dict.fromkeys((field.value, " ".join(page.words[i].text for i in field.words))):
            for place in places_of(stream, text):
                words = tuple(index for index in place if index not in taken)
                if words:
                    taken.update(words)
                    repeats.append(Field(field.key, field.value, words))
    return tuple(repeats)


def places_of(stream: WordStream, text: str) -> Iterator[tuple[int, ...]]:
    """Where a value is printed, as ``repeats_of`` looks for it."""
    if len(text.strip()) < SHORTEST:
        return
    for place in stream.find_all(text):
        if spelling(text) in spelling(" ".join(stream.texts[index] for index in place)):
            yield place


def spelling(text: str) -> str:
    """Letters and digits, case folded, and the signs that stand between two digits."""
    solid = "".join(unicodedata.normalize("NFKC", text).casefold().split())
    return re.sub(r"(?<!\d)[\W_]+|[\W_]+(?!\d)", "", solid)
