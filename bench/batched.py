"""Whether several pages in one evaluation of ``gi-dqa`` cost less than one after the other, in seconds of CPU.

The gradient is that of a batch, whose pages share its tensors. Pages attacked each by its own gradient would need as
many of them, and the distance to each, so that what a batch saves is the most that batching them could.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from docleak.attacks.gradients import gi_dqa
from docleak.attacks.gradients.solvers import Objective
from docleak.documents.synthetic import make_pages
from docleak.models import load_model
from docleak.studies.gradient.case import build_case
from docleak.studies.gradient.config import Exposure

MODELS = {"Donut (tiny)": "donut-start", "LayoutLMv3 (tiny)": "layoutlmv3-start", "VT5 (tiny)": "vt5-start"}
PAGES, ROUNDS, WARMUP, TIMED = (1, 2, 4, 8), 3, 2, 5


@dataclass
class Watch:
    """A solver that stays where it is and keeps the seconds of CPU of each evaluation."""

    seconds: list[float] = field(default_factory=list)

    def minimise(self, objective: Objective, start: Tensor, *, budget: int) -> Tensor:
        """Evaluate ``budget`` times."""
        for _ in range(budget):
            began = time.process_time()
            objective(start, 0.0)
            self.seconds.append(time.process_time() - began)
        return start


def measure() -> dict[str, dict[str, float]]:
    """Model -> number of pages in one evaluation -> seconds of CPU of a page: the least of the rounds' medians."""
    return {
        label: {str(count): min(_of_a_page(name, count) for _ in range(ROUNDS)) for count in PAGES}
        for label, name in MODELS.items()
    }


def _of_a_page(name: str, count: int) -> float:
    model, watch, attack = load_model(name), Watch(), gi_dqa.PLAIN
    case = build_case(model, [model.fit(page) for page in make_pages(count, seed=0)], Exposure(), seed=0)
    budget = 1 + attack.whitening.draws + WARMUP + TIMED
    replace(attack, solver=watch).run(case.view, case.knowledge, budget=budget, generator=torch.manual_seed(0))
    return statistics.median(watch.seconds[WARMUP:]) / count


def as_markdown(rows: dict[str, dict[str, float]]) -> str:
    """The numbers as a section for people."""
    lines = [
        "", "## Several pages in one evaluation of `gi-dqa`", "",
        "| model | pages at once | evaluations of a page in an hour of CPU | beside one page at a time |",
        "|---|---|---|---|",
    ]  # fmt: skip
    for label, row in rows.items():
        for count, seconds in row.items():
            lines.append(f"| {label} | {count} | {3600 / seconds:,.0f} | {row['1'] / seconds:.2f} |")
    return "\n".join([
        *lines, "",
        "Of a batch's one gradient, which is the most that pages each attacked by its own could gain: those need a",
        f"gradient each. Least of {ROUNDS} medians of {TIMED} evaluations, one thread (`bench/batched.py`).", "",
    ])  # fmt: skip
