"""The table of a recipe of the kind ``audit``: what attacks read beside what the paper's did, and pictures of it."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from docleak.documents.page import Image
from docleak.evidence.audit import AuditConfig
from docleak.evidence.case import Exposure
from docleak.evidence.report_data import AttackResult, ModelResult, prepare
from docleak.recipes.audits import METRICS, OPTIONS, SETTINGS, AuditExperiment, experiments, facts_of, plan
from docleak.recipes.kinds import Kind, field_types
from docleak.recipes.page import Group, Picture, estimate_text, failed_text, with_printed, write_page
from docleak.recipes.recipe import Recipe
from docleak.recipes.runner import failures
from docleak.runs.run import Run

#: metric -> (heading, digits, shown as a percentage)
COLUMNS = {
    "binary": ("Binary (picture)", 1, True),
    "fuzz_ratio": ("fuzz ratio", 3, False),
    "psnr": ("PSNR, dB", 1, False),
    "fft2d": ("FFT2D", 4, False),
    "mse": ("MSE", 0, False),
}
HEADS = (*(head for head, _, _ in COLUMNS.values()), "documents", "evaluations", "s per document")
FOOTNOTE = (
    "Ours with 95 % intervals over documents in square brackets; the paper's value in round brackets. MSE is the true "
    "one in 0-255 units; the paper's printed values are not comparable."
)
SCALE_UP = 2


@dataclass(frozen=True)
class Line:
    """One row of the table on one model; ``result`` is None while nothing is finished."""

    name: str
    model: str
    result: AttackResult | None
    context: ModelResult | None
    printed: Mapping[str, float]
    failed: Mapping[str, str]
    asked: int


def lines_of(planned: Sequence[AuditExperiment], seed: int) -> list[Line]:
    """Aggregate every experiment from what is on disk; each row draws the same bootstrap."""
    lines = []
    for e in planned:
        run = Run(e.folder)
        context = result = None
        if (e.folder / "run.json").is_file() and run.units():
            context = prepare([run], np.random.default_rng(seed)).models[0]
            result = context.best
        printed = e.row.printed.get(e.model, {})
        lines.append(Line(e.row.name, e.model, result, context, printed, failures(e.folder), e.config.pages))
    return lines


def title_of(model: str, lines: Sequence[Line]) -> str:
    """The audited checkpoint's title, or the recipe's own name of the model."""
    return next((line.context.title for line in lines if line.model == model and line.context), model)


def cells(line: Line) -> list[str]:
    """The numbers of a row: our estimate with its interval, then the paper's value in round brackets."""
    columns = [_cell(line, name) for name in COLUMNS]
    if line.result is None:
        return [*columns, f"0 of {line.asked}{failed_text(line.failed)}", "-", "-"]
    evaluations, seconds = line.result.evaluations.mean, line.result.seconds.mean
    return [
        *columns,
        f"{len(line.result.units)}{failed_text(line.failed)}",
        "-" if evaluations is None else f"{evaluations:.0f}",
        "-" if seconds is None else f"{seconds:.0f}",
    ]


def _cell(line: Line, metric: str) -> str:
    _, digits, percent = COLUMNS[metric]
    ours = "-" if line.result is None else estimate_text(line.result.estimates[metric], digits, percent)
    return with_printed(ours, line.printed.get(metric), digits, percent)


def pictures(lines: Sequence[Line]) -> Image | None:
    """A sheet of the first document all rows of the first model have: blank, each row's reconstruction, truth."""
    first = [line for line in lines if line.model == lines[0].model and line.result is not None]
    shared = set.intersection(*(set(line.result.pages) for line in first if line.result)) if first else set()
    if not shared:
        return None
    page = sorted(shared)[0]
    strips: list[tuple[str, Image]] = []
    for line in first:
        assert line.result is not None
        unit = next(u for u in line.result.units if u.page == page)
        names = unit.record["images"]
        box = _region(unit.record["fields"])

        def crop(kind: str, unit: Any = unit, names: Any = names, box: Any = box) -> Image:
            image = unit.run.read_image(str(unit.record["unit"]), names[kind])
            return np.asarray(image[box[1] : box[3], box[0] : box[2]])

        if not strips:
            strips += [("true page", crop("truth"))]
        strips.append((line.name, crop("reconstruction")))
    return _sheet(strips)


