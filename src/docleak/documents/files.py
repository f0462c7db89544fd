"""Read the files of a data set; every failure is a DocumentError naming the file, the place and what to do."""

from __future__ import annotations

import io
import json
import math
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import ExifTags, ImageOps
from PIL import Image as Pillow

from docleak.documents.page import Box, Image, fault_list
from docleak.documents.ranges import MOST_PIXELS, short
from docleak.errors import DocumentError, denied
from docleak.files import parse_json
from docleak.spec import counted_words

#: File names that are looked at as page images, in order of preference.
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
#: Of pictures that are not read.
OTHER_PICTURES = (".heic", ".heif", ".avif", ".gif", ".jp2")

#: The mode's bits for writing, of owner, group and others.
ANYBODY_WRITES = 0o222
_ORIENTATION = ExifTags.Base.Orientation
#: Of what a PNG may say that it is turned by: a chunk, or the keyword of one; and by what it ends.
_PNG_TURNS, _PNG_END = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp"), b"IEND"
_EIGHT_BIT_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV"}


def read_text(path: Path) -> str:
    """The file as UTF-8 text (a byte-order mark is dropped, line ends are left alone)."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"{path}: byte {error.start} is not UTF-8 text; expected UTF-8. Convert it, e.g. with "
            "`iconv -f latin1 -t utf-8`, or download it again."
        ) from error
    except OSError as error:
        raise DocumentError(
            f"{path}: cannot be read ({error.strerror}). Check the path and its permissions."
        ) from error


def read_json(path: Path) -> object:
    """The file's JSON value; a syntax error is reported with its line and column."""
    try:
        value: object = parse_json(read_text(path))
    except json.JSONDecodeError as error:
        place = f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}" if error.doc else error.msg
        raise DocumentError(f"{path}: {place}. Mend that place or download the file again.") from error
    return value


def read_json_lines(path: Path) -> tuple[list[tuple[int, dict[str, object]]], list[str]]:
    """Line number (from 1) and JSON object of each line that is not blank; and a fault for each bad line."""
    rows: list[tuple[int, dict[str, object]]] = []
    faults: list[str] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = parse_json(line)
        except json.JSONDecodeError as error:
            place = f", column {error.colno}: not JSON" if error.doc else ""
            faults.append(f"line {number}{place}: {error.msg}")
            continue
        if isinstance(value, dict):
            rows.append((number, value))
        else:
            faults.append(f"line {number}: a JSON {type(value).__name__}, expected an object {{...}}")
    return rows, faults


def read_image(path: Path, *, upright: bool = False, content: bytes | None = None) -> Image:
    """The picture as uint8 RGB, shape (H, W, 3); transparency is laid on white.

    It is read from ``content`` where that is given; ``path`` then only names it.

    ``upright`` turns a photo as its EXIF tag says. Data sets whose boxes were drawn on the stored pixels must not.
    """
    try:
        with _opened(path if content is None else io.BytesIO(content)) as opened:
            width, height = opened.size
            if width * height > MOST_PIXELS:
                raise DocumentError(
                    f"{path}: a picture of {width} x {height} pixels, expected at most {MOST_PIXELS:,} in all (A4 at "
                    "600 dots per inch has 35 million). It was not decoded; scale it down, and its boxes with it."
                )
            frames = getattr(opened, "n_frames", 1)
            picture = ImageOps.exif_transpose(opened) if upright else opened
            picture.load()
    except FileNotFoundError as error:
        raise DocumentError(f"{path}: there is no such image. Restore it, or take it out of the data set.") from error
    except PermissionError as error:
        raise DocumentError(denied(path)) from error
    except DocumentError:
        raise
    except (OSError, SyntaxError, ValueError, OverflowError, MemoryError, Pillow.DecompressionBombError) as error:
        if _is_pdf(path):
            raise DocumentError(
                f"{path}: is a PDF, expected a picture of one page. Make a folder of pages of the PDFs with docleak "
                "data convert pdf:FOLDER NEW-FOLDER (docs/data-format.md)."
            ) from error
        raise DocumentError(
            f"{path}: cannot be decoded as an image ({error}). Restore the file, or take it out of the data set."
        ) from error
    if frames > 1:
        raise DocumentError(f"{path}: holds {frames} frames, expected one page per file. Save each page on its own.")
    if picture.mode not in _EIGHT_BIT_MODES:
        raise DocumentError(f"{path}: pixels of mode {picture.mode!r}, expected 8 bits per channel. Convert the image.")
    if "A" in picture.getbands() or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        paper = Pillow.new("RGBA", picture.size, "white")
        picture = Pillow.alpha_composite(paper, picture)
    return np.array(picture.convert("RGB"), dtype=np.uint8)


