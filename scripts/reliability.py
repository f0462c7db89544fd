"""What the attacker sees, beside what the attack really read: does any of it predict reading?

    python -m scripts.reliability RUNS... --out docs/results/gi-dqa/reliability.md

RUNS are folders in which runs of attacks that optimise pictures are looked for, at any depth (linear algebra and random
guesses have no loss that falls). A unit is one attack on one page; one that lies in two folders counts once. What the
attacker sees without the truth: how much of the gradient the reconstruction explains, how far its loss fell, and
how sure OCR is of each field of the reconstruction. Fields that the template prints, that the attacker was told, or
that OCR cannot read on the true page either are left out. The picture goes beside the page.
"""

from __future__ import annotations

import argparse
import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from docleak.errors import RunError
from docleak.files import write_atomically
from docleak.metrics import PageScore
from docleak.metrics.estimate import Estimate, ratio_interval
from docleak.report.pictures import png_figure
from docleak.runs.run import Run

#: Ends of the bins of each thing seen.
BINS = {
    "explained": (-math.inf, 0.5, 0.9, 0.99, 0.999, 0.9999, math.inf),
    "fall": (-math.inf, 0.5, 1.0, 2.0, 3.0, 4.0, math.inf),
    "confidence": (0.0, 1e-9, 0.5, 0.8, 0.9, 0.95, 0.99, 1.01),
}
SEEN = {
    "explained": "share of the gradient that the reconstruction explains",
    "fall": "powers of ten by which the attack's loss fell",
    "confidence": "confidence of OCR in what it reads of the field in the reconstruction",
}
RESAMPLES = 2000


@dataclass(frozen=True)
class Field:
    """One private field under one attack: what was seen of it, and whether it was ``read`` exactly. ``group`` is the
    page, whose fields and attacks stand or fall together."""

    group: str
    attack: str
    seen: dict[str, float]
    read: float


def fields_in(folders: Sequence[Path]) -> tuple[list[Field], dict[str, int]]:
    """Every field that counts, and how many units each attack has; RunError where there is none."""
    fields: list[Field] = []
    units: dict[str, int] = {}
    counted: set[str] = set()
    for file in sorted(file for folder in folders for file in folder.rglob("run.json")):
        try:
            run = Run.load(file.parent)
            records = run.units() if run.kind == "gradient" else []
        except RunError:
            continue  # another version's, or not finished
        for record in records:
            told = record["finding"]
            name = f"{record['model']} {record['attack']} {_defence(record)} {told['budget']} {record['score']}"
            if len(told.get("history", ())) < 2 or name in counted:
                continue
            counted.add(name)
            unit_fields = _fields(record)
            fields += unit_fields
            name = f"{record['attack']} on {record['model']}" + _defence(record)
            units[name] = units.get(name, 0) + bool(unit_fields)
    if not fields:
        raise RunError(f"no run of a gradient attack with a field to count lies below {', '.join(map(str, folders))}.")
    return fields, {name: count for name, count in sorted(units.items()) if count}


def _defence(record: dict[str, Any]) -> str:
    defence = record["view"].get("defense", "none")
    return "" if defence == "none" else f", {defence}"


def _fields(record: dict[str, Any]) -> list[Field]:
    told = record["finding"]
    history = [value for _, value in told.get("history", ()) if value > 0]
    fall = math.log10(history[0] / max(min(history), 1e-12)) if history else 0.0
    page = PageScore.from_json(record["score"]), PageScore.from_json(record["floor"])
    fields = []
    truth = PageScore.from_json(record["ceiling"])
    for field, blank, best in zip(page[0].fields, page[1].fields, truth.fields, strict=True):
        given = record["view"].get("answer_known") and field.value == record.get("answer")
        if field.exact is None or blank.exact or not best.exact or given:
            continue
        seen = {"explained": float(told["explained"]), "fall": fall, "confidence": float(field.confidence or 0.0)}
        fields.append(Field(f"{record['page']} {field.value}", record["attack"], seen, float(field.exact)))
    group = " ".join(field.value for field in page[0].fields)
    return [Field(group, one.attack, one.seen, one.read) for one in fields]


def share_read(fields: Sequence[Field]) -> Estimate:
    """The share of the fields that was read exactly; its interval is over pages."""
    groups = sorted({field.group for field in fields})
    sums = np.array([sum(f.read for f in fields if f.group == group) for group in groups])
    counts = np.array([sum(f.group == group for f in fields) for group in groups])
    low, high = ratio_interval(sums, counts, np.random.default_rng(0), 0.95, RESAMPLES, share=True)
    return Estimate(float(sums.sum() / counts.sum()) if fields else None, low, high, len(fields), len(groups))


