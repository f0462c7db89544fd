"""Pages to train on, to validate with and to test on: a data set's own splits, else shares that are held out.

Nothing is held out in silence: what comes from where, and whose splits these are, is said in sentences, which whoever
trains passes on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from docleak.documents.coins import coin
from docleak.documents.loaders import LOADERS, SYNTHETIC, load_pages, page_source, page_specs, source_names
from docleak.documents.page import Page
from docleak.documents.pages import document_names, labelled, picked
from docleak.errors import DocumentError

#: Keeps the stream of what is held out apart from others of the same seed.
KEEPING = 11
#: The splits that are looked for besides the training pages, and what they are for.
PURPOSES = {"test": "test", "val": "validation"}


@dataclass(frozen=True)
class Parts:
    """The pages of a data set's parts, which share no document, and where they come from, in sentences."""

    train: Sequence[Page]
    validation: Sequence[Page]
    test: Sequence[Page]
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class Numbers:
    """A data set's page numbers by part; a document is in one of them only."""

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]


#: How a data set's own splits are called, by ``Loader.splits_are``.
CALLED = {"official": "its official split", "derived": "a split of its derived layout, not of its publishers'"}


def own_splits(spec: str) -> tuple[str, ...]:
    """The splits that a data set has; none where ``spec`` names one of them, or several data sets."""
    if spec == SYNTHETIC or len(page_specs(spec)) > 1:
        return ()
    source = page_source(spec)
    return () if source.options.split else source.splits()


def open_parts(
    spec: str,
    *,
    test: float,
    validation: float,
    seed: int,
    seed_of_pages: int | None = None,
    name: str = "",
    count: int | None = None,
    units: Callable[[Sequence[Page]], Sequence[str]] | None = None,
) -> Parts:
    """The parts of a data set, or of several (as ``load_pages`` takes them; at most ``count`` pages of each split).

    Where a data set has a training split, its test and validation splits are taken, and what it has none of is held
    out of the training pages: the share ``test`` or ``validation`` of their documents, drawn from ``seed``. A share of
    0 asks for no such part. Training pages of documents that such a split has, too, are left out. Under an epsilon
    ``units`` names the unit of every page, each is held out by a public coin of its own, and nothing said counts them.
    ``seed_of_pages`` is for pages that are made or drawn (``seed``, if None); a data set's ``name``, by which its draws
    differ from another's of the same seed, is its format where none is given.

    Raises DocumentError for what cannot be opened, shares outside of [0, 1), and too few documents to hold any out.
    """
    if min(test, validation) < 0 or test + validation >= 1:
        raise DocumentError(
            f"test and validation are {(test, validation)}; expected shares that leave some to train on."
        )
    specs = page_specs(spec)
    names = [name] if name and len(specs) == 1 else source_names(specs)
    wanted = {"test": test, "val": validation}
    seeds = (seed, seed if seed_of_pages is None else seed_of_pages)
    opened = [_open(one, title, wanted, seeds, count, units) for one, title in zip(specs, names, strict=True)]
    if len(opened) == 1:
        return opened[0]
    train, held, tests = (labelled(names, [getattr(parts, part) for parts in opened])
                          for part in ("train", "validation", "test"))  # fmt: skip
    return Parts(train, held, tests, tuple(sentence for parts in opened for sentence in parts.said))


def _open(
    spec: str,
    name: str,
    wanted: dict[str, float],
    seeds: tuple[int, int],
    count: int | None,
    units: Callable[[Sequence[Page]], Sequence[str]] | None,
) -> Parts:
    seed, seed_of_pages = seeds
    splits = own_splits(spec)
    taken = [split for split, share in wanted.items() if share and split in splits and "train" in splits]
    kept = {split: load_pages(f"{spec}:split={split}", count=count, seed=seed_of_pages) for split in taken}
    called = CALLED[LOADERS[page_source(spec).format].splits_are] if kept else ""
    said = [
        f"{name}: the {PURPOSES[split]} pages are {'the first of ' * (len(of) == count)}{called} ({len(of)} pages)."
        for split, of in kept.items()
    ]
    pages = load_pages(f"{spec}:split=train" if "train" in splits else spec, count=count, seed=seed_of_pages)
    private = units is not None
    pages, sentence = _apart(name, pages, kept, private)
    said += [sentence] if sentence else []
    shares = {split: 0.0 if split in kept else share for split, share in wanted.items()}
    numbers = _numbers(name, pages, shares, seed, units)
    held, of = {"test": numbers.test, "val": numbers.validation}, "units" if private else "documents"
    said += [
        f"{name}: no official {PURPOSES[split]} split is here, so {_held(len(held[split]), len(pages), private)} "
        f"were held out for it ({100 * share:g} % of the {of}, drawn from seed {seed})."
        for split, share in shares.items()
        if share
    ]
    parts = {split: kept[split] if split in kept else picked(pages, held[split]) for split in wanted}
    return Parts(picked(pages, numbers.train), parts["val"], parts["test"], tuple(said))


