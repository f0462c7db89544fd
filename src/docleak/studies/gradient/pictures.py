"""The pictures of a gradient audit: pages side by side, private fields enlarged, the filmstrip; one page for a table.

Returns plain dicts for the template; ``alt`` texts say what a picture shows to who cannot see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from docleak.documents.page import Box, Image, Word
from docleak.metrics import FieldScore, PageScore
from docleak.metrics.image import box_slices
from docleak.report.pictures import picture, png_of, shrunk
from docleak.report.severity import Cell
from docleak.runs.run import Run
from docleak.studies.fields import KINDS, mark
from docleak.studies.gradient.config import CLOSED_FORM
from docleak.studies.gradient.exposed import published
from docleak.studies.gradient.findings import FLOORS, blind
from docleak.studies.gradient.results import AttackResult, ModelResult, Unit
from docleak.studies.gradient.texts import words_in

#: Pages shown in pictures per model, and frames of a filmstrip; the rest stays in the run's directory.
PAGES_SHOWN = 8
FRAMES_SHOWN = 6
FRAME_SIDE = 320
#: Enlarged fields are about this high on the screen, and at most four times their size.
CROP_HEIGHT = 40
#: What is shown of a recovered text beside its words.
TEXT_SHOWN = ("question", "answer", "exact", "believed_exact", "tokens", "tokens_right", "seconds")
#: Paper around a field, in pixels.
MARGIN = 2
#: How much larger the picture beside a table shows a document.
SCALE_UP = 2
ORIGINS = {"template": "known to the attacker", "truth": "never seen by the attacker"}


def pictures_of(attack: AttackResult, page: str, *, best: bool) -> dict[str, Any] | None:
    """Everything to show of one attack on one page; the known and the true page only for the ``best`` attack."""
    unit = next((unit for unit in attack.units if unit.page == page), None)
    if unit is None:
        return None
    images = {kind: unit.run.read_image(str(unit.record["unit"]), unit.record["images"][kind]) for kind in KINDS}
    shown = list(KINDS) if best else ["reconstruction"]
    return {
        "attack": attack.attack,
        "summary": attack.summary,
        "paper": attack.paper,
        **{key: unit.record["finding"].get(key) for key in ("explained", "start", "loss")},
        "score": unit.score,
        "pages": [_page(images[kind], kind, unit) for kind in shown],
        "fields": fields_of(unit, images, shown),
        "film": film_of(unit, images["reconstruction"]) if best else None,
    }


def text_of(unit: Unit) -> dict[str, Any] | None:
    """What linear algebra read of the text, its words laid out on the page; the ones in private fields are marked."""
    text = unit.text
    if text is None:
        return None
    width, height = unit.record.get("size") or (0, 0)  # old runs without words have none
    private = [tuple(box) for field in unit.record["fields"] for box in field["boxes"]]
    words = [Word(str(word["text"]), tuple(word["box"])) for word in text["words"]]
    secret = words_in(words, private)
    read = text["fields_read"]
    seen = text.get("fields_seen") or [True] * len(read)
    return {
        **{key: text[key] for key in TEXT_SHOWN},
        "fields": len(read),
        "fields_read": sum(read),
        "unseen": sum(not (there or told) for there, told in zip(seen, read, strict=True)),
        "limit": text.get("token_limit"),
        "width": width,
        "height": height,
        "words": [
            {"text": word.text, "secret": word in secret, "x": word.box[0], "y": word.box[1],
             "width": max(word.box[2] - word.box[0], 1), "height": max(word.box[3] - word.box[1], 1)}
            for word in words
        ],
    }  # fmt: skip


def fields_of(unit: Unit, images: dict[str, Image], shown: Sequence[str]) -> list[dict[str, Any]]:
    """Each private field enlarged, with what the OCR engine read under each of the ``shown`` pictures."""
    scores = {"template": unit.floor, "reconstruction": unit.score, "truth": unit.ceiling}
    places = boxes_of(unit.score, unit.record["fields"])
    result = []
    for index, (field, boxes) in enumerate(zip(unit.score.fields, places, strict=True)):
        about = f"field {index + 1} of {_about(unit)}"
        rows = [_row(images[kind], kind, scores[kind].fields[index], boxes, unit, about) for kind in shown]
        lost = mark(unit.ceiling.fields[index]) == "no"  # the engine cannot read the true page there
        facts = {"key": field.key, "value": field.value, "mark": mark(field), "fuzz": field.fuzz}
        result.append({**facts, "illegible": lost, "given": unit.given(field), "rows": rows})
    return result


def boxes_of(score: PageScore, fields: Sequence[dict[str, Any]]) -> list[list[Box]]:
    """The boxes of every scored field; keys and values may repeat, and are then taken in order."""
    left = list(fields)
    places: list[list[Box]] = []
    for field in score.fields:
        match = next((f for f in left if f["key"] == field.key and f["value"] == field.value), None)
        if match is not None:
            left.remove(match)
        places.append([tuple(box) for box in match["boxes"]] if match else [])
    return places


def film_of(unit: Unit, result: Image) -> dict[str, Any] | None:
    """The reconstruction growing clearer: at most FRAMES_SHOWN snapshots and the narrowest field enlarged in each."""
    snapshots = sorted((int(number), str(file)) for number, file in unit.record.get("snapshots", []))
    if len(snapshots) < 2:
        return None
    chosen = np.unique(np.linspace(0, len(snapshots) - 1, FRAMES_SHOWN).round().astype(int))
    frames = [(snapshots[i][0], unit.run.read_image(str(unit.record["unit"]), snapshots[i][1])) for i in chosen]
    spent = int(unit.record["finding"].get("evaluations") or 0)
    if spent > frames[-1][0]:
        frames = [*frames[: FRAMES_SHOWN - 1], (spent, result)]
    places = zip(unit.score.fields, boxes_of(unit.score, unit.record["fields"]), strict=True)
    single = [(boxes[0][2] - boxes[0][0], field.key, boxes[0]) for field, boxes in places if len(boxes) == 1]
    narrowest = min(single) if single else None
    return {
        "field": narrowest[1] if narrowest else None,
        "frames": [
            {
                "evaluations": number,
                "page": picture(shrunk(image, FRAME_SIDE), f"The page after {number} evaluations: {_about(unit)}"),
                "crop": _crop(image, narrowest[2], f"Field {narrowest[1]} after {number} evaluations: {_about(unit)}")
                if narrowest
                else None,
            }
            for number, image in frames
        ],
    }


def bar_of(model: ModelResult) -> dict[str, Any]:
    """The bar under a headline: the same fields as the headline, by what all routes together gave."""
    said = model.findings.judgement
    read, near = said.read, said.cells.count(Cell.NEAR)
    parts = [("exact", read, "read"), ("near", near, "nearly read"), ("no", said.of - read - near, "not read")]
    return {
        "of": said.of,
        "parts": [{"kind": kind, "count": count, "words": words} for kind, count, words in parts],
        "label": f"By any route, of {said.of} private fields: " + ", ".join(f"{n} {words}" for _, n, words in parts),
    }


def origin_of(kind: str, unit: Unit) -> str:
    """Where a picture comes from; of a floor, that no gradient went into it; of the closed form, what of it was none:
    it optimises what linear algebra does not determine, and leaves a batch's template where the budget is too small."""
    if kind in ORIGINS:
        how = published(unit.run) if kind == "template" else ""
        return f"{how}; {ORIGINS[kind]}" if how else ORIGINS[kind]
    attack, finding = str(unit.record["attack"]), unit.record["finding"]
    if blind(unit.record):
        return "the blank template: the model reads no picture, so the gradient tells nothing of one"
    if attack in FLOORS:
        return "random pixels, a floor: no gradient went into it"
    if not attack.startswith(CLOSED_FORM):
        return f"made from the gradient, by {attack}"
    if finding.get("evaluations"):
        return f"made from the gradient by optimisation, where linear algebra did not determine it, by {attack}"
    if unit.record["view"].get("batch_size", 1) > 1 and finding.get("explained") == 0:
        return f"the template as it is: {attack} did not determine it, and the budget was too small to optimise"
    return f"computed from the gradient by linear algebra, by {attack}"


