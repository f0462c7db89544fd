"""An edition of a report that may leave the house: no picture, and no true private value.

It is made of parts that are declared open, and so what is forgotten is left out. Beyond that, every value that the runs
hold is looked for in what is written, and struck out; values too short to tell from other text are left to the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

#: Keys under which records of any kind hold true private values.
PRIVATE = ("value", "answer", "hidden", "true")
#: Keys of results that hold words of docleak's own.
OURS = ("format", "severity", "measure", "kind", "docleak", "created", "signature", "code")
STRUCK = "[redacted]"
#: Characters from which a text with a letter, or without one, is taken for a private value wherever it stands.
WITH_LETTER, WITHOUT = 4, 6


def private_values(records: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Every text that stands at a key of PRIVATE anywhere in the records, that is long enough to be told."""
    texts = {text.strip() for record in records for text in _texts(record)}
    return frozenset(text for text in texts if len(text) >= (WITH_LETTER if re.search(r"[^\W\d]", text) else WITHOUT))


def _texts(item: Any, *, private: bool = False) -> Iterator[str]:
    if isinstance(item, Mapping):
        # A released model's answer is its own, and may be any word. An attack's is struck: one letter off tells, too.
        said = bool({"member", "target"} & item.keys())
        for key, value in item.items():
            yield from _texts(value, private=key in PRIVATE and not (said and key == "answer"))
    elif isinstance(item, list | tuple):
        for value in item:
            yield from _texts(value, private=private)
    elif isinstance(item, str) and private:
        yield item


def struck(text: str, values: Iterable[str], escape: Callable[[str], str] = str) -> str:
    """``text`` with every one of the values struck out, as ``escape`` writes them; the longest first. One of letters
    alone is struck where it is a word: the rest of a longer one would tell it."""
    ranked = sorted({escape(value) for value in values}, key=len, reverse=True)
    return re.sub("|".join(map(_pattern, ranked)), STRUCK, text) if ranked else text


def _pattern(value: str) -> str:
    letter = r"[^\W\d_]"
    return rf"(?<!{letter}){value}(?!{letter})" if value.isalpha() else re.escape(value)


def struck_in(item: Any, values: Iterable[str]) -> Any:
    """JSON values with every text struck that is none of docleak's own."""
    known = list(values)
    if isinstance(item, Mapping):
        return {key: value if key in OURS else struck_in(value, known) for key, value in item.items()}
    if isinstance(item, list):
        return [struck_in(value, known) for value in item]
    return struck(item, known) if isinstance(item, str) else item
