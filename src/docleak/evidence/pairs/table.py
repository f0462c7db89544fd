"""What a run of pair attacks shows: one row per attack, means over targets with intervals, from disk alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from docleak.errors import RunError
from docleak.metrics.estimate import Estimate, ratio_interval
from docleak.runs.run import Run

#: Columns: name -> heading. All but PSNR lie in 0..1.
COLUMNS = {
    "ssim": "SSIM", "psnr": "PSNR, dB", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rouge_l": "ROUGE-L",
    "tokens": "tokens", "label": "label",
}  # fmt: skip


@dataclass(frozen=True)
class PairRow:
    """One attack. ``seconds`` are the totals of stage 1's image, stage 1's text, and stage 2."""

    attack: str
    estimates: Mapping[str, Estimate]
    evaluations: tuple[int, int]
    seconds: tuple[float, float, float]
    examples: tuple[tuple[str, str], ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "attack": self.attack,
            "estimates": {name: e.__dict__ for name, e in self.estimates.items()},
            "evaluations_per_modality": list(self.evaluations),
            "seconds": list(self.seconds),
            "texts": [{"read": read, "true": true} for read, true in self.examples],
        }


def read_pairs(run: Run, *, rng: np.random.Generator, level: float = 0.95, resamples: int = 2000) -> list[PairRow]:
    """Recompute all rows from the run's units, in the order of its configuration. RunError if none is finished.

    Intervals are percentile bootstraps over batches, since the pairs of one share a gradient.
    """
    units = [unit for unit in run.units() if "scores" in unit]
    if not units:
        raise RunError(f"{run.path} has no finished attack on pairs. Run docleak attack mmgia first.")
    rows = []
    for name in run.config["attacks"]:
        own = [unit for unit in units if unit["attack"] == name]
        if own:
            rows.append(_row(name, own, rng, level, resamples))
    return rows


def _row(name: str, units: list[dict[str, Any]], rng: np.random.Generator, level: float, resamples: int) -> PairRow:
    counts = np.array([len(unit["scores"]) for unit in units])
    estimates = {}
    for column in COLUMNS:
        sums = np.array([sum(float(score[column]) for score in unit["scores"]) for unit in units])
        low, high = ratio_interval(sums, counts, rng, level, resamples, column != "psnr")
        estimates[column] = Estimate(float(sums.sum() / counts.sum()), low, high, int(counts.sum()), len(units), 0)
    evaluations = [max(unit["evaluations"][side] for unit in units) for side in (0, 1)]
    seconds = [sum(unit["seconds"][part] for unit in units) for part in (0, 1, 2)]
    texts = tuple((score["read"], score["true"]) for unit in units for score in unit["scores"])
    return PairRow(name, estimates, (evaluations[0], evaluations[1]), (seconds[0], seconds[1], seconds[2]), texts)


def gain(
    units: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]], column: str, rng: np.random.Generator,
    *, level: float = 0.95, resamples: int = 2000,
) -> Estimate:  # fmt: skip
    """By how much ``units`` are better than ``other`` on the same batches; those that one lacks are left out."""
    sums: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    for side in (units, other):
        for unit in side:
            batch = str(unit["unit"]).rpartition("-")[2]
            sums.setdefault(batch, []).append(sum(float(score[column]) for score in unit["scores"]))
            counts[batch] = len(unit["scores"])
    both = sorted(batch for batch, values in sums.items() if len(values) == 2)
    if not both:
        return Estimate(None, None, None, 0, 0, 0)
    differences = np.array([sums[batch][0] - sums[batch][1] for batch in both])
    sizes = np.array([counts[batch] for batch in both])
    low, high = ratio_interval(differences, sizes, rng, level, resamples, False)
    return Estimate(float(differences.sum() / sizes.sum()), low, high, int(sizes.sum()), len(both), 0)


def as_text(rows: list[PairRow], *, shown: int = 4) -> str:
    """The table, and some of the first attack's texts, for a terminal."""
    lines = ["attack".ljust(16) + "".join(heading.rjust(22) for heading in COLUMNS.values())]
    lines += [row.attack.ljust(16) + "".join(_cell(row.estimates[c]).rjust(22) for c in COLUMNS) for row in rows]
    first = rows[0].estimates["ssim"]
    lines += [
        "",
        f"{first.n} pairs in {first.groups} batches; 95 % intervals, bootstrap over batches; at most "
        f"{max(max(r.evaluations) for r in rows)} gradient evaluations per modality and batch.",
    ]
    for row in rows:
        if row.seconds[2]:
            share = row.seconds[2] / max(1e-9, row.seconds[0] + row.seconds[1])
            lines.append(f"{row.attack}: stage 2 took {share:.1%} of stage 1's time.")
    lines += ["", f"Texts of {rows[0].attack} (read | true)"]
    return "\n".join([*lines, *(f"  {read} | {true}" for read, true in rows[0].examples[:shown])])


def _cell(estimate: Estimate) -> str:
    if estimate.value is None:
        return "-"
    interval = "" if estimate.low is None else f" [{estimate.low:.2f}, {estimate.high:.2f}]"
    return f"{estimate.value:.3f}{interval}"
