"""Rows of a table of pair attacks: what is said under it, and the pictures beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from docleak.attacks.pairs import PairAttack
from docleak.models.pair.aligner import aligner_told
from docleak.models.pair.generator import generator_told
from docleak.report.pictures import new_figure, png_figure
from docleak.runs.run import Run
from docleak.spec import split_name
from docleak.studies.pairs.config import GIFD, PairConfig
from docleak.studies.pairs.reading import COLUMNS, attacked, gain, privacy_in
from docleak.studies.study import TableRow

#: Pairs that are pictured, and rows at most.
SHOWN, MOST_ROWS = 4, 12


def facts_of(rows: Sequence[TableRow]) -> dict[str, str]:
    """What is the same in all rows, each privacy guarantee, unfinished rows, and what alignment adds to stage 1."""
    configs = [row.study.config for row in rows]
    first, budgets = configs[0], " or ".join(dict.fromkeys(str(c.budget) for c in configs))
    facts = {
        "Models": ", ".join(dict.fromkeys(f"{c.image}+{c.text}" for c in configs)),
        "Pairs": "; ".join(dict.fromkeys(_pairs(c) for c in configs)),
        "Budget": f"{budgets} gradient evaluations of each modality per batch",
        "Aligner": ", ".join(map(aligner_told, dict.fromkeys(c.aligner for c in configs))),
        "Seed": str(first.seed),
    }
    if oracles := [row.name for row in rows if row.study.config.oracle_error is not None]:
        told = "the evaluator tells where the true pair lies in the aligner's space: no adversary has that"
        facts["Oracle"] = f"{', '.join(oracles)}: {told}"
    if generators := dict.fromkeys(c.generator for c in configs if GIFD.met(c)):
        facts["GIFD's generator"] = "; ".join(map(generator_told, generators))
    facts |= {row.name: str(claim) for row in rows if (claim := privacy_in(row.run).get("claim"))}
    return {**facts, **unfinished(rows), **gains(rows)}


def _pairs(config: PairConfig) -> str:
    width, height = config.image_size
    return f"{config.count} of {split_name(config.pairs)[0]}, pictures of {width} x {height} pixels"


def unfinished(rows: Sequence[TableRow]) -> dict[str, str]:
    """How many batches rows have, where a table is written of a part of its units."""
    parts = []
    for row in rows:
        batches, done = row.study.config.count // row.study.config.batch_size, len(attacked(row.run))
        if done < batches:
            parts.append(f"{row.name} ({row.target}) {done} of {batches}")
    return {"Batches attacked in unfinished rows": ", ".join(parts)} if parts else {}


def gains(rows: Sequence[TableRow]) -> dict[str, str]:
    """What each row has more than stage 1 alone on the same batches, pair by pair; none where no row is stage 1."""
    differences: dict[str, str] = {}
    for row in rows:
        base = next((b for b in rows if _is_stage_one(b) and _alike(b, row)), None)
        if base is None or _is_stage_one(row):
            continue
        drawn = np.random.default_rng
        told = [
            f"{COLUMNS[name].head} "
            + gain(attacked(row.run), attacked(base.run), name, drawn(row.study.config.seed)).text(signed=True)
            for name in ("ssim", "rouge_l")
        ]
        differences[f"{row.name} ({row.target}), more than {base.name!r}"] = ", ".join(told)
    return differences


def _attack(row: TableRow) -> Any:
    return row.study.config.attack(row.study.config.attacks[0])


def _is_stage_one(row: TableRow) -> bool:
    return getattr(_attack(row), "refine", None) is None


def _alike(base: TableRow, row: TableRow) -> bool:
    """Whether ``base`` is stage 1 of what ``row`` runs, on the same pictures."""
    ours, theirs = _attack(row), _attack(base)
    if not (isinstance(ours, PairAttack) and isinstance(theirs, PairAttack)):
        return False
    same = all(
        getattr(base.study.config, key) == getattr(row.study.config, key)
        for key in ("pairs", "budget", "batch_size", "noise", "epsilon", "trained")
    )
    return base.model == row.model and same and ours.image.name == theirs.image.name and ours.text == theirs.text


def draw(rows: Sequence[TableRow]) -> bytes:
    """A PNG: the first pairs' pictures in columns, originals on top, a row per attack, its texts below each; of the
    rows on the first row's model and data set."""
    first_of = (rows[0].target, rows[0].study.config.pairs)
    shown = [row for row in rows if (row.target, row.study.config.pairs) == first_of][:MOST_ROWS]
    pairs = [_firsts(row.run) for row in shown]
    first = next((cells for cells in pairs if cells), [])
    figure = new_figure(2.7 * max(1, len(first)) + 1.5, 0.98 * (len(shown) + 1))
    axes = figure.subplots(len(shown) + 1, max(1, len(first)), squeeze=False)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
        for side in axis.spines.values():
            side.set_visible(False)
    for line, (name, cells) in enumerate([("original", first), *zip([row.name for row in shown], pairs, strict=True)]):
        axes[line, 0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
        for column, (truth, made, true, read) in enumerate(cells[: len(first)]):
            axes[line, column].imshow(made if line else truth, interpolation="nearest")
            axes[line, column].set_xlabel(_short(read if line else true), fontsize=6)
    return png_figure(figure)


def _firsts(run: Run) -> list[tuple[Any, Any, str, str]]:
    """(original, reconstruction, true text, text read) of the first pairs of a row."""
    pairs: list[tuple[Any, Any, str, str]] = []
    for unit in attacked(run):
        for target, score in enumerate(unit["scores"]):
            truth, made = (
                run.read_image(unit["unit"], f"{which}-{target}.png") for which in ("truth", "reconstruction")
            )
            pairs.append((truth, made, score["true"], score["read"]))
            if len(pairs) == SHOWN:
                return pairs
    return pairs


def _short(text: str, most: int = 46) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