def _is_pdf(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return b"%PDF-" in stream.read(1024)
    except OSError:
        return False


def _opened(path: Path | io.BytesIO) -> Pillow.Image:
    """The picture with its header read only; Pillow's own word about large ones is docleak's to say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Pillow.DecompressionBombWarning)
        return Pillow.open(path)


def image_size(path: Path, *, upright: bool = False) -> tuple[int, int] | None:
    """Width and height as the header says, turned as ``read_image`` would; None where there is no such picture."""
    try:
        with _opened(path) as opened:
            width, height = opened.size
            turned = upright and _says_a_turn(path, opened) and opened.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
    except (OSError, SyntaxError, ValueError, OverflowError, MemoryError, Pillow.DecompressionBombError):
        return None
    return (height, width) if turned else (width, height)


def _says_a_turn(path: Path, opened: Pillow.Image) -> bool:
    """Whether the picture may say that it is turned. A PNG may behind its pixels, for which Pillow decodes them all."""
    if opened.format != "PNG":
        return True
    content = path.read_bytes()
    return _PNG_END not in content or any(word in content for word in _PNG_TURNS)


def inside(root: Path, name: str, *, also: Path | None = None) -> Path | None:
    """``root / name`` if that is a file in ``root`` or in ``also``, links followed; None if it lies elsewhere.

    Names come from files that others wrote: a name such as ``../../home/me/passport.png`` must not put that picture
    into a report.
    """
    try:
        if Path(name).name == name != ".." and "\0" not in name and not (root / name).is_symlink():
            return root / name  # as nearly all are
        path = (root / name).resolve()
        homes = [folder.resolve() for folder in (root, also) if folder is not None]
    except (OSError, ValueError, RuntimeError):
        return None
    return root / name if any(path.is_relative_to(home) for home in homes) else None


def to_box(value: object) -> Box:
    """The box of a JSON list of four numbers that a float can hold; raises ValueError for anything else."""
    if isinstance(value, list) and len(value) == 4 and all(type(v) in (int, float) for v in value):
        try:
            x0, y0, x1, y1 = map(float, value)
        except OverflowError:
            raise ValueError(
                f"box {short(value)} holds a number beyond all pixels; expected [x0, y0, x1, y1]"
            ) from None
        if all(math.isfinite(v) for v in (x0, y0, x1, y1)):
            return (x0, y0, x1, y1)
    raise ValueError(f"box {short(value)}, expected [x0, y0, x1, y1]")


def images_by_stem(folder: Path) -> dict[str, Path]:
    """The images of a folder by file name without suffix; links out of the folder are none."""
    images: dict[str, Path] = {}
    for path in sorted(folder.iterdir(), key=lambda p: (_preference(p), p.name)):
        if path.suffix.lower() in IMAGE_SUFFIXES and inside(folder, path.name) is not None:
            images.setdefault(path.stem, path)
    return images


def _preference(path: Path) -> int:
    suffix = path.suffix.lower()
    return IMAGE_SUFFIXES.index(suffix) if suffix in IMAGE_SUFFIXES else len(IMAGE_SUFFIXES)


def paired(parts: Mapping[str, Collection[str]]) -> tuple[list[str], list[str]]:
    """The stems that every folder has, sorted, and a fault for each file that another folder lacks."""
    stems = sorted(set().union(*parts.values()))
    faults = [f"{stem}: no file in {folder}/" for stem in stems for folder, has in parts.items() if stem not in has]
    return [stem for stem in stems if all(stem in has for has in parts.values())], faults


def first_folder(candidates: Iterable[Path], parts: Sequence[str]) -> Path | None:
    """The first of the candidates that is a folder with all of ``parts`` in it, or None."""
    for candidate in candidates:
        if candidate.is_dir() and all((candidate / part).exists() for part in parts):
            return candidate
    return None


def require_folder(path: Path, inner: Sequence[str], parts: Sequence[str], expected: str) -> Path:
    """``path`` or the first of its ``inner`` folders with all of ``parts``; else a DocumentError."""
    folder = first_folder([path, *(path / name for name in inner)], parts)
    if folder is None:
        raise DocumentError(f"{path} {describe_folder(path)}; expected {expected}")
    return folder


def require_split(path: Path, split: str, known: Sequence[str]) -> None:
    """DocumentError unless ``split`` is one of the splits ``known`` at ``path``."""
    if not known:
        raise DocumentError(f"{path}: has no splits, and {split!r} was asked for. Give the path alone.")
    if split not in known:
        raise DocumentError(
            f"{path}: there is no split {split!r}; expected {', '.join(known)}. Name one, or give the path alone."
        )


def require_new(path: Path, what: str) -> None:
    """DocumentError unless there is nothing at ``path``, or an empty folder that may be written to; ``what`` was to be
    written there."""
    if path.is_dir() and not (path.stat().st_mode & ANYBODY_WRITES and os.access(path, os.W_OK)):
        raise DocumentError(
            f"{path} is a folder that may not be written to (mode {path.stat().st_mode & 0o777:o}); {what} would take "
            "its place. Name another folder, or give the right to write to this one."
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise DocumentError(f"{path} {describe_folder(path)}; {what} are only written to a new folder.")


def describe_folder(path: Path) -> str:
    """What is at ``path``, in words, for an error message."""
    if not path.exists():
        return "does not exist"
    if not path.is_dir():
        return "is a file"
    names = sorted(p.name + ("/" if p.is_dir() else "") for p in path.iterdir())
    return f"holds {first_of(names)}" if names else "is an empty folder"


def first_of(names: Sequence[str], shown: int = 8) -> str:
    """The first names of files in a line, and how many more there are."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]).replace("\n", "\\n") + more


def raise_faults(path: Path, faults: Sequence[str], remedy: str) -> None:
    """Raise one DocumentError that lists all faults of the data set at ``path``; do nothing if there are none."""
    if faults:
        raise DocumentError(f"{path}: {counted_words(len(faults), 'fault')}:{fault_list(faults)}\n{remedy}")
