"""Pairs by ``spec``: scenes made on the spot, FORMAT:PATH, or pages of docleak's other formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from docleak.documents.pairs.layouts import cifar100, flickr30k, nlvr, nlvr_true, of_pages, openi
from docleak.documents.pairs.pair import Pair
from docleak.documents.pairs.scenes import make_scenes
from docleak.errors import DocumentError
from docleak.spec import split_name

SCENES, PAGES = "scenes", "pages"
#: name -> (what it is, reader of a path).
PAIR_FORMATS: dict[str, tuple[str, Callable[[Path], Iterator[Pair]]]] = {
    "nlvr": ("pictures of shapes with crowd-written sentences", nlvr),
    "nlvr-true": ("of those, only what is true of its picture", nlvr_true),
    "flickr30k": ("photographs with captions", flickr30k),
    "openi": ("chest X-rays with reports", openi),
}


def load_pairs(spec: str, *, count: int, seed: int, skip: int = 0, allow_pickle: bool = False) -> list[Pair]:
    """``count`` pairs after the first ``skip``: "scenes", "FORMAT:PATH", "cifar100:PATH", or "pages:SPEC".

    SPEC is one of ``load_pages``, such as "synthetic" or "sroie:DIR". DocumentError if there is no such format, or the
    data set is not as its format says, or has fewer pairs.
    """
    if count < 1 or skip < 0:
        raise DocumentError(f"{count} pairs after {skip} were asked for; expected 1 or more after 0 or more.")
    found = list(islice(_pairs(spec, skip + count, seed, allow_pickle), skip, skip + count))
    if len(found) < count:
        raise DocumentError(f"{spec!r} has {len(found)} pairs after the first {skip}; {count} were asked for.")
    return found


def _pairs(spec: str, count: int, seed: int, allow_pickle: bool) -> Iterator[Pair]:
    name, rest = split_name(spec)
    if spec == SCENES:
        return iter(make_scenes(count, seed=seed))
    if not rest or name not in (*PAIR_FORMATS, "cifar100", PAGES):
        raise DocumentError(
            f"{spec!r} names no pairs; expected {SCENES!r}, cifar100:PATH, {PAGES}:SPEC, or one of "
            f"{', '.join(f'{known}:PATH' for known in PAIR_FORMATS)}."
        )
    if name == PAGES:
        return of_pages(rest, seed=seed, count=count if rest == "synthetic" else None)
    path = Path(rest).expanduser()
    if not path.is_dir():
        raise DocumentError(f"there is no folder {str(path)!r}; expected {name} as it is distributed.")
    return cifar100(path, allow_pickle=allow_pickle) if name == "cifar100" else PAIR_FORMATS[name][1](path)
