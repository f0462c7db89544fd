"""What the pictures of a round give away: an attack on a captured update, or on one made from the same pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from docleak.attacks.gradients import Attack, Finding
from docleak.attacks.gradients.asking import ask
from docleak.attacks.gradients.closed_form import ATTACK as CLOSED_FORM
from docleak.attacks.gradients.selftest import self_test
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.documents import blank_template, private_mask
from docleak.documents.page import Image
from docleak.errors import AttackError
from docleak.metrics import load_engine, score_page
from docleak.models import image_of
from docleak.models.base import pixels_of
from docleak.spec import counted_words
from docleak.studies.updates.case import UpdateCase
from docleak.studies.updates.check import told_test
from docleak.studies.updates.round import ImitatedRound, Truth, assumed
from docleak.training.objectives.tasks import QUESTIONS

#: Pictures are attacked where the client took few steps over few pages: each is unknown to the attack at once.
MOST_PAGES, MOST_STEPS = 8, 8


#: A unit's record of its pictures, and the first page's pictures by name.
Sight = tuple[dict[str, Any], dict[str, Image]]


def unseen(why: str, test: Mapping[str, Any] | None = None) -> Sight:
    """Nothing was attacked."""
    return {"why": why, "self_test": test}, {}


def sight_of(
    case: UpdateCase, attack: Attack, checked: Mapping[str, Any], *, allow_failed: bool, **options: Any
) -> Sight:
    """Attack the pictures of a captured update, where that is within reach and what ``check`` says has passed."""
    test, truth = checked["self_test"], case.round.truth
    if test and not test["passed"] and not allow_failed:
        return unseen("the self-test failed", test)
    if case.plan.objective != QUESTIONS:
        return unseen(f"the objective {case.plan.objective!r} masks words at random, which an attack cannot imitate")
    if len(truth.pages) > MOST_PAGES or len(case.batches) > MOST_STEPS:
        return unseen(
            f"{counted_words(len(case.batches), 'step')} over {counted_words(len(truth.examples), 'question')} about "
            f"{counted_words(len(truth.pages), 'page')}; up to "
            f"{MOST_STEPS} steps over {MOST_PAGES} pages are attacked"
        )
    return attacked(case.round, attack, allow_failed=allow_failed, dropout=case.dropout, **options)


def attacked(
    taken: ImitatedRound, attack: Attack, *, budget: int, seed: int, ocr: str, report: Callable[[int], None],
    allow_failed: bool = False, dropout: bool = False,
) -> Sight:  # fmt: skip
    """Self-test with the true order, then the attack with the order that the adversary assumes."""
    truth = taken.truth
    if not getattr(truth.model, "sees", True):
        return unseen("the model reads words and boxes and no picture")
    knowledge = _known(truth)
    if knowledge is None:
        return unseen("none of the pages has a private field with a place")
    view = taken.view(knowledge, dropout=dropout)
    order = assumed(len(truth.examples), taken.plan)
    assumption = view if order == taken.batches else replace(taken, batches=order).view(knowledge, dropout=dropout)
    if view is None or assumption is None:
        return unseen("nothing of the update rises above the rounding of the weights it was sent as")
    test = self_test(view, truth.pixels, truth.inputs, taken=truth.taken)
    if not test.passed and not allow_failed:
        return unseen("the self-test failed", told_test(test))
    finding, route = _found(attack, assumption, knowledge, budget, seed, report)
    record, images = _scored(truth, knowledge, finding, ocr)
    return {"why": "", "route": route, "self_test": told_test(test), **record}, images


def _scored(truth: Truth, knowledge: Knowledge, finding: Finding, ocr: str) -> Sight:
    """The finding held against every page that has private fields."""
    engine = _engine(ocr)
    shown = [i for i, page in enumerate(truth.fitted) if page.private_fields]
    images = {
        "truth": [page.image for page in truth.fitted],
        "template": [image_of(row) for row in knowledge.template],
        "reconstruction": [image_of(row) for row in finding.pixels],
    }
    scores = {
        name: [score_page(truth.fitted[i], made[i], engine).to_json() for i in shown] for name, made in images.items()
    }
    asked = [(example.page, example.question.answers) for example in truth.examples if example.question]
    record = {
        **{key: getattr(finding, key) for key in ("explained", "evaluations", "seconds", "start", "loss")},
        "pages": len(truth.fitted),
        "knowledge": list(knowledge.sentences()),
        "given": [[answer for page, answers in asked if page == i for answer in answers] for i in shown],
        "score": scores["reconstruction"],
        "floor": scores["template"],
        "ceiling": scores["truth"],
    }
    return record, {name: made[shown[0]] for name, made in images.items()}


@lru_cache(maxsize=1)
def _engine(name: str) -> Any:
    return load_engine(name)


def _found(
    attack: Attack, view: GradientView, knowledge: Knowledge, budget: int, seed: int, report: Callable[[int], None]
) -> tuple[Finding, str]:
    """The finding of ``attack`` and its name, or of closed-form recovery where that explains more of the gradient."""
    finding = ask(
        attack, view, knowledge, budget=budget, generator=torch.Generator().manual_seed(seed),
        on_evaluation=lambda number, loss, seen: report(number),
    )  # fmt: skip
    if view.batch_size != 1 or attack.name in (CLOSED_FORM.name, "random"):
        return finding, attack.name
    try:
        closed = CLOSED_FORM.run(view, knowledge, budget=1, generator=torch.Generator().manual_seed(seed))
    except AttackError:  # another architecture, or a part of the tensors
        return finding, attack.name
    return (closed, CLOSED_FORM.name) if closed.explained > finding.explained else (finding, attack.name)


def _known(truth: Truth) -> Knowledge | None:
    """Blank templates, and question and answer of every example, as in the published attack."""
    private = torch.stack([torch.from_numpy(private_mask(page)) for page in truth.fitted]).to(truth.device)
    if not bool(private.any()):
        return None
    template = torch.stack([pixels_of(blank_template(page), truth.device) for page in truth.fitted])
    return Knowledge(template, private, truth.inputs)
