"""The attack that solves for the pixels, and how it goes on by optimisation where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients import ATTACKS, GradientAttack
from docleak.attacks.gradients.canvas import Canvas
from docleak.attacks.gradients.closed_form import ATTACK
from docleak.attacks.gradients.engine import Finding
from docleak.attacks.gradients.matching import relative
from docleak.attacks.gradients.solvers import Adam
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models import load_model
from docleak.studies.gradient.case import Case, build_case
from docleak.studies.gradient.config import Exposure

Psnr = Callable[[Tensor, Tensor, Tensor], float]


@pytest.fixture(scope="module")
def case() -> Case:
    model = load_model("layoutlmv3-start")
    return build_case(model, make_pages(1, seed=0, size=model.image_size), Exposure(), seed=0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noisy(case: Case, sigma: float) -> Case:
    drawn = generator(1)
    gradient = {n: v + sigma * torch.randn(v.shape, generator=drawn) for n, v in case.view.gradient.items()}
    return replace(case, view=replace(case.view, gradient=gradient))


def test_the_page_is_solved_for_without_an_evaluation(case: Case, psnr: Psnr) -> None:
    finding = ATTACK.run(case.view, case.knowledge, budget=100, generator=generator())
    assert psnr(finding.pixels, case.pixels, case.knowledge.private) > 90
    assert finding.explained > 0.999999
    assert finding.matching < 1e-9
    assert finding.evaluations == 0 and finding.history == ()
    public = ~case.knowledge.private[:, None].expand_as(finding.pixels)
    assert torch.equal(finding.pixels[public], case.knowledge.template[public])
    assert finding.pixels.min() >= 0 and finding.pixels.max() <= 1
    assert finding.seconds < 5
    again = ATTACK.run(case.view, case.knowledge, budget=1, generator=generator(7))
    assert torch.equal(again.pixels, finding.pixels)


def test_text_that_is_not_known_is_recovered_first(case: Case) -> None:
    model = case.view.model
    guessed = [model.scramble(e, question=True, answer=True, generator=generator()) for e in case.inputs]
    made_up = replace(case.knowledge, inputs=guessed, question_known=False, answer_known=False)
    assert ATTACK.run(case.view, made_up, budget=1, generator=generator()).explained > 0.999999


def test_a_gradient_of_the_patches_alone_is_enough(case: Case, psnr: Psnr) -> None:
    names = [name for name in case.view.names if case.view.model.stage(name) == "vision"]
    part = replace(case.view, gradient={name: case.view.gradient[name] for name in names})
    made_up = replace(case.knowledge, words_known=False)
    finding = ATTACK.run(part, made_up, budget=1, generator=generator())
    assert psnr(finding.pixels, case.pixels, case.knowledge.private) > 90


def test_where_noise_leaves_pixels_open_optimisation_goes_on(case: Case) -> None:
    hidden = noisy(case, 1e-4)
    attack = replace(
        ATTACK,
        refine=GradientAttack(
            name="few-steps", paper="none", summary="", matching=relative, solver=Adam(learning_rate=1e-3)
        ),
    )
    seen: list[int] = []
    finding = attack.run(
        hidden.view, hidden.knowledge, budget=4, generator=generator(),
        on_evaluation=lambda number, loss, pixels: seen.append(number),
    )  # fmt: skip
    assert finding.evaluations == len(finding.history) == len(seen) == 4
    alone = replace(attack, refine=ATTACKS.load("gi-dqa")).run(
        hidden.view, hidden.knowledge, budget=4, generator=generator()
    )
    assert alone.evaluations == 0, "four evaluations are fewer than gi-dqa's whitening draws"
    assert finding.explained >= alone.explained


def test_optimisation_begins_where_it_is_told(case: Case) -> None:
    attack = GradientAttack(name="a", paper="none", summary="", matching=relative, solver=Adam())
    at_truth = attack.run(case.view, case.knowledge, budget=1, generator=generator(), start_at=case.pixels)
    at_random = attack.run(case.view, case.knowledge, budget=1, generator=generator())
    assert at_truth.history[0][1] < 1e-9 < at_random.history[0][1]


@pytest.mark.parametrize("grey", [False, True])
def test_unknowns_are_the_inverse_of_pixels(grey: bool, case: Case) -> None:
    canvas = Canvas.of(case.knowledge.template, case.knowledge.private, region="private", grey=grey)
    unknowns = torch.rand(canvas.size, generator=generator())
    torch.testing.assert_close(canvas.unknowns(canvas.pixels(unknowns)), unknowns)


def test_the_pictures_of_a_batch_are_left_to_optimisation(case: Case) -> None:
    model = case.view.model
    both = build_case(model, make_pages(2, seed=0, size=model.image_size), Exposure(), seed=0)
    few = GradientAttack(name="few", paper="none", summary="", matching=relative, solver=Adam(learning_rate=0.03))
    finding = replace(ATTACK, refine=few).run(both.view, both.knowledge, budget=2, generator=generator())
    alone = few.run(both.view, both.knowledge, budget=2, generator=generator())
    assert finding.evaluations == 2 and torch.equal(finding.pixels, alone.pixels)
    unspent = ATTACK.run(both.view, both.knowledge, budget=2, generator=generator())
    assert unspent.evaluations == 0 and torch.equal(unspent.pixels, both.knowledge.template)
    assert unspent.explained == 0.0 and unspent.matching > 0


def test_other_architectures_and_budgets_are_refused(case: Case, small: Any) -> None:
    with pytest.raises(AttackError, match="learned absolute position"):
        ATTACK.run(small.view, small.knowledge, budget=10, generator=generator())
    with pytest.raises(AttackError, match="budget is 0"):
        ATTACK.run(case.view, case.knowledge, budget=0, generator=generator())
    blind = {name: value for name, value in case.view.gradient.items() if not name.endswith("pos_embed")}
    with pytest.raises(AttackError, match="pos_embed"):
        ATTACK.run(replace(case.view, gradient=blind), case.knowledge, budget=10, generator=generator())


@dataclass(frozen=True)
class Worsening:
    """A refining attack that hands back a picture far from the page, and says how little that explains."""

    explained: float
    draws: int = 0

    def run(self, view: Any, knowledge: Any, *, start_at: Tensor, **options: Any) -> Finding:
        return Finding(torch.zeros_like(start_at), 1.0, self.explained, 3, 0.0, ((3, 1.0),))


def test_a_refinement_that_explains_less_is_thrown_away(case: Case) -> None:
    hidden = noisy(case, 1e-4)
    alone = replace(ATTACK, refine=ATTACKS.load("gi-dqa")).run(
        hidden.view, hidden.knowledge, budget=4, generator=generator()
    )
    for explained, kept in ((alone.explained - 0.5, alone.pixels), (2.0, torch.zeros_like(alone.pixels))):
        attack = replace(ATTACK, refine=Worsening(explained))  # type: ignore[arg-type]
        finding = attack.run(hidden.view, hidden.knowledge, budget=4, generator=generator())
        assert torch.equal(finding.pixels, kept)
        assert finding.explained == max(alone.explained, explained) and finding.evaluations == 3
