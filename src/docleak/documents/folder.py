"""The user's own pages: a folder with images and ``pages.jsonl``, one JSON object per page (docs/data-format.md)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from docleak.documents.files import (
    describe_folder,
    image_size,
    inside,
    raise_faults,
    read_json_lines,
    require_new,
    to_box,
)
from docleak.documents.page import Entity, Field, Page, Question, Word, box_faults
from docleak.documents.pages import LazyPages, PageEntry, at_most, clip_overshoot, entry_of
from docleak.documents.ranges import MOST_PIXELS, short
from docleak.documents.scale import MOST_SHOWN, BoxScale, beyond, unit_boxes
from docleak.errors import DocumentError
from docleak.files import drafted_folder, png_bytes

INDEX = "pages.jsonl"

#: Keys of a page and of each of its parts; the first ones, up to the number given, are required.
PAGE_KEYS = (
    *("image", "name", "words", "fields", "questions", "provider", "document", "template", "notes"),
    *("entities", "links", "data_set"),
)
PART_KEYS = {
    "words": (("text", "box"), 2),
    "fields": (("key", "value", "words", "box", "private"), 2),
    "questions": (("text", "answers", "key"), 2),
    "entities": (("label", "words"), 2),
}

Json = Mapping[str, Any]


def load(path: Path, *, limit: int | None = None, image_root: Path | None = None) -> LazyPages:
    """Pages in the order of ``pages.jsonl``; images are turned upright as their EXIF tag says.

    Images lie in the folder, or in ``image_root``; links are followed first. ``notes`` says where boxes look as if
    they were of another scale. Raises DocumentError, listing every fault of the index at once, for unknown keys, values
    of a wrong type, word numbers that do not exist, boxes that do not fit the picture, lines that are there twice, and
    images that are not there, lie elsewhere or are too large.
    """
    entries, faults, notes = read_index(path, limit=limit, image_root=image_root)
    raise_faults(path / INDEX, faults, "Mend these lines; docs/data-format.md describes them.")
    if not entries:
        raise DocumentError(f"{path / INDEX}: holds no page. Write one line per page.")
    return LazyPages(path, entries, notes=notes)


def read_index(
    path: Path, *, limit: int | None = None, image_root: Path | None = None
) -> tuple[list[PageEntry], list[str], list[str]]:
    """Pages of the lines without a fault, every fault as a phrase with its line, and doubts about the boxes.

    Raises DocumentError where there is no index, or none that can be read.
    """
    index = path / INDEX
    if not index.is_file():
        raise DocumentError(
            f"{path} {describe_folder(path)}; expected {INDEX} beside the page images. Write one line per page, at "
            'least {"image": "page.png"}; docs/data-format.md shows the rest.'
        )
    entries: list[PageEntry] = []
    rows, faults = read_json_lines(index)
    scale, lines = BoxScale(), dict[str, int]()
    shared = shared_stems(row for _, row in rows)
    for number, row in at_most(rows, limit):
        bad = line_faults(row, path, image_root, scale=scale)
        first = lines.setdefault(json.dumps(row, sort_keys=True), number)
        bad += [f"the same page as line {first}"] if first != number else []
        faults += [f"line {number}: {fault}" for fault in bad]
        if not bad:
            entries.append(_entry(path, row, shared))
    return entries, faults, scale.notes()


def shared_stems(rows: Iterable[Json]) -> set[str]:
    """The names without folder and suffix that several images have of pages that are not given a name."""
    images = {Path(image) for row in rows if "name" not in row and isinstance(image := row.get("image"), str)}
    return {stem for stem, count in Counter(image.stem for image in images).items() if count > 1}


def page_name(row: Json, shared: Collection[str]) -> str:
    """The page's own name, else its image's without folder and suffix, or with both where the stem is ``shared``."""
    image = Path(row["image"])
    name: str = row.get("name", image.as_posix() if image.stem in shared else image.stem)
    return name


def line_faults(row: Json, path: Path, image_root: Path | None = None, *, scale: BoxScale | None = None) -> list[str]:
    """What is wrong with one line of the index, and with its boxes on its picture, as phrases."""
    return page_faults(row, path, image_root) or _picture_faults(row, path, scale or BoxScale())


def _picture_faults(row: Json, path: Path, scale: BoxScale) -> list[str]:
    """What is wrong with a line's picture and with its boxes on that picture, of which only the header is read."""
    words, _ = words_and_fields(row)
    size = image_size(path / row["image"], upright=True)
    if size is None:
        return []  # told when the page is opened, with the reason
    if size[0] * size[1] > MOST_PIXELS:
        return [f"the image {row['image']!r} has {size[0]} x {size[1]} pixels, expected at most {MOST_PIXELS:,} in all"]
    if faults := unit_boxes(words, size):
        return faults
    bad = list(box_faults([clip_overshoot(word, *size) for word in words], *size))
    scale.add(words, size)
    told = [f"{fault} ({size[0]} x {size[1]} pixels)" for fault in bad[:MOST_SHOWN]]
    return told + beyond(bad, words, size)


