"""Find private values that a page prints again outside their fields: real receipts repeat totals and names."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from docleak.documents.locate import WordStream
from docleak.documents.page import Field, Page

#: Characters a value needs before its repeats are looked for: a "1" stands everywhere and gives nothing away.
SHORTEST = 4


def repeats_of(page: Page) -> tuple[Field, ...]:
    """Each place that prints a private value again, as a private field of the same key and value.

    Words of the page's own fields are never part of it: those of private fields are private already, and those of
    public fields were declared public. A place is one or several whole words in reading order that spell the value, or
    what the page prints in its field, but for case, spacing and punctuation; signs between digits count, so that "900"
    does not repeat "9.00". Values of fewer than SHORTEST characters are not looked for.
    """
    stream = WordStream.of([word.text for word in page.words])
    taken = {index for field in page.fields for index in field.words}
    found = []
    for field in page.private_fields:
        for text in dict.fromkeys((field.value, " ".join(page.words[i].text for i in field.words))):
            for place in _places(stream, text):
                words = tuple(index for index in place if index not in taken)
                if words:
                    taken.update(words)
                    found.append(Field(field.key, field.value, words))
    return tuple(found)


def _places(stream: WordStream, text: str) -> Iterator[tuple[int, ...]]:
    if len(text.strip()) < SHORTEST:
        return
    for place in stream.find_all(text):
        if spelling(text) in spelling(" ".join(stream.texts[index] for index in place)):
            yield place


def spelling(text: str) -> str:
    """Letters and digits, case folded, and the signs that stand between two digits."""
    solid = "".join(unicodedata.normalize("NFKC", text).casefold().split())
    return re.sub(r"(?<!\d)[\W_]+|[\W_]+(?!\d)", "", solid)
