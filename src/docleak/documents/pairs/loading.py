"""Pairs by ``spec``: scenes made on the spot, FORMAT:PATH, or pages of docleak's other formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from docleak.documents.loaders import split_options
from docleak.documents.pairs.layouts import (
    EveryOne,
    OfSplit,
    OfSplitEveryOne,
    cifar100,
    flickr30k,
    nlvr,
    nlvr_true,
    of_pages,
    openi,
)
from docleak.documents.pairs.pair import Pair, resized
from docleak.documents.pairs.scenes import make_scenes
from docleak.errors import DocumentError
from docleak.spec import names, split_name, told

SCENES, DESCRIBED, PAGES = "scenes", "described", "pages"
#: Made on the spot, with the classes of scenes.
MADE = (SCENES, DESCRIBED)


#: name -> (what it is, reader of a path, its options)
PAIR_FORMATS: dict[str, tuple[str, Callable[..., Iterator[Pair]], type]] = {
    "nlvr": ("pictures of shapes with crowd-written sentences", nlvr, OfSplit),
    "nlvr-true": ("of those, only what is true of its picture", nlvr_true, OfSplit),
    "flickr30k": ("photographs with captions", flickr30k, OfSplitEveryOne),
    "openi": ("chest X-rays with reports", openi, EveryOne),
    "cifar100": ("small pictures of 100 classes, with a sentence that names it", cifar100, OfSplit),
}


def load_pairs(spec: str, *, count: int, seed: int, skip: int = 0, size: tuple[int, int] | None = None) -> list[Pair]:
    """``count`` pairs after the first ``skip``: "scenes" or "described", "FORMAT:PATH", which options may follow, or
    "pages:SPEC".

    SPEC is one of ``load_pages``, such as "synthetic" or "sroie:DIR". Options are "split=test" and, where a data set
    has several texts of a picture or several pictures of a text, "every=yes". Of several data sets, separated by
    commas, pairs come by turns and know theirs (``data_set``). Pictures are as they are, or of ``size`` (width,
    height). Pickles are read without running them. DocumentError if there is
    no such format or split, or the data set is not as its format says, or has fewer pairs.
    """
    if count < 1 or skip < 0:
        raise DocumentError(f"{count} pairs after {skip} were asked for; expected 1 or more after 0 or more.")
    if size is not None and min(size) < 1:
        raise DocumentError(f"pictures of {size[0]} x {size[1]} pixels were asked for; expected 1 or more each way.")
    pairs = list(islice(_of_all(spec, skip + count, seed), skip, skip + count))
    if len(pairs) < count:
        raise DocumentError(
            f"{spec!r} has {len(pairs)} pairs after the first {skip}; {count} were asked for. "
            "Those attacked come first, then those whose texts are public: ask for fewer of either."
        )
    return pairs if size is None else [resized(pair, size) for pair in pairs]


def _of_all(spec: str, count: int, seed: int) -> Iterator[Pair]:
    text = split_options(spec)[0]
    specs = (spec,) if Path(split_name(text)[1]).expanduser().is_dir() else names(spec)
    if len(specs) < 2:
        yield from _pairs(spec, count, seed)
        return
    formats = [split_name(one)[0] for one in specs]
    labels = [name if formats.count(name) == 1 else f"{name}_{n}" for n, name in enumerate(formats, start=1)]
    turns = {label: _pairs(one, count, seed) for label, one in zip(labels, specs, strict=True)}
    while turns:
        for label, pairs in list(turns.items()):
            pair = next(pairs, None)
            if pair is None:
                del turns[label]
            else:
                yield replace(pair, name=f"{label}/{pair.name}", data_set=label)


def _pairs(spec: str, count: int, seed: int) -> Iterator[Pair]:
    if spec in MADE:
        return iter(make_scenes(count, seed=seed, described=spec == DESCRIBED))
    name, rest = split_name(spec)
    if rest and name == PAGES:
        return of_pages(rest, seed=seed, count=count if rest == "synthetic" else None)
    text, tail = split_options(spec)
    path = Path(split_name(text)[1]).expanduser()
    if not split_name(text)[1] or name not in PAIR_FORMATS:
        raise DocumentError(
            f"{spec!r} names no pairs; expected {SCENES!r}, {DESCRIBED!r}, {PAGES}:SPEC, or one of "
            f"{', '.join(f'{known}:PATH' for known in PAIR_FORMATS)}."
        )
    if not path.is_dir():
        raise DocumentError(f"there is no folder {str(path)!r}; expected {name} as it is distributed.")
    _, reader, options = PAIR_FORMATS[name]
    return reader(path, told(options, tail, what=f"{text!r}", error=DocumentError))
