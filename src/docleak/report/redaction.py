"""An edition of a report that may leave the house: no picture, and no true private value.

It is made of parts that are declared open, and so what is forgotten is left out. Beyond that, every value that the runs
hold is looked for in what is written, and struck out; values too short to tell from other text are left to the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: Keys under which records of any kind hold what is private.
PRIVATE = ("value", "answer", "hidden", "true", "read", "question", "text", "guess")
STRUCK = "[redacted]"
#: Characters from which a text with a letter, or without one, is taken for a private value wherever it stands.
WITH_LETTER, WITHOUT = 4, 6


def private_values(records: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Every text that stands at a key of PRIVATE anywhere in the records, that is long enough to be told."""
    found = {text.strip() for record in records for text in _texts(record, inside=False)}
    return frozenset(text for text in found if len(text) >= (WITH_LETTER if re.search(r"[^\W\d]", text) else WITHOUT))


def _texts(item: Any, *, inside: bool) -> Iterator[str]:
    if isinstance(item, Mapping):
        for key, value in item.items():
            yield from _texts(value, inside=inside or key in PRIVATE)
    elif isinstance(item, list | tuple):
        for value in item:
            yield from _texts(value, inside=inside)
    elif isinstance(item, str) and inside:
        yield item


def struck(text: str, values: Iterable[str], escape: Any = str) -> str:
    """``text`` with every one of the values struck out, as ``escape`` writes them; the longest first."""
    ranked = sorted({escape(value) for value in values}, key=len, reverse=True)
    if not ranked:
        return text
    return re.sub("|".join(map(re.escape, ranked)), STRUCK, text)
