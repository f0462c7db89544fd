"""Find which words of a page carry a value, when the annotation gives only its text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Ranks a candidate (indices of words): the highest wins.
Rank = Callable[[tuple[int, ...]], float]

#: Letters and digits a value needs before its digits may come from several words (letter-spaced print): fewer would
#: often match by chance.
PIECED = 6


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
