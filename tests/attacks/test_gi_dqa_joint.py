"""The joint attack: words that are known come onto the page, and wrong ones do not help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients import ATTACKS, GradientAttack
from docleak.attacks.gradients.engine import Finding
from docleak.attacks.gradients.gi_dqa import ATTACK as GI_DQA
from docleak.attacks.gradients.gi_dqa_joint import ATTACK, WORDS, JointAttack
from docleak.attacks.gradients.matching import relative
from docleak.attacks.gradients.solvers import Adam
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models import load_model
from docleak.studies.gradient.case import Case, build_case
from docleak.studies.gradient.config import Exposure

Psnr = Callable[[Tensor, Tensor, Tensor], float]
SHORT = GradientAttack(name="short", paper="none", summary="", matching=relative, solver=Adam(learning_rate=1e-3))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def case() -> Case:
    model = load_model("layoutlmv3-trained")
    return build_case(model, make_pages(1, seed=0, size=model.image_size), Exposure(), seed=0)


@pytest.fixture(scope="module")
def other(case: Case) -> Case:
    model = case.view.model
    return build_case(model, make_pages(1, seed=3, size=model.image_size), Exposure(), seed=0)


@pytest.fixture(scope="module")
def words(case: Case) -> Finding:
    """The page with its known words drawn; more budget than that takes."""
    return WORDS.run(case.view, case.knowledge, budget=40, generator=generator())


def test_known_words_draw_the_page_without_an_optimised_pixel(case: Case, words: Finding, psnr: Psnr) -> None:
    """The page holds a bold total of the same width as a regular one, which only the gradient tells apart."""
    finding = words
    assert psnr(finding.pixels, case.pixels, case.knowledge.private) > 60
    assert finding.explained > 0.9999 and finding.evaluations < 20
    public = ~case.knowledge.private[:, None].expand_as(finding.pixels)
    assert torch.equal(finding.pixels[public], case.knowledge.template[public])
    joint = ATTACK.run(case.view, case.knowledge, budget=60, generator=generator(7))
    assert torch.equal(joint.pixels, finding.pixels), "a page that explains all of the gradient is not optimised"


def test_text_that_is_not_known_is_read_out_of_the_gradient_first(case: Case, psnr: Psnr) -> None:
    model = case.view.model
    guessed = [model.scramble(e, question=True, answer=True, generator=generator()) for e in case.inputs]
    nothing = replace(case.knowledge, inputs=guessed, question_known=False, answer_known=False, words_known=False)
    finding = WORDS.run(case.view, nothing, budget=40, generator=generator())
    assert psnr(finding.pixels, case.pixels, case.knowledge.private) > 60


def test_words_of_another_page_explain_less(case: Case, other: Case, words: Finding) -> None:
    """Planted: the adversary believes in a text that is not the client's."""
    wrong = replace(case.knowledge, inputs=other.inputs)
    assert WORDS.run(case.view, wrong, budget=40, generator=generator()).explained < words.explained - 0.1


def test_where_the_typeface_is_missing_pixels_are_optimised_from_the_drawing(case: Case) -> None:
    seen: list[int] = []
    attack = replace(ATTACK, refine=SHORT, typefaces=("roboto",))
    finding = attack.run(
        case.view, case.knowledge, budget=9, generator=generator(),
        on_evaluation=lambda number, loss, pixels: seen.append(number),
    )  # fmt: skip
    assert finding.evaluations == 9 and seen == list(range(1, 10))
    assert finding.history[0][0] > 1 and finding.history[-1][0] == 9
    drawn = replace(WORDS, typefaces=("roboto",)).run(case.view, case.knowledge, budget=9, generator=generator())
    at_random = SHORT.run(case.view, case.knowledge, budget=9, generator=generator())
    assert finding.matching <= drawn.matching * (1 + 1e-5) < at_random.matching  # rounding differs between processors
    assert drawn.explained < ATTACK.enough
    again = attack.run(case.view, case.knowledge, budget=9, generator=generator())
    assert torch.equal(again.pixels, finding.pixels)


@pytest.mark.parametrize("budget", [1, 2, 5, 7])
def test_no_more_evaluations_than_granted(budget: int, case: Case) -> None:
    """Of three draws, the refining attack needs five evaluations."""
    refine = replace(GI_DQA, whitening=replace(GI_DQA.whitening, draws=3))
    finding = replace(ATTACK, refine=refine, enough=2.0).run(
        case.view, case.knowledge, budget=budget, generator=generator()
    )
    assert finding.evaluations <= budget
    assert bool(torch.isfinite(finding.pixels).all())


@pytest.mark.parametrize("budget", [2, 4])
def test_drawing_leaves_an_evaluation_to_what_follows(budget: int, case: Case) -> None:
    finding = replace(ATTACK, refine=SHORT, enough=2.0).run(
        case.view, case.knowledge, budget=budget, generator=generator()
    )
    assert [number for number, _ in finding.history] == [budget], "one, after all others"
    assert WORDS.run(case.view, case.knowledge, budget=budget, generator=generator()).evaluations == budget


def test_budget_of_nothing_is_refused(case: Case) -> None:
    with pytest.raises(AttackError, match="budget is 0"):
        ATTACK.run(case.view, case.knowledge, budget=0, generator=generator())


