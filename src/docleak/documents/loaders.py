"""Which data sets docleak reads: one table of loaders, and opening one by a short text such as "sroie:PATH"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import cast

from docleak.documents.files import describe_folder
from docleak.documents.names import one_spelling
from docleak.documents.page import Page
from docleak.errors import DocumentError
from docleak.registry import Given, resolve
from docleak.spec import split_name

SYNTHETIC = "synthetic"

#: Pages made for "synthetic" when no count is given.
DEFAULT_SYNTHETIC_PAGES = 16


@dataclass(frozen=True)
class Loader:
    """One on-disk format: where its ``load(path, *, limit)`` is, and how a folder of it is recognised.

    A folder is recognised if it has everything of one of the ``marks`` (glob patterns separated by spaces). Formats
    with ``pickled`` files take ``allow_pickle`` too, and those whose pages are ``drawn`` by docleak take ``seed``.
    """

    target: str
    about: str
    marks: tuple[str, ...]
    pickled: bool = False
    drawn: bool = False

    def function(self) -> Callable[..., Sequence[Page]]:
        """The loading function; its module is imported only now."""
        function: Callable[..., Sequence[Page]] = resolve(self.target)
        return function

    def recognises(self, path: Path) -> bool:
        return any(all(any(path.glob(mark)) for mark in marks.split()) for marks in self.marks)


#: Tried in this order: what needs no trust in a pickle comes first.
LOADERS: Mapping[str, Loader] = MappingProxyType(
    {
        "folder": Loader("docleak.documents.folder:load", "your own pages: images and pages.jsonl", ("pages.jsonl",)),
        "sroie": Loader(
            "docleak.documents.sroie:load",
            "SROIE 2019: scanned receipts with company, date, address and total",
            tuple(f"{root}img {root}box {root}entities" for root in ("", "train/", "SROIE2019/train/")),
        ),
        "funsd": Loader(
            "docleak.documents.funsd:load",
            "FUNSD: scanned forms with linked questions and answers",
            ("annotations images", "t*ing_data/annotations", "dataset/t*ing_data/annotations"),
        ),
        "vrdu": Loader(
            "docleak.documents.vrdu:load",
            "vrdu_pfl: public invoices and registration forms with exactly located fields",
            ("docs.jsonl fields.jsonl qa.jsonl ocr images", "vrdu_pfl/fields.jsonl"),
        ),
        "wtq": Loader(
            "docleak.documents.wtq:load",
            "WikiTableQuestions: tables drawn as pages, with questions",
            ("csv data/training.tsv", "WikiTableQuestions/csv WikiTableQuestions/data/training.tsv"),
            drawn=True,
        ),
        "tabfact": Loader(
            "docleak.documents.tabfact:load",
            "TabFact: tables drawn as pages, with statements to confirm or refute (yes, no)",
            ("data/all_csv tokenized_data", "Table-Fact-Checking/data/all_csv Table-Fact-Checking/tokenized_data"),
            drawn=True,
        ),
        "due": Loader(
            "docleak.documents.due:load",
            "DocVQA and others as in the DUE benchmark (document.jsonl, documents_content.jsonl)",
            ("document.jsonl documents_content.jsonl", "*/document.jsonl */documents_content.jsonl"),
        ),
        "pfl-docvqa": Loader(
            "docleak.documents.pfl_docvqa:load",
            "PFL-DocVQA: invoice pages with questions and providers (imdb/*.npy)",
            ("imdb/*.npy", "*.npy"),
            pickled=True,
        ),
    }
)


def load_pages(
    spec: str, *, count: int | None = None, seed: int, allow_pickle: bool = False, image_root: Path | None = None
) -> Sequence[Page]:
    """Open pages by ``spec``: "synthetic", "FORMAT:PATH" with a format of LOADERS, or a PATH whose format is seen.

    A name that brings its pages along (``registry.Given``) gives those. At most ``count`` pages: the first ones of a
    data set on disk, or the number made for "synthetic" (16 if None). A provider that is spelled in several ways is one
    (``names.provider_key``), as ``notes`` then say. ``seed`` matters only to what is made or drawn. Images of data sets
    are decoded when a page is asked for; those of a folder with pages.jsonl may also lie in ``image_root``. Raises
    DocumentError if there is no such format or path, or the data set is not as its format says.
    """
    if count is not None and count < 1:
        raise DocumentError(f"{count} pages were asked for; expected 1 or more.")
    if isinstance(spec, Given):
        return cast("Sequence[Page]", spec.thing)[:count]
    if spec == SYNTHETIC:
        make_pages = import_module("docleak.documents.synthetic").make_pages
        made: Sequence[Page] = make_pages(count or DEFAULT_SYNTHETIC_PAGES, seed=seed)
        return made
    name, path = format_and_path(spec)
    loader = LOADERS[name]
    load = loader.function()
    if loader.pickled:
        load = partial(load, allow_pickle=allow_pickle)
    if loader.drawn:
        load = partial(load, seed=seed)
    if image_root is not None:
        if name != "folder":
            raise DocumentError(f"an image root is for folders with a pages.jsonl; {spec!r} is {name}. Leave it out.")
        load = partial(load, image_root=image_root)
    return one_spelling(load(path, limit=count))


def format_and_path(spec: str) -> tuple[str, Path]:
    """The format's name and the path that ``spec`` means; not for "synthetic"."""
    if not spec or "\0" in spec:
        raise DocumentError(f"{spec!r} names no pages; expected {SYNTHETIC!r}, a path, or FORMAT:PATH.")
    name, rest = split_name(spec)
    if rest and name in LOADERS:
        return name, Path(rest).expanduser()
    if name in LOADERS and spec.endswith(":"):
        raise DocumentError(f"{spec!r} names no path; expected {name}:PATH.")
    path = Path(spec).expanduser()
    if path.exists():
        return detect(path), path
    near = get_close_matches(name, [SYNTHETIC, *LOADERS], n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise DocumentError(
        f"{spec!r} is neither a format nor an existing path; expected {SYNTHETIC!r}, a path, or FORMAT:PATH with "
        f"one of the formats {', '.join(LOADERS)}.{hint}"
    )


def drawn(spec: str) -> bool:
    """Whether docleak draws these pages, so that a seed matters to them; True as well where ``spec`` is none."""
    try:
        return spec == SYNTHETIC or LOADERS[format_and_path(spec)[0]].drawn
    except DocumentError:
        return True


def detect(path: Path) -> str:
    """The name of the format that the files at ``path`` are laid out in; raises DocumentError if it is none."""
    if path.suffix == ".npy":
        return "pfl-docvqa"
    found = next((name for name, loader in LOADERS.items() if path.is_dir() and loader.recognises(path)), None)
    if found is None:
        looked = "".join(
            f"\n  - {name}: {' or '.join(marks.replace(' ', ' + ') for marks in loader.marks)}"
            for name, loader in LOADERS.items()
        )
        raise DocumentError(
            f"{path} {describe_folder(path)}, which is no layout docleak knows. It looked for{looked}\n"
            "Give the folder that holds these, or describe your own images in a pages.jsonl (docs/data-format.md)."
        )
    return found
