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
from docleak.evidence.pairs.table import COLUMNS, PairRow, gain
from docleak.evidence.severity import Severity
from docleak.evidence.templating import render
from docleak.files import reported, write_atomically
from docleak.metrics.estimate import Estimate
from docleak.runs.run import Run

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
        "pairs.html.j2", rows=[_cells(row) for row in rows], heads=list(COLUMNS.values()),
        attacks=[row.attack for row in rows],
        verdict=verdict(rows, units), pairs=_pairs(run, rows, units), limits=LIMITS, knows=run.info["knows"],
        model=run.info["model"], privacy=run.info.get("privacy", {}), added=_added(rows, units), config=run.config,
        shown=SHOWN, n=rows[0].estimates["ssim"].n,
    )  # fmt: skip
    with reported(run.path / PAGE):
        write_atomically(run.path / PAGE, html.encode("utf-8", "backslashreplace"))
    return run.path / PAGE


def verdict(rows: Sequence[PairRow], units: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How bad it is, in counts: ``severity``, a label, a sentence, and lines. Of each pair the best score of any of the
    attacks counts: who has the gradient may run them all."""
    attacks = [row.attack for row in rows]
    by_pair: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for unit in (unit for unit in units if unit["attack"] in attacks):
        batch = str(unit["unit"]).rpartition("-")[2]
        for target, score in enumerate(unit["scores"]):
            by_pair.setdefault((batch, target), {})[unit["attack"]] = score
    n = len(by_pair)
    best = {
        name: [max(float(score[name]) for score in scores.values()) for scores in by_pair.values()]
        for name in ("tokens", "ssim", "label")
    }
    texts, parts = (sum(value >= least for value in best["tokens"]) for least in (READ, PARTLY))
    pictures, blurs = (sum(value >= least for value in best["ssim"]) for least in (SEEN, BLURRED))
    most = max(texts, pictures)
    severity = Severity.SEVERE if most and 2 * most >= n else Severity.PARTIAL if max(parts, blurs) else Severity.NONE
    severity = severity if n else Severity.UNMEASURED
    both = [name for name, found in (("texts", texts), ("pictures", pictures)) if 2 * found >= n]
    severe = f"Most {' and '.join(both)} can be recognised"
    labels = {Severity.SEVERE: severe, Severity.PARTIAL: "Parts come out", Severity.NONE: "Nothing recognisable"}
    of = f"the best of {' and '.join(attacks)} for each pair: " if len(attacks) > 1 else ""
    return {
        "severity": severity, "label": labels.get(severity, severity.label),
        "sentence": f"{texts} of {n} texts came back almost word for word, and {pictures} of {n} pictures in outline.",
        "lines": [
            f"Texts: {of}{texts} with {READ:.0%} of their tokens in place or more, {parts - texts} others with half.",
            f"Pictures: {of}{pictures} with an SSIM of at least {SEEN}, {blurs - pictures} more above {BLURRED}.",
            f"Classes: {sum(bool(value) for value in best['label'])} of {n} were read out of the gradient.",
            *([f"Counted by attack: {_by_attack(attacks, list(by_pair.values()))}."] if len(attacks) > 1 else []),
        ],
    }  # fmt: skip


def _by_attack(attacks: Sequence[str], pairs: Sequence[Mapping[str, Mapping[str, Any]]]) -> str:
    """Texts read and pictures seen by each attack, in the words of the verdict."""
    said = []
    for name in attacks:
        scores = [scores[name] for scores in pairs if name in scores]
        texts, pictures = (sum(s[key] >= least for s in scores) for key, least in (("tokens", READ), ("ssim", SEEN)))
        said.append(f"{name} {texts} texts and {pictures} pictures")
    return ", ".join(said)


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
