"""Pairs in their official layouts on disk: NLVR, Flickr30k, Open-I, CIFAR-100; and pages with their fields."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from docleak.documents.files import read_image, read_json_lines, read_text, require_split
from docleak.documents.loaders import load_pages
from docleak.documents.page import Page, fault_list
from docleak.documents.pairs.pair import Pair
from docleak.documents.pickles import read_pickle
from docleak.errors import DocumentError

#: Flickr30k has no classes: a pair's class is whom its caption names first (ours).
WHO = ("man", "woman", "boy", "girl", "child", "dog", "men", "women", "people", "children")
#: NLVR's folder of each official split, in the order in which they are looked for.
NLVR_SPLITS = {"val": "dev", "train": "train", "test": "test"}


@dataclass(frozen=True)
class OfSplit:
    """What may be said of a data set of pairs: its official ``split``, "train", "val" or "test"."""

    split: str = ""


@dataclass(frozen=True)
class EveryOne:
    """What may be said of Open-I: ``every`` picture of a report is a pair, not its first only."""

    every: bool = False


@dataclass(frozen=True)
class OfSplitEveryOne(OfSplit):
    """What may be said of Flickr30k: its ``split``, and whether ``every`` caption makes a pair, not the first only."""

    every: bool = False


def nlvr(path: Path, options: OfSplit) -> Iterator[Pair]:
    """NLVR v1 (Suhr et al., 2017): ``dev/dev.json`` and ``dev/images/*/``, or train or test; a picture per sentence.

    Without a split it is the first of dev ("val"), train and test that is there. The label is the sentence's truth.
    """
    folder, rows = _nlvr_rows(path, options.split)
    for line, row in rows:
        yield _nlvr_pair(folder, line, row, str(row.get("label")))


def nlvr_true(path: Path, options: OfSplit) -> Iterator[Pair]:
    """As ``nlvr``, but only sentences that are true of their picture; the class is whether its boxes hold towers.

    Half of NLVR's sentences are false, so that nothing links them to their picture. Towers are columns of blocks, each
    in the middle of its box; anything else is "scatter", as in docleak's own scenes.
    """
    folder, rows = _nlvr_rows(path, options.split)
    for line, row in rows:
        boxes = row.get("structured_rep")
        if row.get("label") != "true":
            continue
        if not isinstance(boxes, list) or not all(isinstance(box, list) for box in boxes):
            raise DocumentError(f"{folder}/{folder.name}.json, line {line}: no boxes under structured_rep.")
        blocks = ((i.get("type"), i.get("size"), i.get("x_loc")) for box in boxes for i in box)
        yield _nlvr_pair(folder, line, row, "tower" if all(i == ("square", 20, 40) for i in blocks) else "scatter")


def _nlvr_rows(path: Path, split: str) -> tuple[Path, list[tuple[int, dict[str, Any]]]]:
    there = {name: path / root / folder for name, folder in NLVR_SPLITS.items() for root in ("nlvr", ".")
             if (path / root / folder / f"{folder}.json").is_file()}  # fmt: skip
    if not there:
        raise DocumentError(f"{path} is not NLVR as it is distributed: it has none of dev/dev.json, train, test.")
    if split:
        require_split(path, split, tuple(there))
    folder = there[split] if split else next(iter(there.values()))
    rows, faults = read_json_lines(folder / f"{folder.name}.json")
    if faults:
        raise DocumentError(f"{folder / folder.name}.json cannot be used:{fault_list(faults)}")
    return folder, list(rows)


def _nlvr_pair(folder: Path, line: int, row: dict[str, Any], label: str) -> Pair:
    absent = [key for key in ("sentence", "label", "identifier", "directory") if not isinstance(row.get(key), str)]
    if absent:
        raise DocumentError(f"{folder}/{folder.name}.json, line {line}: no text under {', '.join(absent)}.")
    name = f"{folder.name}-{row['identifier']}-0"
    image = folder / "images" / str(row["directory"]) / f"{name}.png"
    return Pair(name, read_image(image), str(row["sentence"]), label)


def flickr30k(path: Path, options: OfSplitEveryOne) -> Iterator[Pair]:
    """Flickr30k (Young et al., 2014): ``results_20130124.token`` and ``flickr30k_images/``; the first of 5 captions.

    Splits are those of Flickr30k Entities (Plummer et al., 2015): ``train.txt``, ``val.txt`` and ``test.txt`` beside
    the captions, a picture's number on each line; without one, all pictures.
    """
    captions = _one_of(path, ("results_20130124.token", "flickr30k/results_20130124.token"), "Flickr30k")
    wanted = None
    if options.split:
        lists = [split for split in ("train", "val", "test") if (captions.parent / f"{split}.txt").is_file()]
        require_split(path, options.split, lists)
        wanted = set(read_text(captions.parent / f"{options.split}.txt").split())
    faults = []
    for number, line in enumerate(read_text(captions).splitlines(), start=1):
        key, tab, text = line.partition("\t")
        name, mark, caption = key.partition("#")
        if not tab or not mark or not caption.isdigit():
            faults.append(f"line {number}: {line[:60]!r}, expected NAME.jpg#0, a tab and a caption")
        elif (options.every or caption == "0") and (wanted is None or Path(name).stem in wanted) and not faults:
            image = captions.parent / "flickr30k_images" / name
            who = next((word for word in text.lower().replace(",", " ").split() if word in WHO), "other")
            yield Pair(key if options.every else name, read_image(image), text.strip(), who)
    if faults:
        raise DocumentError(f"{captions} cannot be used:{fault_list(faults)}")


def openi(path: Path, options: EveryOne) -> Iterator[Pair]:
    """Open-I (Demner-Fushman et al., 2016): ``ecgen-radiology/*.xml`` and ``NLMCXR_png/``; a report's first picture.

    With ``every`` each of a report's pictures is a pair, as many as the 7,470 that papers count. It publishes no
    splits. The text is its findings, else its impression; the label normal or abnormal, by the report's MeSH terms.
    Reports without a picture or without either text are passed over.
    """
    reports = path / "ecgen-radiology"
    if not reports.is_dir():
        raise DocumentError(f"{path} has no ecgen-radiology/; expected it and NLMCXR_png/ as Open-I is unpacked.")
    numbered = sorted(reports.glob("*.xml"), key=lambda f: (len(f.stem), f.stem))
    for file in numbered:
        try:
            root = ElementTree.fromstring(read_text(file))
        except ElementTree.ParseError as error:
            raise DocumentError(f"{file}: not XML ({error}). Download the report again.") from error
        parts = {part.get("Label", ""): (part.text or "").strip() for part in root.iter("AbstractText")}
        text = parts.get("FINDINGS") or parts.get("IMPRESSION")
        pictures = [name for image in root.iter("parentImage") if (name := image.get("id"))]
        if not text:
            continue
        terms = {(term.text or "").strip().lower() for term in root.iter("major")}
        for picture in pictures if options.every else pictures[:1]:
            image = read_image(path / "NLMCXR_png" / f"{picture}.png")
            yield Pair(picture, image, text, "normal" if "normal" in terms else "abnormal")


def cifar100(path: Path, options: OfSplit) -> Iterator[Pair]:
    """CIFAR-100's python version: ``cifar-100-python/`` with ``meta``, ``train`` and ``test``; 32 x 32 pixels.

    Without a split they are those of the test and then of the training, 60,000 in all. The text is MMGIA's: "A [class]
    in the image.".
    """
    meta = _one_of(path, ("meta", "cifar-100-python/meta"), "CIFAR-100")
    there = [split for split in ("test", "train") if (meta.parent / split).is_file()]
    if not there:
        raise DocumentError(f"{meta.parent} has neither test nor train; expected CIFAR-100's python version.")
    if options.split:
        require_split(path, options.split, there)
        there = [options.split]
    for split in there:
        yield from _cifar_pairs(meta, meta.parent / split)


def _cifar_pairs(meta: Path, data: Path) -> Iterator[Pair]:
    rows = _cifar_dict(data)
    names: Any = _cifar_dict(meta).get(b"fine_label_names")
    pixels: Any = rows.get(b"data")
    labels: Any = rows.get(b"fine_labels")
    if not _is_cifar(names, pixels, labels):
        raise DocumentError(
            f"{data} holds {sorted(map(str, rows))}; expected b'data' of (N, 3072) uint8 and N b'fine_labels', "
            "numbers of fine_label_names in meta. Download the data set again."
        )
    for number, (row, label) in enumerate(zip(pixels, labels, strict=True)):
        name = names[label].decode()
        image = np.ascontiguousarray(row.reshape(3, 32, 32).transpose(1, 2, 0))
        yield Pair(f"{data.name}-{number}", image, f"A {name.replace('_', ' ')} in the image.", name)


def _is_cifar(names: Any, pixels: Any, labels: Any) -> bool:
    if not (isinstance(names, list) and isinstance(labels, list) and isinstance(pixels, np.ndarray)):
        return False
    return (
        (pixels.shape, pixels.dtype) == ((len(labels), 3072), np.uint8)
        and all(isinstance(name, bytes) for name in names)
        and all(type(label) is int and 0 <= label < len(names) for label in labels)
    )


def _cifar_dict(file: Path) -> dict[Any, Any]:
    value = read_pickle(file, what="CIFAR-100's pickle", encoding="bytes")
    if not isinstance(value, dict):
        raise DocumentError(f"{file} holds a {type(value).__name__}; expected CIFAR-100's dictionary.")
    return value


def of_pages(spec: str, *, seed: int, count: int | None = None) -> Iterator[Pair]:
    """Pages of any format of docleak as pairs: the page's picture, and its private fields as "key value, key value".

    The class is the page's provider, else its template, else "page". Pages without private fields are passed over.
    """
    for page in load_pages(spec, count=count, seed=seed):
        text = text_of(page)
        if text:
            yield Pair(page.name, page.image, text, page.provider or page.template or "page")


def text_of(page: Page) -> str:
    """The private fields in reading order of the page's own list, keys in words."""
    return ", ".join(f"{field.key.replace('_', ' ')} {field.value}" for field in page.private_fields)


def _one_of(path: Path, candidates: tuple[str, ...], what: str) -> Path:
    for candidate in candidates:
        if (path / candidate).is_file():
            return path / candidate
    raise DocumentError(f"{path} is not {what} as it is distributed: it has none of {', '.join(candidates)}.")