def _entry(path: Path, row: Json, shared: Collection[str]) -> PageEntry:
    words, fields = words_and_fields(row)
    return entry_of(
        path / INDEX,
        path / row["image"],
        words,
        upright=True,
        name=page_name(row, shared),
        fields=fields,
        questions=tuple(Question(q["text"], tuple(q["answers"]), q.get("key")) for q in row.get("questions", [])),
        document=row.get("document", ""),
        provider=row.get("provider", ""),
        template=row.get("template"),
        notes=tuple(row.get("notes", ())),
        entities=tuple(Entity(e["label"], tuple(e["words"])) for e in row.get("entities", [])),
        links=tuple((a, b) for a, b in row.get("links", [])),
        data_set=row.get("data_set", ""),
    )


def words_and_fields(row: Json) -> tuple[tuple[Word, ...], tuple[Field, ...]]:
    """Words and fields of a faultless line; a field given by a box gets a word of its own, after the others."""
    words = [Word(w["text"], to_box(w["box"])) for w in row.get("words", [])]
    fields = []
    for item in row.get("fields", []):
        places = tuple(item.get("words", ()))
        if "box" in item:
            places = (len(words),)
            words.append(Word(item["value"], to_box(item["box"])))
        fields.append(Field(item["key"], item["value"], places, item.get("private", True)))
    return tuple(words), tuple(fields)


def page_faults(row: Json, path: Path, image_root: Path | None = None) -> list[str]:
    """What is wrong with one line of the index, as phrases; the images lie in ``path`` or in ``image_root``."""
    faults = _key_faults("the page", row, PAGE_KEYS, 1)
    texts = [key for key in ("image", "name", "provider", "document", "template", "data_set") if key in row]
    faults += [f"{key!r} is {short(row[key])}, expected a text" for key in texts if not isinstance(row[key], str)]
    if isinstance(row.get("image"), str):
        faults += _image_faults(row["image"], path, image_root)
    notes = row.get("notes", [])
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        faults.append(f"'notes' is {short(notes)}, expected a list of texts")
    faults += _link_faults(row)
    for part, (keys, required) in PART_KEYS.items():
        items = row.get(part, [])
        if not isinstance(items, list):
            faults.append(f"{part!r} is a {type(items).__name__}, expected a list")
            continue
        for i, item in enumerate(items):
            where = f"{part}[{i}]"
            if not isinstance(item, dict):
                faults.append(f"{where} is a {type(item).__name__}, expected an object")
                continue
            faults += _key_faults(where, item, keys, required)
            faults += [f"{where}: {fault}" for fault in _value_faults(item, row)]
    return faults


def _image_faults(name: str, path: Path, image_root: Path | None) -> list[str]:
    if inside(path, name, also=image_root) is None:
        return [
            f"the image {name!r} lies outside of the folder and is not read; copy it in, or name its folder with "
            "--image-root to docleak data convert, which copies all of them"
        ]
    return [] if (path / name).is_file() else [f"there is no image {name!r} in the folder"]


def _link_faults(row: Json) -> list[str]:
    links, entities = row.get("links", []), row.get("entities", [])
    count = len(entities) if isinstance(entities, list) else 0
    pairs = isinstance(links, list) and all(
        isinstance(link, list) and len(link) == 2 and all(type(end) is int and 0 <= end < count for end in link)
        for link in links
    )
    return [] if pairs else [f"'links' is {short(links)}, expected pairs of numbers of the {count} entities (from 0)"]


