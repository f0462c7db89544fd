"""Which spellings name one provider: those that differ in case, spacing or Unicode form only."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

from docleak.documents.page import Page
from docleak.documents.pages import MEMORY, LazyPages, PageEntry, entries_of, grouped, provider_names

#: Characters that are not seen besides those of the categories Cf and Cc (Unicode's Default_Ignorable_Code_Point).
UNSEEN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]")
#: Spellings that a note shows of one provider.
SHOWN = 4


@lru_cache(maxsize=65_536)
def provider_key(name: str) -> str:
    """What all spellings of a provider's name have in common; empty for a name of which nothing is seen.

    Compatibility forms, case and runs of white space do not count (NFKC, case folding), nor do characters that are not
    seen, such as a zero-width space. Accents, punctuation and missing spaces do: "Müller" is not "Mueller".
    """
    folded = name
    for _ in range(2):  # folding may leave what composes again
        folded = unicodedata.normalize("NFKC", "".join(map(seen, folded)).casefold())
    return " ".join(folded.split())


def seen(character: str) -> str:
    """What is seen of a character: a space of any white space, nothing of what is not seen, else itself."""
    if character.isspace():
        return " "
    hidden = unicodedata.category(character) in ("Cf", "Cc") or UNSEEN.match(character)
    return "" if hidden else character


def spellings(names: Iterable[str]) -> dict[str, str]:
    """Each name to the one spelling that stands for its provider: of those that are there the shortest, then the first.

    It follows from the provider's own pages alone. Names of which nothing is seen become empty: unknown.
    """
    of_key: dict[str, str] = {}
    known = sorted(set(names), key=lambda name: (len(name), name))
    for name in known:
        of_key.setdefault(provider_key(name), name)
    of_key[""] = ""
    return {name: of_key[provider_key(name)] for name in known}


def joined_spellings(names: Iterable[str]) -> list[str]:
    """A phrase per provider that is spelled in several ways; empty where none is."""
    several = grouped(sorted(set(names) - {""}), provider_key)
    return [
        f"counted as one provider: {', '.join(map(repr, of[:SHOWN]))}" + (", ..." if len(of) > SHOWN else "")
        for of in several.values()
        if len(of) > 1
    ]


def one_spelling(pages: Sequence[Page]) -> Sequence[Page]:
    """The pages, every provider's name in one spelling; ``notes`` of lazy pages then say which were joined."""
    names = provider_names(pages)
    spelled = spellings(names)
    if all(name == spelling for name, spelling in spelled.items()):
        return pages
    path, notes = (pages.path, pages.notes) if isinstance(pages, LazyPages) else (MEMORY, ())
    entries = [_entry(entry, spelled) for entry in entries_of(pages)]
    return LazyPages(path, entries, notes=[*notes, *joined_spellings(names)])


def _entry(entry: PageEntry, spelled: Mapping[str, str]) -> PageEntry:
    name = spelled[entry.provider]
    if name == entry.provider:
        return entry
    return replace(entry, provider=name, make=partial(_made, entry, name))


def _made(entry: PageEntry, name: str) -> Page:
    return replace(entry.make(), provider=name)