def label_of(kind: str, unit: Unit) -> str:
    """What a picture is called; a template under a defence may be no blank one."""
    return "Published template" if kind == "template" and published(unit.run) else KINDS[kind]


def _about(unit: Unit) -> str:
    """What tells a unit's pictures from those of all others."""
    return f"page {unit.page}, {unit.record['model_title']}, {unit.record['attack']}"


def _page(image: Image, kind: str, unit: Unit) -> dict[str, Any]:
    origin, label = origin_of(kind, unit), label_of(kind, unit)
    shown = picture(shrunk(image), f"{label}, {origin}: {_about(unit)}")
    return {"kind": kind, "label": label, "origin": origin, **shown}


def _row(image: Image, kind: str, field: FieldScore, boxes: Sequence[Box], unit: Unit, about: str) -> dict[str, Any]:
    lines = [f", line {number}" if len(boxes) > 1 else "" for number in range(1, len(boxes) + 1)]
    label = label_of(kind, unit)
    alts = [f"{label}, field {field.key} enlarged{line}: {about}" for line in lines]
    return {
        "kind": kind,
        "label": label,
        "crops": [_crop(image, box, alt) for box, alt in zip(boxes, alts, strict=True)],
        "read": field.read,
        "mark": mark(field),
    }


def _crop(image: Image, box: Box, alt: str) -> dict[str, Any]:
    crop = image[box_slices(box, image.shape[0], image.shape[1], MARGIN)]
    scale = int(np.clip(round(CROP_HEIGHT / max(crop.shape[0], 1)), 1, 4))
    return picture(crop, alt, scale)


