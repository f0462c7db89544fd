"""An edition of a report that may leave the house: no picture, and no true private value.

It is made of parts that are declared open, and so what is forgotten is left out. Beyond that, every value that the runs
hold is looked for in what is written, and struck out; values too short to tell from other text are left to the first.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from docleak.spec import names, split_name

#: Keys under which records of any kind hold true private values, and names of pages and whose they are.
PRIVATE = ("value", "answer", "hidden", "true", "page", "document", "provider")
#: Keys of results that hold words of docleak's own.
OURS = ("format", "severity", "measure", "kind", "docleak", "created", "signature", "code")
#: Keys of settings that say where documents, or what was trained on them, are; and what docleak makes itself.
MATERIAL = (
    "documents", "test_documents", "public_documents", "members", "non_members", "division", "updates",
    "clients", "before", "after", "gradient_file", "pairs", "corpus",
)  # fmt: skip
MADE = ("synthetic", "shipped", "issuers", "scenes")
#: Options behind a place: "sroie:PLACE:split=test".
OPTIONS = r":[\w-]+=[^:]*$"
#: Whose documents are behind it: "ID=FOLDER".
CLIENT = r"^[^=]*="
STRUCK = "[redacted]"
#: Between the words of a value, and an attribute of a tag.
SPACE, ATTRIBUTE = r"(?:\s|&nbsp;)*", r"""([\w:-]+)=("[^"]*"|'[^']*')"""
#: Attributes that say how a page looks and is put together, and nothing that it is about.
MARKUP = {"class", "d", "for", "id", "lang", "points", "rel", "style", "transform", "type", "viewbox"}
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
            read = key == "text" and "tokens" in item  # off weights, and quoted in the verdict without its "##"
            if read and isinstance(value, str):
                yield from (value, value.removeprefix("##"))
            yield from _texts(value, private=key in PRIVATE and not (said and key == "answer"))
    elif isinstance(item, list | tuple):
        for value in item:
            yield from _texts(value, private=private)
    elif isinstance(item, str) and private:
        yield item


def places(settings: Any, *, material: bool = False) -> frozenset[str]:
    """Every text of a run's settings that is a place on this machine, alone or as "FORMAT:PLACE", or that says where
    documents are (``material``: at a key of MATERIAL), though from another folder nothing is seen there."""
    if isinstance(settings, Mapping):
        clients = settings.get("clients")  # of "ID=FOLDER" the folders: an ID is no place, unless it is a whole path
        if isinstance(clients, list | tuple):
            clients = [re.sub(CLIENT, "", str(of)) for of in clients if "=" in str(of) or os.path.isabs(str(of))]
        told = {**settings, "clients": clients}
        return frozenset().union(*(places(of, material=key in MATERIAL) for key, of in told.items()))
    if isinstance(settings, list | tuple):
        return frozenset().union(*(places(of, material=material) for of in settings))
    if not isinstance(settings, str):
        return frozenset()
    whole = {settings, *names(settings), re.sub(OPTIONS, "", settings)} if material else {settings}
    texts = whole | {split_name(text)[1] for text in whole}
    long = [text for text in texts if len(text) >= WITH_LETTER]
    return frozenset(text for text in long if _is_place(text) or (material and ":" not in text and text not in MADE))


def _is_place(text: str) -> bool:
    try:
        return os.path.isabs(text) or os.path.exists(text)
    except ValueError:  # a null byte
        return False


def struck(text: str, values: Iterable[str], escape: Callable[[str], str] = str) -> str:
    """``text`` with every one of the values struck out, as ``escape`` writes them; the longest first. One of letters
    alone is struck where it is a word: the rest of a longer one would tell it. Of others neither case nor white space
    nor the way in which a letter is composed matters."""
    pattern = _compiled(frozenset(values), escape)
    return pattern.sub(STRUCK, text) if pattern else text


def struck_page(html: str, values: Iterable[str], escape: Callable[[str], str]) -> str:
    """A page with the values struck out of all but its markup: its text, its comments, and attributes but MARKUP."""
    known = frozenset(values)

    def of_attribute(found: re.Match[str]) -> str:
        name, value = found[1], found[2]
        return found[0] if name.lower() in MARKUP else f"{name}={struck(value, known, escape)}"

    def of_tag(tag: str) -> str:
        return struck(tag, known, escape) if tag.startswith("<!--") else re.sub(ATTRIBUTE, of_attribute, tag)

    parts = re.split(r"(<!--.*?-->|<[^<>]*>)", html, flags=re.DOTALL)
    return "".join(of_tag(part) if number % 2 else struck(part, known, escape) for number, part in enumerate(parts))


@lru_cache(maxsize=8)
def _compiled(values: frozenset[str], escape: Callable[[str], str]) -> re.Pattern[str] | None:
    ranked = sorted(values, key=lambda value: (-len(value), value))
    patterns = dict.fromkeys(pattern for value in ranked for pattern in _patterns(value, escape))
    return re.compile("|".join(patterns)) if patterns else None


def _patterns(value: str, escape: Callable[[str], str]) -> list[str]:
    letter = r"[^\W\d_]"
    forms = [unicodedata.normalize(form, value) for form in ("NFC", "NFD", "NFKC")]
    if value.isalpha():
        return [rf"(?<!{letter}){escape(form)}(?!{letter})" for one in forms for form in (one, one.upper())]
    return [f"(?i:{SPACE.join(re.escape(escape(part)) for part in form.split())})" for form in forms if form.strip()]


def struck_in(item: Any, values: Iterable[str]) -> Any:
    """JSON values with every text struck that is none of docleak's own."""
    known = frozenset(values)
    if isinstance(item, Mapping):
        return {key: value if key in OURS else struck_in(value, known) for key, value in item.items()}
    if isinstance(item, list):
        return [struck_in(value, known) for value in item]
    return struck(item, known) if isinstance(item, str) else item