def _held(count: int, of: int, private: bool) -> str:
    """So many of the training pages; how many there are is no one's to know under an epsilon."""
    return "training pages" if private else f"{count} of {of} training pages"


def _apart(
    name: str, pages: Sequence[Page], kept: dict[str, Sequence[Page]], private: bool
) -> tuple[Sequence[Page], str]:
    """The training pages without those of documents that a split in ``kept`` has, and a sentence if there are any
    (under an epsilon in any case, as whether there are tells of some unit)."""
    taken = {document for part in kept.values() for document in document_names(part)} - {""}
    left = [number for number, document in enumerate(document_names(pages)) if document not in taken]
    if not kept or (len(left) == len(pages) and not private):
        return pages, ""
    parts = " or ".join(PURPOSES[split] for split in kept)
    if private:
        return picked(pages, left), f"{name}: training pages of documents that its {parts} pages are of are left out."
    return picked(pages, left), (
        f"{name}: {len(pages) - len(left)} of {len(pages)} training pages are of documents that its {parts} "
        "pages are of, too, and are left out."
    )


def _numbers(
    name: str,
    pages: Sequence[Page],
    shares: dict[str, float],
    seed: int,
    units: Callable[[Sequence[Page]], Sequence[str]] | None,
) -> Numbers:
    if not any(shares.values()):
        return Numbers(tuple(range(len(pages))), (), ())
    if units is not None:
        return held_by_coin(units(pages), test=shares["test"], validation=shares["val"], seed=seed)
    rng = np.random.default_rng((seed, KEEPING, zlib.crc32(name.encode())))
    return held_out(document_names(pages), test=shares["test"], validation=shares["val"], rng=rng)


def held_out(documents: Sequence[str], *, test: float, validation: float, rng: np.random.Generator) -> Numbers:
    """Draw the documents of the ``test`` and ``validation`` shares, at least one of each share above 0.

    ``documents`` names the document of every page ("" is a document of its own). DocumentError if none is left.
    """
    keys = [name or f"page {number}" for number, name in enumerate(documents)]
    order = rng.permutation(sorted(set(keys))).tolist()
    counts = [max(1, round(share * len(order))) if share else 0 for share in (test, validation)]
    if sum(counts) >= len(order):
        raise DocumentError(f"{len(order)} documents are too few to keep {sum(counts)} and train on others; give more.")
    group = {name: 0 if i < counts[0] else 1 if i < sum(counts) else 2 for i, name in enumerate(order)}
    tests, held, train = (tuple(i for i, key in enumerate(keys) if group[key] == part) for part in range(3))
    return Numbers(train, held, tests)


def held_by_coin(units: Sequence[str], *, test: float, validation: float, seed: int) -> Numbers:
    """The same for a training under an epsilon: each unit by a public coin of its own, so that none moves another.

    ``units`` names the unit of every page. The shares are met on average only, and a part may be empty: refusing that
    would tell of one unit. DocumentError for a page that names no unit.
    """
    if "" in units:
        raise DocumentError(f"{sum(not name for name in units)} of {len(units)} pages name no unit of the epsilon.")
    coins = [coin(seed, "recipe: test, validation, train", name) for name in units]
    group = [0 if drawn < test else 1 if drawn < test + validation else 2 for drawn in coins]
    tests, held, train = (tuple(i for i, part in enumerate(group) if part == wanted) for wanted in range(3))
    return Numbers(train, held, tests)
