"""The table of a recipe: ours beside the paper's, as Markdown, JSON and a page with pictures."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from docleak.documents.page import Image
from docleak.documents.storage import write_atomically
from docleak.evidence.report_data import AttackResult, ModelResult, prepare
from docleak.evidence.run import Run
from docleak.metrics import Estimate
from docleak.recipes.recipe import Recipe
from docleak.recipes.runner import Experiment, failures

#: metric -> (heading, digits, shown as a percentage)
COLUMNS = {
    "binary": ("Binary", 1, True),
    "fuzz_ratio": ("fuzz ratio", 3, False),
    "psnr": ("PSNR, dB", 1, False),
    "fft2d": ("FFT2D", 4, False),
    "mse": ("MSE", 0, False),
}
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


def lines_of(planned: Sequence[Experiment], seed: int) -> list[Line]:
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


def markdown(recipe: Recipe, scale: str, lines: Sequence[Line], facts: Mapping[str, str]) -> str:
    """The table and what is needed to believe it."""
    parts = [f"## {recipe.title}", "", f"{recipe.paper}, scale {scale}. The paper's finding: {recipe.finding}", ""]
    for model in dict.fromkeys(line.model for line in lines):
        parts += [f"### {title_of(model, lines)}", "", *_table([line for line in lines if line.model == model]), ""]
    parts += [f"{name}: {value}  " for name, value in facts.items()]
    if recipe.note:
        parts += ["", recipe.note]
    return "\n".join(parts) + "\n"


def title_of(model: str, lines: Sequence[Line]) -> str:
    """The audited checkpoint's title, or the recipe's own name of the model."""
    return next((line.context.title for line in lines if line.model == model and line.context), model)


def _table(lines: Sequence[Line]) -> list[str]:
    heads = ["row", *(head for head, _, _ in COLUMNS.values()), "documents", "evaluations", "s per document"]
    rows = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return rows + ["| " + " | ".join([line.name, *cells(line)]) + " |" for line in lines]


def cells(line: Line) -> list[str]:
    """The numbers of a row: our estimate with its interval, then the paper's value in round brackets."""
    columns = [_cell(line, name) for name in COLUMNS]
    if line.result is None:
        return [*columns, f"0 of {line.asked}{_failed(line)}", "-", "-"]
    evaluations, seconds = line.result.evaluations.mean, line.result.seconds.mean
    return [
        *columns,
        f"{len(line.result.units)}{_failed(line)}",
        "-" if evaluations is None else f"{evaluations:.0f}",
        "-" if seconds is None else f"{seconds:.0f}",
    ]


def _failed(line: Line) -> str:
    return f", {len(line.failed)} failed" if line.failed else ""


def _cell(line: Line, metric: str) -> str:
    _, digits, percent = COLUMNS[metric]
    ours = "-" if line.result is None else _estimate(line.result.estimates[metric], digits, percent)
    if metric not in line.printed:
        return ours
    return f"{ours} (paper {_number(line.printed[metric], digits, percent)})"


def _estimate(e: Estimate, digits: int, percent: bool) -> str:
    if e.value is None:
        return "-"
    text = _number(e.value, digits, percent)
    if e.low is None or e.high is None:
        return text
    return f"{text} [{_number(e.low, digits, percent)}, {_number(e.high, digits, percent)}]"


def _number(value: float, digits: int, percent: bool) -> str:
    return f"{100 * value:.{digits}f}%" if percent else f"{value:.{digits}f}"


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


def write_table(recipe: Recipe, scale: str, planned: Sequence[Experiment], out: Path, facts: Mapping[str, str]) -> Path:
    """Write table.md, table.json, pictures.png and table.html; returns the path of the last."""
    lines = lines_of(planned, seed=0)
    text, sheet = markdown(recipe, scale, lines, facts), pictures(lines)
    uri = ""
    if sheet is not None:
        buffer = io.BytesIO()
        PIL.Image.fromarray(sheet).save(buffer, format="PNG", optimize=True)
        write_atomically(out / "pictures.png", buffer.getvalue())
        uri = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    write_atomically(out / "table.md", text.encode())
    saved = {"recipe": recipe.name, "scale": scale, **facts, "rows": [_json(line) for line in lines]}
    write_atomically(out / "table.json", (json.dumps(saved, indent=1) + "\n").encode())
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("docleak.recipes", "templates"), autoescape=True, trim_blocks=True
    )
    groups = {
        title_of(model, lines): [(line, cells(line)) for line in lines if line.model == model]
        for model in dict.fromkeys(line.model for line in lines)
    }
    heads = [head for head, _, _ in COLUMNS.values()]
    html = environment.get_template("table.html.j2").render(
        recipe=recipe, scale=scale, groups=groups, heads=heads, facts=facts, sheet=uri
    )
    write_atomically(out / "table.html", html.encode())
    return out / "table.html"


def _json(line: Line) -> dict[str, Any]:
    ours = {} if line.result is None else {name: vars(line.result.estimates[name]) for name in COLUMNS}
    return {
        "row": line.name,
        "model": line.model,
        "ours": ours,
        "paper": dict(line.printed),
        "failed": dict(line.failed),
    }
