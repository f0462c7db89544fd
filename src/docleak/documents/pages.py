"""Pages of which names are known before any is made: an image is decoded, or drawn, when its page is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, overload

from docleak.documents.files import read_image
from docleak.documents.page import Page, Word
from docleak.errors import DocumentError

T = TypeVar("T")
K = TypeVar("K")

#: Boxes may overshoot the image by this many pixels (rounding by whoever scaled it); they are then clipped.
CLIPPED_OVERSHOOT = 2.0
#: Where pages are said to lie that come from no file.
MEMORY = Path("memory")
#: Words from which on they tell a page by themselves.
FEWEST_WORDS = 8


@dataclass(frozen=True)
class PageEntry:
    """What is known of a page without decoding it, and how to make it."""

    name: str
    source: Path
    make: Callable[[], Page]
    document: str = ""
    provider: str = ""
    data_set: str = ""


class LazyPages(Sequence[Page]):
    """Pages of a data set at ``path``; ``pages[i]`` reads or draws page i each time, ``pages[a:b]`` stays lazy.

    ``entries`` has names, documents and providers without touching an image; ``notes`` says in sentences what the
    loader dropped or could not find. Raises DocumentError for an empty data set.
    """

    def __init__(self, path: Path, entries: Sequence[PageEntry], *, notes: Sequence[str] = ()) -> None:
        self.path = path
        self.entries = tuple(entries)
        self.notes = tuple(notes)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return f"<{len(self)} pages of {self.path}>"

    @overload
    def __getitem__(self, index: int) -> Page: ...
    @overload
    def __getitem__(self, index: slice) -> LazyPages: ...

    def __getitem__(self, index: int | slice) -> Page | LazyPages:
        if isinstance(index, slice):
            return LazyPages(self.path, self.entries[index], notes=self.notes)
        entry = self.entries[index]
        try:
            return entry.make()
        except DocumentError as error:
            if str(entry.source) in str(error):
                raise
            raise DocumentError(f"{error}\nIt was read from {entry.source}.") from error


def entries_of(pages: Sequence[Page]) -> Sequence[PageEntry]:
    """The entries of lazy pages, or of pages in memory."""
    if isinstance(pages, LazyPages):
        return pages.entries
    return [
        PageEntry(page.name, MEMORY, partial(_itself, page), page.document, page.provider, page.data_set)
        for page in pages
    ]


def _itself(page: Page) -> Page:
    return page


def joined(parts: Iterable[Sequence[Page]]) -> LazyPages:
    """Pages of several parts, one part after the other."""
    return LazyPages(MEMORY, [entry for part in parts for entry in entries_of(part)])


def labelled(names: Sequence[str], parts: Sequence[Sequence[Page]]) -> LazyPages:
    """Pages of several data sets, one after the other; each has its data set's name, also in front of its own.

    So documents of two data sets are never one. Providers keep their names: whom two data sets name is one provider.
    """
    entries = [_labelled(entry, name) for name, pages in zip(names, parts, strict=True) for entry in entries_of(pages)]
    notes = [
        f"{name}: {note}"
        for name, pages in zip(names, parts, strict=True)
        for note in (pages.notes if isinstance(pages, LazyPages) else ())
    ]
    return LazyPages(MEMORY, entries, notes=notes)


def _labelled(entry: PageEntry, data_set: str) -> PageEntry:
    name, document = f"{data_set}/{entry.name}", f"{data_set}/{entry.document}" if entry.document else ""
    make = partial(_renamed, entry, name, document, data_set)
    return replace(entry, name=name, document=document, data_set=data_set, make=make)


def _renamed(entry: PageEntry, name: str, document: str, data_set: str) -> Page:
    return replace(entry.make(), name=name, document=document, data_set=data_set)


def picked(pages: Sequence[Page], numbers: Iterable[int]) -> LazyPages:
    """Some of the pages, in the order of their numbers."""
    entries = entries_of(pages)
    return LazyPages(pages.path if isinstance(pages, LazyPages) else MEMORY, [entries[i] for i in numbers])


def remembered(pages: Sequence[Page]) -> LazyPages:
    """The pages, each kept in memory once it was made."""
    path = pages.path if isinstance(pages, LazyPages) else MEMORY
    return LazyPages(path, [replace(entry, make=cache(entry.make)) for entry in entries_of(pages)])


def provider_names(pages: Sequence[Page]) -> tuple[str, ...]:
    """The provider of each page, without decoding an image where the pages are lazy."""
    return tuple(entry.provider for entry in entries_of(pages))


def document_names(pages: Sequence[Page]) -> tuple[str, ...]:
    """The document of each page, without decoding an image where the pages are lazy."""
    return tuple(entry.document for entry in entries_of(pages))


def page_names(pages: Sequence[Page]) -> tuple[str, ...]:
    """The name of each page, without decoding an image where the pages are lazy."""
    return tuple(entry.name for entry in entries_of(pages))


def at_most(items: Iterable[T], limit: int | None) -> list[T]:
    """The first ``limit`` items, or all for None. Raises DocumentError for a limit below 1."""
    if limit is not None and limit < 1:
        raise DocumentError(f"a limit of {limit} pages was asked for; expected 1 or more, or none for all pages.")
    return list(islice(items, limit))


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items by ``key``, in order of first appearance."""
    return gathered((key(item), item) for item in items)


def gathered(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """What is second in the pairs by what is first, in order of first appearance."""
    groups: dict[K, list[T]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def read_page(page: Callable[..., Page], image: Path, words: Iterable[Word], *, upright: bool = False) -> Page:
    """Decode ``image`` and build the page from it and the words, clipping small overshoots of their boxes.

    ``page`` is ``Page`` with everything else already filled in (``functools.partial``).
    """
    pixels = read_image(image, upright=upright)
    height, width = pixels.shape[:2]
    return page(image=pixels, words=tuple(clip_overshoot(word, width, height) for word in words))


def entry_of(source: Path, image: Path, words: Iterable[Word], *, upright: bool = False, **page: Any) -> PageEntry:
    """A page whose image is decoded when it is asked for; ``page`` has the rest of ``Page``, its name among it."""
    make = partial(read_page, partial(Page, **page), image, tuple(words), upright=upright)
    return PageEntry(page["name"], source, make, page["document"], page.get("provider", ""), page.get("data_set", ""))


def clip_overshoot(word: Word, width: int, height: int) -> Word:
    """The word with its box clipped to the page if it leaves it by at most CLIPPED_OVERSHOOT pixels.

    A word wholly in that margin (real data has some) keeps one pixel at the border, so that the numbers of the other
    words hold. Anything worse comes back unchanged, so that Page refuses it with the original numbers.
    """
    x0, y0, x1, y1 = word.box
    left, right = _clipped(x0, x1, width)
    top, bottom = _clipped(y0, y1, height)
    if (left, top, right, bottom) == word.box:
        return word
    if max(-x0, -y0, x1 - width, y1 - height) > CLIPPED_OVERSHOOT or x0 >= x1 or y0 >= y1:
        return word
    return replace(word, box=(left, top, right, bottom))


def _clipped(low: float, high: float, size: int) -> tuple[float, float]:
    low, high = max(low, 0.0), min(high, float(size))
    if low < high:
        return low, high
    return (high - 1, high) if high == size else (low, low + 1)


def marks_of(page: Page) -> list[str]:
    """The picture and, of a page with enough of them, the words: either makes two pages one."""
    words = " ".join(word.text.lower() for word in page.words)
    picture = hashlib.sha256(page.image.tobytes()).hexdigest()
    return [picture, words] if len(page.words) >= FEWEST_WORDS else [picture]
