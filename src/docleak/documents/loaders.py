"""Which data sets docleak reads: one table of loaders, and opening one by a short text such as "sroie:PATH"."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Literal, cast

from docleak.documents.files import describe_folder, require_split
from docleak.documents.names import one_spelling
from docleak.documents.page import Page
from docleak.documents.pages import labelled
from docleak.documents.ranges import check_path
from docleak.errors import DocumentError
from docleak.registry import Given, resolve
from docleak.spec import names, nearest, split_name, told

SYNTHETIC = "synthetic"

#: Pages made for "synthetic" when no count is given.
DEFAULT_SYNTHETIC_PAGES = 16


@dataclass(frozen=True)
class Loader:
    """One on-disk format: where its ``load(path, *, limit)`` is, and how a folder of it is recognised.

    A folder is recognised if it has everything of one of the ``marks`` (glob patterns separated by spaces). Formats
    whose pages are ``drawn`` by docleak take ``seed``. Those with splits have ``splits(path)`` beside ``load``, which
    takes one of them as ``split``; ``splits_are`` says whose: "official" ones come with the data set from those who
    publish it, "derived" ones from whoever put the pages into docleak's layout.
    """

    target: str
    about: str
    marks: tuple[str, ...]
    drawn: bool = False
    #: Whether opening the whole data set takes minutes, so that it is not done just to check a path.
    large: bool = False
    splits_are: Literal["official", "derived", "none"] = "official"
    #: Options of PageOptions that it takes besides the split.
    takes: tuple[str, ...] = ()

    def function(self) -> Callable[..., Sequence[Page]]:
        """The loading function; its module is imported only now."""
        function: Callable[..., Sequence[Page]] = resolve(self.target)
        return function

    def splits(self, path: Path) -> tuple[str, ...]:
        """The splits at ``path``: of "train", "val" and "test" those that are there, and others."""
        if self.splits_are == "none":
            return ()
        splits: tuple[str, ...] = import_module(split_name(self.target)[0]).splits(path)
        return splits

    def recognises(self, path: Path) -> bool:
        return any(all(any(path.glob(mark)) for mark in marks.split()) for marks in self.marks)


@dataclass(frozen=True)
class PageOptions:
    """What may follow a path as ``:key=value``: the ``split`` to read ("" for what the format means); for formats that
    take them, what ``boxes`` are in, and which kinds of fields are ``public``."""

    split: str = ""
    boxes: str = ""
    public: str = ""


@dataclass(frozen=True)
class PageSource:
    """A format of LOADERS, where its data set lies, and what of it is meant."""

    format: str
    path: Path
    options: PageOptions = PageOptions()

    def splits(self) -> tuple[str, ...]:
        """The splits that are there; none if the path is one of them already."""
        return LOADERS[self.format].splits(self.path)


#: Formats of which one file may be given.
BY_SUFFIX = {".npy": "pfl-docvqa", ".parquet": "datasets", ".arrow": "datasets", ".pdf": "pdf", ".PDF": "pdf"}

#: Tried in this order.
LOADERS: Mapping[str, Loader] = MappingProxyType(
    {
        "folder": Loader(
            "docleak.documents.folder:load",
            "your own pages: images and pages.jsonl",
            ("pages.jsonl",),
            splits_are="none",
        ),
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
            "vrdu_pfl: public invoices and registration forms with exactly located fields, derived from VRDU's PDFs",
            ("docs.jsonl fields.jsonl qa.jsonl ocr images", "vrdu_pfl/fields.jsonl"),
            splits_are="derived",
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
        "docvqa": Loader(
            "docleak.documents.docvqa:load",
            "DocVQA as the Robust Reading Competition hands it out, or as records (imdb_train.npy)",
            ("*_v1.0*.json", "spdocvqa_qas/*_v1.0*.json", "train/train_v1.0*.json", "spdocvqa_imdb/*.npy", "*/vqa.npy"),
        ),
        "pfl-docvqa": Loader(
            "docleak.documents.pfl_docvqa:load",
            "PFL-DocVQA: invoice pages with questions and providers (imdb/*.npy)",
            ("imdb/*.npy", "train/blue_train.npy", "*.npy"),
            large=True,
        ),
        "datasets": Loader(
            "docleak.documents.hugging_face:load",
            "Hugging Face: a folder of datasets' save_to_disk, or parquet, of images with words and boxes",
            ("dataset_dict.json", "state.json dataset_info.json", "*.parquet", "*/*.parquet"),
            takes=("boxes", "public"),
        ),
        "pdf": Loader(
            "docleak.documents.pdfs.converting:load",
            "PDFs, to be made a folder of pages first: docleak data convert pdf:FOLDER NEW-FOLDER",
            ("*.pdf", "*.PDF", "*/*.pdf"),
            splits_are="none",
        ),
    }
)


def load_pages(spec: str, *, count: int | None = None, seed: int, image_root: Path | None = None) -> Sequence[Page]:
    """Open pages by ``spec``: "synthetic", "FORMAT:PATH" with a format of LOADERS, a PATH whose format is seen, either
    with ":split=NAME" for one of its splits; or several of these, separated by commas, as one data set.

    A name that brings its pages along (``registry.Given``) gives those. At most ``count`` pages of each: the first ones
    of a data set on disk, or the number made for "synthetic" (16 if None). Pages of several data sets come in the order
    of these, and know theirs (``data_set``); names and documents have it in front. A provider that is spelled in
    several ways is one (``names.provider_key``), as ``notes`` then say. ``seed`` matters only to what is made or drawn.
    Images of data sets are decoded when a page is asked for; those of a folder with pages.jsonl may also lie in
    ``image_root``. Pickles are read without running them. Raises DocumentError if there is no such format or path, or
    the data set is not as its format says.
    """
    if count is not None and count < 1:
        raise DocumentError(f"{count} pages were asked for; expected 1 or more.")
    if isinstance(spec, Given):
        return cast("Sequence[Page]", spec.thing)[:count]
    specs = page_specs(spec)
    opened = [_load_one(one, count, seed, image_root) for one in specs]
    return one_spelling(opened[0] if len(specs) == 1 else labelled(source_names(specs), opened))


def _load_one(spec: str, count: int | None, seed: int, image_root: Path | None) -> Sequence[Page]:
    if spec == SYNTHETIC:
        make_pages = import_module("docleak.documents.synthetic").make_pages
        made: Sequence[Page] = make_pages(count or DEFAULT_SYNTHETIC_PAGES, seed=seed)
        return made
    source = page_source(spec)
    loader = LOADERS[source.format]
    load = partial(loader.function(), **options_for(source, spec))
    if loader.drawn:
        load = partial(load, seed=seed)
    if image_root is not None:
        if source.format != "folder":
            raise DocumentError(
                f"an image root is for folders with a pages.jsonl; {spec!r} is {source.format}. Leave it out."
            )
        load = partial(load, image_root=image_root)
    pages: Sequence[Page] = load(source.path, limit=count)
    return pages


def options_for(source: PageSource, spec: str) -> dict[str, str]:
    """What the loader is told beside the path; DocumentError for a split that is not there, and for what it does not
    take."""
    if source.options.split:
        require_split(source.path, source.options.split, source.splits())
    options = {key: value for key, value in vars(source.options).items() if value}
    if idle := sorted(options.keys() - {"split", *LOADERS[source.format].takes}):
        raise DocumentError(
            f"{spec!r}: {', '.join(idle)} is for datasets:PATH; {source.format} has its own. Leave it out."
        )
    return options


def page_specs(spec: str) -> tuple[str, ...]:
    """The data sets of a list separated by commas; a path that has commas itself is one."""
    return (spec,) if _is_there(split_options(spec)[0]) else names(spec) or (spec,)


def source_names(specs: Sequence[str]) -> list[str]:
    """A name for each data set: its format, with a number where the format comes again."""
    known: list[str] = []
    for spec in specs:
        parts = [SYNTHETIC if part == SYNTHETIC else page_source(part).format for part in page_specs(spec)]
        name = "-".join(dict.fromkeys(parts))
        again = sum(other.partition("_")[0] == name for other in known)
        known.append(f"{name}_{again + 1}" if again else name)
    return known


def format_and_path(spec: str) -> tuple[str, Path]:
    """The format's name and the path that ``spec`` means; not for "synthetic"."""
    source = page_source(spec)
    return source.format, source.path