def test_words_of_each_page_of_a_batch_are_drawn(psnr: Psnr) -> None:
    model = load_model("layoutlmv3-start")
    batch = build_case(model, make_pages(2, seed=0, size=model.image_size), Exposure(), seed=0)
    finding = WORDS.run(batch.view, batch.knowledge, budget=60, generator=generator())
    blank = psnr(batch.knowledge.template, batch.pixels, batch.knowledge.private)
    assert psnr(finding.pixels, batch.pixels, batch.knowledge.private) > blank + 8


def test_an_answer_without_a_place_finds_it(psnr: Psnr) -> None:
    """Donut reads no boxes: the gradient tells which of five places is the answer's, and in which typeface it is."""
    model = load_model("donut-start")
    pages = make_pages(2, seed=0, size=model.image_size)
    case = build_case(model, [pages[1]], Exposure(), seed=1)
    finding = WORDS.run(case.view, case.knowledge, budget=30, generator=generator())
    (field,) = (f for f in pages[1].fields if f.value == pages[1].questions[0].answers[0])
    drawn = (finding.pixels != case.knowledge.template).any(dim=1)
    x0, y0, x1, y1 = (int(edge) for edge in pages[1].field_boxes(field)[0])
    assert bool(drawn[0, y0:y1, x0:x1].any()) and int(drawn[0, y0:y1, x0:x1].sum()) == int(drawn.sum())
    assert psnr(finding.pixels, case.pixels, drawn) > 60
    wrong = replace(case.knowledge, inputs=[model.encode(pages[0], pages[0].questions[0])])
    assert WORDS.run(case.view, wrong, budget=30, generator=generator()).explained < finding.explained


def test_private_places_without_words_begin_light_and_at_random(make_small: Any) -> None:
    small = make_small("42")
    two = small.knowledge.private.clone()
    two[:, 2:14, 50:62] = True  # a second private place, about which no text is known
    knowledge = replace(small.knowledge, private=two)
    starts: list[Tensor] = []
    attack = replace(ATTACK, refine=replace(SHORT, solver=Adam(learning_rate=1e-9)), enough=2.0)
    attack.run(
        small.view, knowledge, budget=30, generator=generator(),
        on_evaluation=lambda number, loss, pixels: starts.append(pixels.clone()),
    )  # fmt: skip
    there = starts[-1][0, :, 2:14, 50:62]
    assert there.std() > 0.01 and 0.5 < there.mean() < 1
    assert bool((there <= small.knowledge.template[0, :, 2:14, 50:62]).all())


def test_a_drawing_that_explains_more_than_what_follows_stays(case: Case, words: Finding) -> None:
    """Planted: a solver whose matching distance is best where the gradient is least explained."""
    astray = replace(SHORT, matching=lambda view: lambda dummy: -relative(view)(dummy), solver=Adam(learning_rate=0.3))
    attack = replace(ATTACK, refine=astray, enough=2.0)
    worse = astray.run(case.view, case.knowledge, budget=4, generator=generator(), start_at=words.pixels)
    assert worse.explained < words.explained
    finding = attack.run(case.view, case.knowledge, budget=22, generator=generator())
    assert torch.equal(finding.pixels, words.pixels) and finding.explained == words.explained
    assert finding.evaluations == 22


def test_words_may_stay_as_they_were_drawn(make_small: Any) -> None:
    """The second place has no words: there the optimised pixels are shown, in the first one the drawing."""
    small = make_small("42")
    two = small.knowledge.private.clone()
    two[:, 2:14, 50:62] = True
    knowledge = replace(small.knowledge, private=two)
    attack = replace(ATTACK, refine=replace(SHORT, solver=Adam(learning_rate=0.05)), enough=2.0)
    drawn = WORDS.run(small.view, knowledge, budget=20, generator=generator()).pixels
    moved = attack.run(small.view, knowledge, budget=20, generator=generator()).pixels
    kept = replace(attack, keep_words=True).run(small.view, knowledge, budget=20, generator=generator())
    first = small.knowledge.private[:, None].expand_as(drawn)
    assert torch.equal(kept.pixels[first], drawn[first]) and not torch.equal(moved[first], drawn[first])
    second = (two & ~small.knowledge.private)[:, None].expand_as(drawn)
    assert torch.equal(kept.pixels[second], moved[second]) and not torch.equal(moved[second], drawn[second])


def test_typefaces_are_an_option() -> None:
    attack = ATTACKS.load("words-drawn:typefaces=aileron+roboto")
    assert isinstance(attack, JointAttack) and attack.typefaces == ("aileron", "roboto") and attack.refine is None
    assert attack.name == "words-drawn:typefaces=aileron+roboto"
    both = ATTACKS.load("gi-dqa-joint:words=kept, typefaces=roboto")
    assert isinstance(both, JointAttack) and both.keep_words and both.typefaces == ("roboto",)
    for wrong in ("typefaces=comic-sans", "grey=yes", "typefaces", "words=lost", "words=kept,grey=yes"):
        with pytest.raises(AttackError, match=r"typefaces=|words is"):
            ATTACKS.load(f"gi-dqa-joint:{wrong}")
