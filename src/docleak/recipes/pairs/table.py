"""The table of a recipe of the kind ``pairs``: scores of pictures and texts beside the paper's, and the pictures."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from docleak.errors import RunError
from docleak.evidence.pairs.play import PairConfig
from docleak.evidence.pairs.table import COLUMNS, PairRow, gain, read_pairs
from docleak.metrics import Estimate
from docleak.recipes.kinds import Kind, field_types
from docleak.recipes.page import Group, Picture, estimate_text, failed_text, number_text, with_printed, write_page
from docleak.recipes.pairs.experiment import (
    OPTIONS,
    SETTINGS,
    PairExperiment,
    experiments,
    facts_of,
    plan,
)
from docleak.recipes.recipe import Recipe
from docleak.recipes.runner import failures
from docleak.runs.run import Run

#: Columns beyond those of a run: the accuracy of picture and text classifiers that were trained so.
ACCURACY = {"accuracy_image": "ACC, picture", "accuracy_text": "ACC, text"}
HEADS = {**COLUMNS, **ACCURACY}
#: Data sets of the paper, whose numbers stand beside ours whatever ours is of.
DATA = ("cifar100", "openi", "flickr30k")
FOOTNOTE = (
    "Ours with 95 % intervals in square brackets (bootstrap over batches, whose pairs share a gradient); the paper's "
    "value in round brackets, or in columns of its own where it prints several data sets. SSIM, ROUGE and tokens (the "
    "share read exactly in place) lie in 0 to 1. All rows have the same budget of gradient evaluations per modality."
)
#: Pairs that are pictured, and rows at most.
SHOWN, MOST_ROWS = 4, 12


def write_table(
    recipe: Recipe, scale: str, planned: Sequence[PairExperiment], out: Path, facts: Mapping[str, str]
) -> Path:
    """Write table.md, table.json, pictures.png and table.html; returns the path of the last."""
    show = tuple(dict.fromkeys(name for e in planned for name in e.show))
    told = tuple(
        f"{name}_{data}" for name in show for data in DATA
        if any(f"{name}_{data}" in e.row.printed.get(e.model, {}) for e in planned)
    )  # fmt: skip
    rows = {id(e): _row(e) for e in planned}
    groups = []
    for model in dict.fromkeys(e.model for e in planned):
        own = [e for e in planned if e.model == model]
        cells = [(e.row.name, [*(_cell(e, rows[id(e)], n) for n in show), *(_paper(e, n) for n in told)]) for e in own]
        failed = {e.row.name: failures(e.folder) for e in own if failures(e.folder)}
        groups.append(Group(f"{own[0].config.image} + {own[0].config.text}", cells, failed))
    heads = [*(HEADS[name] for name in show), *(_told_head(name) for name in told)]
    picture = draw(planned)
    facts = {**facts, **unfinished(planned), **gains(planned)}
    return write_page(
        recipe, scale, out, heads=heads, groups=groups, facts=facts, footnote=FOOTNOTE,
        picture=Picture(picture, "What the server saw", "Originals, and what each attack made of them"),
        saved=[_json(e, rows[id(e)]) for e in planned],
    )  # fmt: skip


def unfinished(planned: Sequence[PairExperiment]) -> dict[str, str]:
    """How many batches rows have, where a table is written of a part of its units."""
    parts = []
    for e in planned:
        batches = e.config.count // e.config.batch_size
        done = sum("scores" in unit for unit in Run(e.folder).units())
        if done < batches:
            parts.append(f"{e.row.name} ({e.model}) {done} of {batches}")
    return {"Batches attacked in unfinished rows": ", ".join(parts)} if parts else {}


def gains(planned: Sequence[PairExperiment]) -> dict[str, str]:
    """What each row has more than stage 1 alone on the same batches, pair by pair; none where no row is stage 1."""
    found: dict[str, str] = {}
    for e in planned:
        base = next((b for b in planned if _is_stage_one(b) and _alike(b, e)), None)
        if base is None or _is_stage_one(e):
            continue
        units, other = ([u for u in Run(x.folder).units() if "scores" in u] for x in (e, base))
        told = [f"{HEADS[name]} {_signed(gain(units, other, name, np.random.default_rng(e.config.seed)))}"
                for name in ("ssim", "rouge_l")]  # fmt: skip
        found[f"{e.row.name} ({e.model}), more than {base.row.name!r}"] = ", ".join(told)
    return found


def _is_stage_one(e: PairExperiment) -> bool:
    return e.config.attack(e.config.attacks[0]).refine is None


def _alike(base: PairExperiment, e: PairExperiment) -> bool:
    """Whether ``base`` is stage 1 of what ``e`` runs, on the same pictures."""
    own, other = (x.config.attack(x.config.attacks[0]) for x in (base, e))
    same = all(
        getattr(base.config, key) == getattr(e.config, key) for key in ("batch_size", "noise", "epsilon", "trained")
    )
    return base.model == e.model and same and own.image.name == other.image.name and own.text == other.text


def _signed(e: Estimate) -> str:
    if e.value is None:
        return "-"
    return f"{e.value:+.3f}" + ("" if e.low is None or e.high is None else f" [{e.low:+.3f}, {e.high:+.3f}]")


def _row(e: PairExperiment) -> PairRow | None:
    try:
        return read_pairs(Run.load(e.folder), rng=np.random.default_rng(e.config.seed))[0]
    except RunError:
        return None


def _estimate(e: PairExperiment, row: PairRow | None, name: str) -> Estimate | None:
    if name in ACCURACY:
        found = e.privacy().get("accuracy")
        return None if found is None else Estimate(found[list(ACCURACY).index(name)], None, None, 0, 0)
    return None if row is None else row.estimates[name]


def _cell(e: PairExperiment, row: PairRow | None, name: str) -> str:
    found = _estimate(e, row, name)
    ours = "-" + failed_text(failures(e.folder)) if found is None else estimate_text(found, 3, False)
    return with_printed(ours, e.row.printed.get(e.model, {}).get(name), 3, False)


def _paper(e: PairExperiment, name: str) -> str:
    value = e.row.printed.get(e.model, {}).get(name)
    return "" if value is None else number_text(value, 3, False)


def _told_head(name: str) -> str:
    metric, _, data = name.rpartition("_")
    return f"paper, {data}: {HEADS[metric]}"


def _json(e: PairExperiment, row: PairRow | None) -> dict[str, Any]:
    return {
        "row": e.row.name, "model": e.model, "attack": e.config.attacks[0],
        "ours": row.as_json() if row else {}, "privacy": e.privacy(),
        "paper": dict(e.row.printed.get(e.model, {})), "failed": failures(e.folder),
    }  # fmt: skip


def draw(planned: Sequence[PairExperiment]) -> bytes:
    """A PNG: the first pairs' pictures in columns, originals on top, a row per attack, its texts below each."""
    from matplotlib.figure import Figure

    shown = [e for e in planned if e.model == planned[0].model][:MOST_ROWS]
    pairs = [_firsts(e) for e in shown]
    first = next((found for found in pairs if found), [])
    figure = Figure(figsize=(2.7 * max(1, len(first)) + 1.5, 0.98 * (len(shown) + 1)), dpi=110, layout="constrained")
    axes = figure.subplots(len(shown) + 1, max(1, len(first)), squeeze=False)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
        for side in axis.spines.values():
            side.set_visible(False)
    for line, (name, found) in enumerate([("original", first), *zip([e.row.name for e in shown], pairs, strict=True)]):
        axes[line, 0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
        for column, (truth, made, true, read) in enumerate(found[: len(first)]):
            axes[line, column].imshow(made if line else truth, interpolation="nearest")
            axes[line, column].set_xlabel(_short(read if line else true), fontsize=6)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _firsts(e: PairExperiment) -> list[tuple[Any, Any, str, str]]:
    """(original, reconstruction, true text, text read) of the first pairs of a row."""
    run, found = Run(e.folder), list[tuple[Any, Any, str, str]]()
    for unit in run.units():
        if "scores" not in unit:
            continue
        for target, score in enumerate(unit["scores"]):
            truth, made = (
                run.read_image(unit["unit"], f"{which}-{target}.png") for which in ("truth", "reconstruction")
            )
            found.append((truth, made, score["true"], score["read"]))
            if len(found) == SHOWN:
                return found
    return found


def _short(text: str, most: int = 46) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


PAIRS = Kind(
    about="attacks on clients of pictures with texts",
    settings=frozenset(SETTINGS),
    types={**field_types(PairConfig), "attack": "str", "show": "tuple[str, ...]"},
    metrics=(*HEADS, *(f"{name}_{data}" for name in HEADS for data in DATA)),
    options=OPTIONS,
    experiments=experiments,
    plan=plan,
    facts=facts_of,
    write_table=write_table,
)