def split_options(spec: str) -> tuple[str, str]:
    """What is before the options of a data set, and the options: "sroie:PATH" and "split=test" of both with a colon.

    A path that is there is one, whatever is in its name.
    """
    text, _, tail = spec.rpartition(":")
    return (text, tail) if text and "=" in tail and not _is_there(spec) else (spec, "")


def _is_there(spec: str) -> bool:
    """Whether it is a path, or a format and a path, that is there; a list may be longer than any name of a file."""
    return any(os.path.exists(os.path.expanduser(path)) for path in (spec, split_name(spec)[1]) if path)


def page_source(spec: str) -> PageSource:
    """What ``spec`` means; not for "synthetic", nor for several data sets."""
    if not spec or "\0" in spec:
        raise DocumentError(f"{spec!r} names no pages; expected {SYNTHETIC!r}, a path, or FORMAT:PATH.")
    text, tail = split_options(spec)
    options: PageOptions = told(PageOptions, tail, what=f"{text!r}", error=DocumentError)
    name, rest = split_name(text)
    named = bool(rest) and name in LOADERS
    place = rest if named else text
    check_path("the pages' path", place, "a folder or a file", DocumentError)
    path = Path(place).expanduser()
    if named:
        return PageSource(name, path, options)
    if name in LOADERS and text.endswith(":"):
        raise DocumentError(f"{spec!r} names no path; expected {name}:PATH.")
    if path.exists():
        return PageSource(detect(path), path, options)
    hint = nearest(name, [SYNTHETIC, *LOADERS])
    raise DocumentError(
        f"{spec!r} is neither a format nor an existing path; expected {SYNTHETIC!r}, a path, or FORMAT:PATH with "
        f"one of the formats {', '.join(LOADERS)}.{hint}"
    )