def _region(fields: Sequence[Mapping[str, Any]]) -> tuple[int, int, int, int]:
    """One rectangle around the private fields that lie close together at the top, in page pixels."""
    boxes = [box for f in fields for box in f["boxes"]]
    x0, y0 = min(b[0] for b in boxes), min(b[1] for b in boxes)
    x1, y1 = max(b[2] for b in boxes), max(b[3] for b in boxes)
    return max(0, int(x0) - 4), max(0, int(y0) - 4), int(x1) + 5, int(min(y1, y0 + 120)) + 5


def _sheet(strips: Sequence[tuple[str, Image]]) -> Image:
    font = PIL.ImageFont.load_default(13)
    height, width = (side * SCALE_UP for side in strips[0][1].shape[:2])
    columns = max(1, min(len(strips), 1200 // (width + 8)))
    rows = -(-len(strips) // columns)
    sheet = PIL.Image.new("RGB", (columns * (width + 8), rows * (height + 26)), "white")
    draw = PIL.ImageDraw.Draw(sheet)
    for index, (name, image) in enumerate(strips):
        x, y = index % columns * (width + 8), index // columns * (height + 26)
        draw.text((x + 2, y + 4), name, fill=(0, 0, 0), font=font)
        big = PIL.Image.fromarray(image).resize((width, height), PIL.Image.Resampling.NEAREST)
        sheet.paste(big, (x, y + 22))
    return np.asarray(sheet)


def write_table(
    recipe: Recipe, scale: str, planned: Sequence[AuditExperiment], out: Path, facts: Mapping[str, str]
) -> Path:
    """Write table.md, table.json, pictures.png and table.html; returns the path of the last."""
    lines = lines_of(planned, seed=0)
    models = dict.fromkeys(line.model for line in lines)
    read = any(e.config.exposure.recover_text for e in planned)
    heads = (*HEADS, "text tokens read") if read else HEADS
    return write_page(
        recipe, scale, out, heads=heads, groups=[_group(model, lines, read) for model in models], facts=facts,
        footnote=FOOTNOTE, picture=_picture(lines), saved=[_json(line) for line in lines],
    )  # fmt: skip


def _group(model: str, lines: Sequence[Line], read: bool) -> Group:
    own = [line for line in lines if line.model == model]
    failed = {line.name: line.failed for line in own if line.failed}
    rows = [(line.name, [*cells(line), text_cell(line)] if read else cells(line)) for line in own]
    return Group(title_of(model, lines), rows, failed)


def text_cell(line: Line) -> str:
    """What linear algebra read of the text: of single pages the tokens at their places, of batches also the set."""
    texts, batches = (line.context.texts, line.context.batches) if line.context else ([], [])
    if batches:
        named, there, placed, of = (
            sum(batch[part][key] for batch in batches) for part in ("tokens", "places") for key in ("right", "true")
        )
        return f"{named} of {there} as a set, {placed} of {of} places"
    if not texts:
        return "-"
    right, tokens = (sum(int(text[key]) for text in texts) for key in ("tokens_right", "tokens"))
    return f"{right} of {tokens}; {sum(bool(text['exact']) for text in texts)} of {len(texts)} pages exact"


def _picture(lines: Sequence[Line]) -> Picture | None:
    sheet = pictures(lines)
    if sheet is None:
        return None
    buffer = io.BytesIO()
    PIL.Image.fromarray(sheet).save(buffer, format="PNG", optimize=True)
    shows = "Private fields of one document: true page and each row's reconstruction"
    return Picture(buffer.getvalue(), "One document", shows)


def _json(line: Line) -> dict[str, Any]:
    ours = {} if line.result is None else {name: vars(line.result.estimates[name]) for name in COLUMNS}
    return {
        "row": line.name,
        "model": line.model,
        "ours": ours,
        "paper": dict(line.printed),
        "failed": dict(line.failed),
    }


AUDITS = Kind(
    about="attacks on what a client sends",
    settings=frozenset(SETTINGS),
    types={**field_types(AuditConfig, Exposure), "attack": "str", "attack_options": "str"},
    metrics=METRICS,
    options=OPTIONS,
    experiments=experiments,
    plan=plan,
    facts=facts_of,
    write_table=write_table,
)
