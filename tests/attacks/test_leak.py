"""Both ways: a leak that is there is found, and where there is none nothing is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from docleak.attacks.gradients import ATTACKS, GradientView
from docleak.documents import private_mask
from docleak.documents.synthetic import make_pages
from docleak.models import STAGES, load_model, trainable
from docleak.studies.gradient.case import Case, build_case
from docleak.studies.gradient.config import Exposure


@dataclass(frozen=True)
class Problem:
    case: Case
    other: Case


@pytest.fixture(scope="module")
def problem() -> Problem:
    """The page with the fewest private pixels of ten, and another one, seen by the tiny LayoutLMv3."""
    model = load_model("layoutlmv3-start")
    pages = sorted(make_pages(10, seed=0, size=model.image_size), key=lambda page: int(private_mask(page).sum()))
    return Problem(*(build_case(model, [page], Exposure(), seed=0) for page in (pages[0], pages[5])))


def run(name: str, view: GradientView, case: Case, budget: int) -> Any:
    return ATTACKS.load(name).run(view, case.knowledge, budget=budget, generator=torch.Generator().manual_seed(0))


Psnr = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], float]


@pytest.mark.slow
def test_a_leak_is_found_where_a_random_guess_finds_none(problem: Problem, psnr: Psnr) -> None:
    case = problem.case
    finding = run("gi-dqa", case.view, case, 70)
    floor = run("random", case.view, case, 70)
    assert psnr(finding.pixels, case.pixels, case.knowledge.private) > 25
    assert finding.explained > 0.99
    assert psnr(floor.pixels, case.pixels, case.knowledge.private) < 10
    assert floor.explained < 0


def test_the_gradient_of_another_page_gives_nothing(problem: Problem, psnr: Psnr) -> None:
    case = problem.case
    foreign = replace(case.view, gradient=problem.other.view.gradient)
    finding = run("gi-dqa", foreign, case, 40)
    assert finding.explained < 0.5
    assert psnr(finding.pixels, case.pixels, case.knowledge.private) < 10


def test_a_small_leak_is_found_to_the_pixel(small: Any, psnr: Psnr) -> None:
    finding = run("gi-dqa", small.view, small, 60)
    assert psnr(finding.pixels, small.pixels, small.knowledge.private) > 30
    assert finding.explained > 0.999


@pytest.mark.parametrize("stage", STAGES)
def test_the_gradient_of_one_stage_can_be_attacked(stage: str, small: Any, make_small: Callable[..., Any]) -> None:
    names = [name for name, _ in trainable(small.model.module) if small.model.stage(name) == stage]
    part = make_small("42", names=names)
    assert set(part.view.names) == set(names) < set(small.view.names)
    for name in names:
        torch.testing.assert_close(part.view.gradient[name], small.view.gradient[name], rtol=1e-4, atol=1e-7)
    finding = run("gi-dqa", part.view, part, 30)
    assert finding.evaluations == 30
    assert finding.explained > -1