def _key_faults(where: str, item: Json, keys: tuple[str, ...], required: int) -> list[str]:
    unknown = [f"{where}: unknown key {key!r}, expected some of {', '.join(keys)}" for key in item if key not in keys]
    return unknown + [f"{where}: {key!r} is missing" for key in keys[:required] if key not in item]


def _value_faults(item: Json, row: Json) -> list[str]:
    """Values of a wrong type in a word, field, question or entity (a key means the same in all of them)."""
    faults = [
        f"{key!r} is {short(item[key])}, expected a text"
        for key in ("text", "key", "value", "label")
        if key in item and not isinstance(item[key], str)
    ]
    if "box" in item:
        try:
            to_box(item["box"])
        except ValueError as error:
            faults.append(str(error))
    if not isinstance(item.get("private", True), bool):
        faults.append(f"'private' is {short(item['private'])}, expected true or false")
    answers = item.get("answers", [])
    if not isinstance(answers, list) or not all(isinstance(a, str) for a in answers):
        faults.append(f"'answers' is {short(answers)}, expected a list of texts")
    numbers = item.get("words", [])
    count = len(row["words"]) if isinstance(row.get("words"), list) else 0
    if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < count for n in numbers):
        faults.append(f"'words' is {short(numbers)}, expected a list of numbers of the page's {count} words (from 0)")
    value, placed = item.get("value"), "box" in item or item.get("words")
    if isinstance(value, str) and not value.strip() and placed and item.get("private") is not False:
        faults.append(f"'value' is {value!r}, expected what the page shows there; give it, or leave the field out")
    if "words" in item and "box" in item:
        faults.append("both 'words' and 'box', expected one of them")
    return faults


def save(pages: Iterable[Page], directory: Path, *, also: Callable[[Path], None] = lambda draft: None) -> Path:
    """Write pages as a new folder that ``load`` reads back unchanged; images become PNG. Returns the folder.

    The folder appears complete or not at all; ``also`` may write other files into it, after the pages. Raises
    DocumentError if it exists and is not empty, or for no pages.
    """
    require_new(directory, "pages")
    with drafted_folder(directory) as draft:
        lines = []
        taken: set[str] = set()
        for page in pages:
            image = _file_name(page.name, taken)
            (draft / image).write_bytes(png_bytes(page.image))
            lines.append(json.dumps(page_line(page, image), ensure_ascii=False))
        if not lines:
            raise DocumentError(f"{directory}: there are no pages to write. Give at least one.")
        (draft / INDEX).write_bytes("".join(f"{line}\n" for line in lines).encode())
        also(draft)
    return directory


def page_line(page: Page, image: str) -> dict[str, object]:
    """The page's object in ``pages.jsonl``, without what equals its default."""
    line: dict[str, object] = {"image": image}
    if page.name != Path(image).stem:
        line["name"] = page.name
    line["words"] = [{"text": w.text, "box": [float(v) for v in w.box]} for w in page.words]
    line["fields"] = [
        {"key": f.key, "value": f.value, "words": list(map(int, f.words))} | ({} if f.private else {"private": False})
        for f in page.fields
    ]
    line["questions"] = [
        {"text": q.text, "answers": list(q.answers)} | ({} if q.key is None else {"key": q.key}) for q in page.questions
    ]
    line |= {key: value for key in ("provider", "document", "data_set") if (value := getattr(page, key))}
    if page.template is not None:
        line["template"] = page.template
    if page.notes:
        line["notes"] = list(page.notes)
    if page.entities:
        line["entities"] = [{"label": entity.label, "words": list(map(int, entity.words))} for entity in page.entities]
        line["links"] = [list(map(int, link)) for link in page.links]
    return line


def _file_name(name: str, taken: set[str]) -> str:
    """A plain file name for the page's image, unlike the ones in ``taken`` (it joins them)."""
    stem = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:80] or "page"
    unique, number = stem, 1
    while unique.lower() in taken:
        number += 1
        unique = f"{stem}-{number}"
    taken.add(unique.lower())
    return f"{unique}.png"