def pdfs_of(spec: str) -> Path | None:
    """Where the PDFs lie that ``spec`` means, or None if it means no PDFs."""
    if spec == SYNTHETIC or len(page_specs(spec)) > 1:
        return None
    source = page_source(spec)
    return source.path if source.format == "pdf" else None


def drawn(spec: str) -> bool:
    """Whether docleak draws these pages, so that a seed matters to them; True as well where ``spec`` is none."""
    try:
        return any(part == SYNTHETIC or LOADERS[page_source(part).format].drawn for part in page_specs(spec))
    except DocumentError:
        return True


def detect(path: Path) -> str:
    """The name of the format that the files at ``path`` are laid out in; raises DocumentError if it is none."""
    if path.suffix in BY_SUFFIX and not path.is_dir():
        return BY_SUFFIX[path.suffix]
    layout = next((name for name, loader in LOADERS.items() if path.is_dir() and loader.recognises(path)), None)
    if layout is None:
        looked = "".join(
            f"\n  - {name}: {' or '.join(marks.replace(' ', ' + ') for marks in loader.marks)}"
            for name, loader in LOADERS.items()
        )
        raise DocumentError(
            f"{path} {describe_folder(path)}, which is no layout docleak knows. It looked for{looked}\n"
            "Give the folder that holds these, or describe your own images in a pages.jsonl (docs/data-format.md): "
            "docleak data mark FOLDER takes a folder of pictures as it is, and writes one as you mark what is private."
        )
    return layout