def discrimination(fields: Sequence[Field], name: str) -> Estimate:
    """How often a field that was read shows more of ``name`` than one that was not (AUC; equal ones count half);
    the interval resamples pages."""
    seen, read = (np.array([f.seen[name] for f in fields]), np.array([f.read > 0 for f in fields]))
    names = sorted({f.group for f in fields})
    places = [np.flatnonzero([f.group == group for f in fields]) for group in names]
    rng, draws = np.random.default_rng(0), list[float]()
    for _ in range(RESAMPLES // 4):
        chosen = np.concatenate([places[i] for i in rng.integers(len(places), size=len(places))])
        if (value := _auc(seen[chosen], read[chosen])) is not None:
            draws.append(value)
    ends = np.quantile(draws, (0.025, 0.975)).tolist() if len(draws) > 100 else (None, None)
    return Estimate(_auc(seen, read), *ends, len(fields), len(names))


def _auc(seen: NDArray[np.float64], read: NDArray[np.bool_]) -> float | None:
    inside, outside = int(read.sum()), int((~read).sum())
    if not inside or not outside:
        return None
    ranks = rankdata(seen)
    return float((ranks[read].sum() - inside * (inside + 1) / 2) / (inside * outside))


def binned(fields: Sequence[Field], name: str) -> list[tuple[str, float, Estimate]]:
    """Of each bin that holds a field: its words, the mean of what is seen in it, and the share that was read."""
    bins = []
    for low, high in itertools.pairwise(BINS[name]):
        inside = [f for f in fields if low <= f.seen[name] < high]
        if inside:
            words = f"below {high:g}" if low in (-math.inf, 0.0) else f"{low:g} to {high:g}"
            words = f"{low:g} or more" if high in (math.inf, BINS["confidence"][-1]) else words
            bins.append((words, float(np.mean([f.seen[name] for f in inside])), share_read(inside)))
    return bins


def page_of(fields: Sequence[Field], units: dict[str, int], command: str, picture: str) -> str:
    """The page as Markdown, but for what it shows."""
    said = [
        "# What predicts reading",
        f"One private field under one attack each: {len(fields):,} of {len({f.group for f in fields})} pages, "
        f"{sum(units.values())} units (an attack on a page). Fields that the blank template prints, that the attacker "
        "was told, or that OCR does not read on the true page either are left out. Brackets are 95 % intervals over "
        "pages, under all attacks at once. AUC: how often a field that was read shows more of it than one that was "
        "not; 0.5 is chance.",
    ]
    aucs = {name: discrimination(fields, name) for name in SEEN}
    lines = [f"| {SEEN[name]} | {auc.text(3)} | {auc.n:,} |" for name, auc in aucs.items()]
    said.append("\n".join(["| what the attacker sees | AUC | fields |", "|---|---|---|", *lines]))
    for name, words in SEEN.items():
        rows = [f"| {label} | {of.n:,} | {of.groups} | {of.text(1, percent=True)} |"
                for label, _, of in binned(fields, name)]  # fmt: skip
        head = f"| {name} | fields | pages | read exactly |\n|---|---|---|---|\n"
        said.append(f"## {words[0].upper()}{words[1:]}\n\n{head}" + "\n".join(rows))
    counts = ", ".join(f"{name} ({count})" for name, count in units.items())
    said += [f"Units: {counts}  \nCommand: {command}  ", f"![Reliability]({picture})"]
    return "\n\n".join(said) + "\n"


def draw(fields: Sequence[Field]) -> bytes:
    """A panel for each thing seen: the share that was read, by bin."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.2), dpi=110, layout="constrained")
    for axis, name in zip(figure.subplots(1, len(SEEN), sharey=True), SEEN, strict=True):
        bins = binned(fields, name)
        for place, (_, _, share) in enumerate(bins):
            if share.low is not None and share.high is not None:
                axis.plot([place, place], [100 * share.low, 100 * share.high], color="#1f5fa8", linewidth=1.5)
            axis.plot(place, 100 * (share.value or 0), "o", color="#1f5fa8", markersize=5)
        if name == "confidence":  # the one that claims to be a probability
            axis.plot(range(len(bins)), [100 * mean for _, mean, _ in bins], "--", color="#c4570a", linewidth=1)
            axis.set_xlabel("dashed: what it would be if sureness were right", fontsize=7)
        axis.set_xticks(range(len(bins)), [f"{words}\nn = {share.n}" for words, _, share in bins], fontsize=6)
        axis.set_title(textwrap.fill(SEEN[name], 42), fontsize=8)
        axis.grid(alpha=0.25)
    figure.supylabel("fields read exactly, %", fontsize=8)
    return png_figure(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the runs, write page and picture; what the page says it shows is kept."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", help="folders with runs of gradient attacks")
    parser.add_argument("--out", type=Path, required=True, help="the page")
    given = parser.parse_args(arguments)
    if missing := [str(folder) for folder in given.runs if not folder.is_dir()]:
        parser.error(f"there is no folder {', '.join(missing)}")
    try:
        fields, units = fields_in(given.runs)
    except RunError as fault:
        parser.error(str(fault))
    picture = given.out.with_suffix(".png")
    text = page_of(fields, units, f"python -m scripts.reliability RUNS --out {given.out}", picture.name)
    before = given.out.read_text(encoding="utf-8") if given.out.is_file() else ""
    heading = "## What it shows"
    kept = before[before.index(heading) :] if heading in before else f"{heading}\n\nTo be written.\n"
    write_atomically(picture, draw(fields))
    write_atomically(given.out, f"{text}\n{kept}".encode())


if __name__ == "__main__":
    main()
