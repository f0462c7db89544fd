"""The table of a recipe of the kind ``training``: what models answer after each row's training, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from docleak.models.loading import title_of
from docleak.recipes.kinds import Kind, field_types
from docleak.recipes.page import Group, Picture, estimate_text, failed_text, number_text, with_printed, write_page
from docleak.recipes.recipe import Recipe
from docleak.recipes.runner import failures
from docleak.recipes.trainings.config import SETTINGS, TrainingConfig
from docleak.recipes.trainings.curves import Drawn, draw
from docleak.recipes.trainings.experiment import OPTIONS, TrainingExperiment, experiments, facts_of, plan
from docleak.recipes.trainings.scores import RowScores, row_scores
from docleak.recipes.trainings.unit import Point, Result, read_points, read_result

SCORE = "score"
FOOTNOTE = (
    "Ours with 95 % intervals over test documents in square brackets; the paper's value in round brackets. The average "
    "is that of the data sets' means (ANLS, or accuracy where all answers are verdicts). Of several trainings of a row "
    "each document counts with its mean, and the lowest and highest average is given. Loss is that of the right "
    "answers, averaged likewise. MiB and seconds are those of one training, both phases, all clients one after the "
    "other, without evaluation."
)


@dataclass(frozen=True)
class Line:
    """One row on one model; ``scores`` is None while no training is finished."""

    name: str
    model: str
    title: str
    scores: RowScores | None
    results: Sequence[Result]
    points: Sequence[Point]
    printed: float | None
    failed: Mapping[str, str]
    asked: int


def line_of(e: TrainingExperiment, *, seed: int) -> Line:
    """A row from what is on disk; each draws the same bootstrap."""
    jobs = e.jobs("cpu")
    results = [result for job in jobs if (result := read_result(job.path))]
    scores = row_scores(results, rng=np.random.default_rng(seed)) if results else None
    points = next((found for job in jobs if (found := read_points(job.path))), [])
    printed = e.row.printed.get(e.model, {}).get(SCORE)
    title = title_of(e.config.model)
    return Line(e.row.name, e.model, title, scores, results, points, printed, failures(e.folder), len(jobs))


def write_table(
    recipe: Recipe, scale: str, planned: Sequence[TrainingExperiment], out: Path, facts: Mapping[str, str]
) -> Path:
    """Write table.md, table.json, pictures.png and table.html; returns the path of the last."""
    lines = [line_of(e, seed=0) for e in planned]
    private = [line for e, line in zip(planned, lines, strict=True) if e.config.epsilon and line.results]
    facts = {**facts, **{f"Privacy of {line.name}": line.results[0].claim for line in private}}
    sets = {name: metric for line in lines if line.scores for name, metric in line.scores.metrics.items()}
    heads = ("average", *(f"{name} ({metric})" for name, metric in sets.items()), "loss", "trainings", "MiB", "s")
    groups = []
    for model in dict.fromkeys(line.model for line in lines):
        own = [line for line in lines if line.model == model]
        failed = {line.name: line.failed for line in own if line.failed}
        groups.append(Group(own[0].title, [(line.name, cells(line, list(sets))) for line in own], failed))
    drawn = [
        Drawn(line.name, line.scores.average if line.scores else None, line.printed, line.points) for line in lines
    ]
    picture = Picture(
        draw(drawn), "The same as a picture", "Scores of every row beside the paper's, and curves over rounds"
    )
    return write_page(
        recipe, scale, out, heads=heads, groups=groups, facts=facts, footnote=FOOTNOTE, picture=picture,
        saved=[_json(line) for line in lines],
    )  # fmt: skip


def cells(line: Line, sets: Sequence[str]) -> list[str]:
    """The numbers of a row: the average beside the paper's, each data set's, and what a training cost."""
    if line.scores is None:
        return [
            with_printed("-", line.printed, 1, True),
            *["-"] * (len(sets) + 1),
            f"0 of {line.asked}{failed_text(line.failed)}",
            "-",
            "-",
        ]
    ours = estimate_text(line.scores.average, 1, True)
    if len(line.scores.by_training) > 1:
        low, high = min(line.scores.by_training), max(line.scores.by_training)
        ours += f", trainings {number_text(low, 1, True)} to {number_text(high, 1, True)}"
    return [
        with_printed(ours, line.printed, 1, True),
        *(estimate_text(line.scores.sets[name], 1, True) if name in line.scores.sets else "-" for name in sets),
        estimate_text(line.scores.loss, 2, False),
        f"{len(line.results)}{failed_text(line.failed)}",
        f"{np.mean([result.bytes for result in line.results]) / 2**20:,.0f}",
        f"{np.mean([sum(result.seconds.values()) for result in line.results]):.0f}",
    ]


def _json(line: Line) -> dict[str, Any]:
    ours: dict[str, Any] = {}
    if line.scores is not None:
        ours = {SCORE: vars(line.scores.average), "loss": vars(line.scores.loss),
                "by_training": list(line.scores.by_training),
                "sets": {name: vars(e) for name, e in line.scores.sets.items()},
                "metrics": dict(line.scores.metrics)}  # fmt: skip
    return {
        "row": line.name,
        "model": line.model,
        "ours": ours,
        "bytes": [result.bytes for result in line.results],
        "seconds": [dict(result.seconds) for result in line.results],
        "claims": [result.claim for result in line.results],
        "points": [vars(point) for point in line.points],
        "paper": {} if line.printed is None else {SCORE: line.printed},
        "failed": dict(line.failed),
    }


TRAININGS = Kind(
    about="trainings over silos",
    settings=SETTINGS,
    types=field_types(TrainingConfig),
    metrics=(SCORE,),
    options=OPTIONS,
    experiments=experiments,
    plan=plan,
    facts=facts_of,
    write_table=write_table,
)