def sheet_of(tables: Mapping[str, Sequence[tuple[str, Run]]]) -> bytes | None:
    """A PNG of one document a table (title -> its rows, name and run), one table under the other: the true page, then
    each finished row's reconstruction of the first document that all of them have; None without one."""
    shown = {title: strips for title, rows in tables.items() if (strips := _strips(rows))}
    if not shown:
        return None
    sheets = [_sheet(strips, title if len(shown) > 1 else "") for title, strips in shown.items()]
    width = max(sheet.shape[1] for sheet in sheets)
    padded = [np.pad(s, ((0, 0), (0, width - s.shape[1]), (0, 0)), constant_values=255) for s in sheets]
    return png_of(np.concatenate(padded))


def _strips(rows: Sequence[tuple[str, Run]]) -> list[tuple[str, Image]]:
    finished = [(name, run, {str(unit["page"]): unit for unit in run.units()}) for name, run in rows]
    finished = [row for row in finished if row[2]]
    shared = set.intersection(*(set(units) for _, _, units in finished)) if finished else set()
    if not shared:
        return []
    page, strips = sorted(shared)[0], list[tuple[str, Image]]()
    for name, run, units in finished:
        unit = units[page]
        x0, y0, x1, y1 = _region(unit["fields"])
        kinds = (("true page", "truth"), (name, "reconstruction")) if not strips else ((name, "reconstruction"),)
        for title, kind in kinds:
            image = run.read_image(str(unit["unit"]), unit["images"][kind])
            strips.append((title, np.asarray(image[y0:y1, x0:x1])))
    return strips


def _region(fields: Sequence[Mapping[str, Any]]) -> tuple[int, int, int, int]:
    """One rectangle around the private fields that lie close together at the top, in page pixels."""
    boxes = [box for f in fields for box in f["boxes"]]
    x0, y0 = min(b[0] for b in boxes), min(b[1] for b in boxes)
    x1, y1 = max(b[2] for b in boxes), max(b[3] for b in boxes)
    return max(0, int(x0) - 4), max(0, int(y0) - 4), int(x1) + 5, int(min(y1, y0 + 120)) + 5


def _sheet(strips: Sequence[tuple[str, Image]], title: str) -> Image:
    font, top = PIL.ImageFont.load_default(13), 26 if title else 0
    height, width = (side * SCALE_UP for side in strips[0][1].shape[:2])
    cell = max(width, *(int(font.getlength(name)) + 4 for name, _ in strips)) + 8
    columns = max(1, min(len(strips), 1200 // cell))
    rows = -(-len(strips) // columns)
    sheet = PIL.Image.new("RGB", (columns * cell, top + rows * (height + 26)), "white")
    draw = PIL.ImageDraw.Draw(sheet)
    if title:
        draw.text((2, 6), title, fill=(0, 0, 0), font=PIL.ImageFont.load_default(16))
    for index, (name, image) in enumerate(strips):
        x, y = index % columns * cell, top + index // columns * (height + 26)
        draw.text((x + 2, y + 4), name, fill=(0, 0, 0), font=font)
        big = PIL.Image.fromarray(image).resize((width, height), PIL.Image.Resampling.NEAREST)
        sheet.paste(big, (x, y + 22))
    return np.asarray(sheet)
