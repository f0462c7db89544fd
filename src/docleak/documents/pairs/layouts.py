"""Pairs in their official layouts on disk: NLVR, Flickr30k, Open-I, CIFAR-100; and pages with their fields."""

from __future__ import annotations

import pickle
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from docleak.documents.files import read_image, read_json_lines, read_text
from docleak.documents.loaders import load_pages
from docleak.documents.page import Page, fault_list
from docleak.documents.pairs.pair import Pair
from docleak.errors import DocumentError

#: Flickr30k has no classes: a pair's class is whom its caption names first (ours).
WHO = ("man", "woman", "boy", "girl", "child", "dog", "men", "women", "people", "children")


def nlvr(path: Path) -> Iterator[Pair]:
    """NLVR v1 (Suhr et al., 2017): ``dev/dev.json`` and ``dev/images/*/``, or train or test; a picture per sentence.

    The label is the sentence's truth value.
    """
    folder, rows = _nlvr_rows(path)
    for line, row in rows:
        yield _nlvr_pair(folder, line, row, str(row.get("label")))


def nlvr_true(path: Path) -> Iterator[Pair]:
    """As ``nlvr``, but only sentences that are true of their picture; the class is whether its boxes hold towers.

    Half of NLVR's sentences are false, so that nothing links them to their picture. Towers are columns of blocks, each
    in the middle of its box; anything else is "scatter", as in docleak's own scenes.
    """
    folder, rows = _nlvr_rows(path)
    for line, row in rows:
        boxes = row.get("structured_rep")
        if row.get("label") != "true":
            continue
        if not isinstance(boxes, list) or not all(isinstance(box, list) for box in boxes):
            raise DocumentError(f"{folder}/{folder.name}.json, line {line}: no boxes under structured_rep.")
        yield _nlvr_pair(folder, line, row, "tower" if _towers(boxes) else "scatter")


def _towers(boxes: list[list[dict[str, Any]]]) -> bool:
    items = [item for box in boxes for item in box]
    return all(i.get("type") == "square" and i.get("size") == 20 and i.get("x_loc") == 40 for i in items)


def _nlvr_rows(path: Path) -> tuple[Path, list[tuple[int, dict[str, Any]]]]:
    folder = _one_of(path, ("dev/dev.json", "train/train.json", "test/test.json", "nlvr/dev/dev.json"), "NLVR").parent
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


def flickr30k(path: Path) -> Iterator[Pair]:
    """Flickr30k (Young et al., 2014): ``results_20130124.token`` and ``flickr30k_images/``; the first of 5 captions."""
    captions = _one_of(path, ("results_20130124.token", "flickr30k/results_20130124.token"), "Flickr30k")
    faults = []
    for number, line in enumerate(read_text(captions).splitlines(), start=1):
        key, tab, text = line.partition("\t")
        name, mark, caption = key.partition("#")
        if not tab or not mark or not caption.isdigit():
            faults.append(f"line {number}: {line[:60]!r}, expected NAME.jpg#0, a tab and a caption")
        elif caption == "0" and not faults:
            image = captions.parent / "flickr30k_images" / name
            yield Pair(name, read_image(image), text.strip(), _who(text))
    if faults:
        raise DocumentError(f"{captions} cannot be used:{fault_list(faults)}")


def _who(text: str) -> str:
    return next((word for word in text.lower().replace(",", " ").split() if word in WHO), "other")


def openi(path: Path) -> Iterator[Pair]:
    """Open-I (Demner-Fushman et al., 2016): ``ecgen-radiology/*.xml`` and ``NLMCXR_png/``; a report's first picture.

    The text is its findings, else its impression; the label normal or abnormal, by the report's MeSH terms. Reports
    without a picture or without either text are passed over.
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
        picture = next((image.get("id") for image in root.iter("parentImage")), None)
        if not text or not picture:
            continue
        terms = {(term.text or "").strip().lower() for term in root.iter("major")}
        image = read_image(path / "NLMCXR_png" / f"{picture}.png")
        yield Pair(picture, image, text, "normal" if "normal" in terms else "abnormal")


class _ArraysOnly(pickle.Unpickler):
    """Reads dicts, lists, strings and numpy arrays; anything else that a pickle may call is refused."""

    ALLOWED = {
        (module, name)
        for module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy")
        for name in ("_reconstruct", "ndarray", "dtype")
    } | {("_codecs", "encode")}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it wants to call {module}.{name}")
        return super().find_class(module, name)


def cifar100(path: Path, *, allow_pickle: bool) -> Iterator[Pair]:
    """CIFAR-100's python version: ``cifar-100-python/`` with ``meta`` and ``test`` (else ``train``); 32 x 32 pixels.

    Its files are pickles. The text is MMGIA's: "A [class] in the image.".
    """
    meta = _one_of(path, ("meta", "cifar-100-python/meta"), "CIFAR-100")
    if not allow_pickle:
        raise DocumentError(f"{meta.parent} holds pickled files, which can run code. Trust them with --allow-pickle.")
    data = next((meta.parent / name for name in ("test", "train") if (meta.parent / name).is_file()), None)
    if data is None:
        raise DocumentError(f"{meta.parent} has neither test nor train; expected CIFAR-100's python version.")
    names, rows = _unpickled(meta).get(b"fine_label_names"), _unpickled(data)
    pixels, labels = np.asarray(rows.get(b"data")), rows.get(b"fine_labels")
    if names is None or labels is None or pixels.shape != (len(labels), 3072):
        raise DocumentError(
            f"{data} holds {sorted(map(str, rows))}; expected b'data' of (N, 3072) uint8 and b'fine_labels'."
        )
    for number, (row, label) in enumerate(zip(pixels, labels, strict=True)):
        name = names[label].decode()
        image = np.ascontiguousarray(row.reshape(3, 32, 32).transpose(1, 2, 0).astype(np.uint8))
        yield Pair(f"{data.name}-{number}", image, f"A {name.replace('_', ' ')} in the image.", name)


def _unpickled(file: Path) -> dict[bytes, Any]:
    try:
        with file.open("rb") as stream:
            value = _ArraysOnly(stream, encoding="bytes").load()
    except (OSError, pickle.UnpicklingError, EOFError, ValueError, AttributeError, IndexError) as error:
        raise DocumentError(f"{file} cannot be read as CIFAR-100's pickle: {error}. Download it again.") from error
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
