"""JSON as docleak reads it: every fault is a JSONDecodeError, also those for which Python's reader has other names."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

#: Objects and lists within one another, at most; Python's reader fails at its own depth of calls.
DEEPEST = 100
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', re.DOTALL)


def parse_json(text: str, *, strict: bool = True) -> Any:
    """The value of ``text``. Raises json.JSONDecodeError, a ValueError, for what is no JSON and for what is too deep.

    ``strict`` is for files of others: a key given twice, NaN and infinities, and halves of characters (lone
    surrogates), which JSON can spell and UTF-8 cannot, are refused as well. Files that docleak wrote may hold them.
    An error about a value, not a place, has an empty ``doc``.
    """
    _check_depth(text)
    if not strict:
        return json.loads(text, parse_int=_integer)
    value = json.loads(text, parse_int=_integer, object_pairs_hook=_object, parse_constant=_constant)
    if "\\u" in text and (half := _half_character(value)) is not None:
        raise json.JSONDecodeError(f"the text {half[:60]!r} holds half of a character (a lone surrogate)", "", 0)
    return value


def _check_depth(text: str) -> None:
    if text.count("[") + text.count("{") <= DEEPEST:
        return
    depth = 0
    for match in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match.group(), 0)
        if depth > DEEPEST:
            raise json.JSONDecodeError(f"nested more than {DEEPEST} deep", text, match.start())


def _integer(digits: str) -> int:
    if len(digits) > 400:
        raise json.JSONDecodeError(f"a number of {len(digits)} digits", "", 0)
    return int(digits)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise json.JSONDecodeError(f"the key {twice[:60]!r} is given twice", "", 0)
    return found


def _constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is no number", "", 0)


def _half_character(value: Any) -> str | None:
    """A text somewhere in the value that UTF-8 cannot hold."""
    if isinstance(value, str):
        return value if any("\ud800" <= character <= "\udfff" for character in value) else None
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return next((half for item in inner if (half := _half_character(item)) is not None), None)
