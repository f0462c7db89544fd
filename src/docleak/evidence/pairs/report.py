"""``report.html`` of a run of pair attacks: the verdict, then every pair's picture and text beside what was read."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow

from docleak.documents.page import Image
from docleak.documents.storage import reported, write_atomically
from docleak.evidence.pairs.table import COLUMNS, PairRow, gain
from docleak.evidence.run import Run
from docleak.evidence.templating import render
from docleak.metrics.score import Estimate

PAGE = "report.html"
#: A text of which this share of tokens was read in place, and a picture of this SSIM, count as recovered, or in part.
READ, PARTLY = 0.9, 0.5
SEEN, BLURRED = 0.5, 0.25
#: Pairs that are shown, and pixels that a shown picture is at least wide.
SHOWN, WIDE = 12, 320
STAGE_1 = "mmgia-stage1"
LIMITS = (
    "An attack that fails is not all attacks: larger budgets, other priors and several rounds of updates tell more.",
    "Lengths of the texts are taken as known, as the published attacks do.",
    "SSIM (1: the same picture) compares structure, not meaning: look at the pictures. ROUGE-L (1: the same text) "
    "counts words in order.",
    "Small networks drawn at random leak more than trained ones of the same kind (--trained).",
)


def write_report(run: Run, rows: Sequence[PairRow]) -> Path:
    """Write the page in the run's folder; returns its path."""
    units = [unit for unit in run.units() if "scores" in unit]
    html = render(
        "pairs.html.j2", rows=[_cells(row) for row in rows], heads=list(COLUMNS.values()), main=rows[0].attack,
        verdict=verdict(rows[0], units), pairs=_pairs(run, rows, units), limits=LIMITS, knows=run.info["knows"],
        model=run.info["model"], privacy=run.info.get("privacy", {}), added=_added(rows, units), config=run.config,
        shown=SHOWN, n=rows[0].estimates["ssim"].n_fields,
    )  # fmt: skip
    with reported(run.path / PAGE):
        write_atomically(run.path / PAGE, html.encode("utf-8", "backslashreplace"))
    return run.path / PAGE


def verdict(row: PairRow, units: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How bad it is, in counts: ``tone`` "severe", "partial" or "none", a label, a sentence, and lines."""
    scores = [score for unit in units if unit["attack"] == row.attack for score in unit["scores"]]
    n = len(scores)
    texts, parts = (sum(score["tokens"] >= least for score in scores) for least in (READ, PARTLY))
    pictures, blurs = (sum(score["ssim"] >= least for score in scores) for least in (SEEN, BLURRED))
    worst = max(texts, pictures)
    tone = "severe" if 2 * worst >= n else "partial" if max(parts, blurs) else "none"
    both = [name for name, found in (("texts", texts), ("pictures", pictures)) if 2 * found >= n]
    severe = f"Most {' and '.join(both)} can be recognised"
    label = {"severe": severe, "partial": "Parts come out", "none": "Nothing recognisable"}
    return {
        "tone": tone, "label": label[tone],
        "sentence": f"{texts} of {n} texts came back almost word for word, and {pictures} of {n} pictures in outline.",
        "lines": [
            f"Texts: {texts} with {READ:.0%} of their tokens in place or more, {parts - texts} others with half.",
            f"Pictures: {pictures} with an SSIM of at least {SEEN}, {blurs - pictures} more above {BLURRED}.",
            f"Classes: {sum(bool(score['label']) for score in scores)} of {n} were read out of the gradient.",
        ],
    }  # fmt: skip


def _added(rows: Sequence[PairRow], units: Sequence[Mapping[str, Any]]) -> str:
    """What the link between picture and text added to stage 1, where the run says."""
    if rows[0].attack == STAGE_1 or STAGE_1 not in [row.attack for row in rows]:
        return ""
    own, other = ([u for u in units if u["attack"] == name] for name in (rows[0].attack, STAGE_1))
    if not any(u["rounds"] for u in own):  # an attack without a second stage has another first one
        return ""
    found = {name: gain(own, other, name, np.random.default_rng(0)) for name in ("ssim", "rouge_l")}
    words = [f"{COLUMNS[name]} by {_change(e)}" for name, e in found.items()]
    clear = [name for name, e in found.items() if e.low is not None and e.low > 0]
    tail = "" if clear else " Neither is a gain beyond chance."
    return f"Against stage 1 alone, on the same pairs, the link between the two changes {' and '.join(words)}.{tail}"


def _change(e: Estimate) -> str:
    if e.value is None:
        return "nothing that could be compared"
    return f"{e.value:+.3f}" + ("" if e.low is None or e.high is None else f" (95 % {e.low:+.3f} to {e.high:+.3f})")


def _cells(row: PairRow) -> dict[str, Any]:
    cells = []
    for name, head in COLUMNS.items():
        e = row.estimates[name]
        digits = 1 if name == "psnr" else 2
        value = "-" if e.value is None else f"{e.value:.{digits}f}"
        interval = "" if e.low is None or e.high is None else f"{e.low:.{digits}f} to {e.high:.{digits}f}"
        cells.append({"head": head, "value": value, "interval": interval})
    return {"attack": row.attack, "cells": cells}


def _pairs(run: Run, rows: Sequence[PairRow], units: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first pairs: the original, and what each attack made of both modalities."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        for unit in (u for u in units if u["attack"] == row.attack):
            batch = str(unit["unit"]).rpartition("-")[2]
            for target, score in enumerate(unit["scores"]):
                key = (batch, target)
                if key not in found and len(found) == SHOWN:
                    continue
                pair = found.setdefault(key, {
                    "name": score["name"], "true": score["true"],
                    "picture": _uri(run.read_image(unit["unit"], f"truth-{target}.png")), "made": [],
                })  # fmt: skip
                mark = "exact" if score["tokens"] >= READ else "near" if score["tokens"] >= PARTLY else "no"
                pair["made"].append({
                    "attack": row.attack, "read": score["read"], "tokens": score["tokens"], "mark": mark,
                    "ssim": score["ssim"], "rouge_l": score["rouge_l"],
                    "picture": _uri(run.read_image(unit["unit"], f"reconstruction-{target}.png")),
                })  # fmt: skip
    return list(found.values())


def _uri(image: Image) -> str:
    """A PNG to be shown as it is, enlarged by whole pixels."""
    times = max(1, WIDE // image.shape[1])
    picture = Pillow.fromarray(image)
    picture = picture.resize((picture.width * times, picture.height * times), Pillow.Resampling.NEAREST)
    buffer = BytesIO()
    picture.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
