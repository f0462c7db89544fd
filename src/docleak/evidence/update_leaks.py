"""What a captured update, or one made from the same pages, gives away: words and pictures, against the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docleak.attacks.gradients import Attack, Finding
from docleak.attacks.gradients.algebra.bag import Bag, bag_of_words, steps_by_decay
from docleak.attacks.gradients.closed_form import ATTACK as CLOSED_FORM
from docleak.attacks.gradients.local_steps import Batching, ImitatedSteps
from docleak.attacks.gradients.observed import observe
from docleak.attacks.gradients.selftest import SelfTest, self_test
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.documents import Page, Question, blank_template, private_mask
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, GradientError
from docleak.evidence.update_case import UpdateCase, assumed, imitated, load_start, optimiser_of, without_dropout
from docleak.evidence.update_check import Check
from docleak.models.base import DocumentModel, Encoded, pixels_of
from docleak.training.federated.local import LocalPlan, train_locally
from docleak.training.objectives.objective import Example
from docleak.training.objectives.table import QUESTIONS, objective_of

#: Pictures are attacked where the client took few steps over few pages: each is unknown to the attack at once.
MOST_PAGES, MOST_STEPS = 8, 8
#: Made-up pages that no client has, whose fields show how often a bag holds a value by chance.
CONTROLS, CONTROL_SEED = 12, 987_654


def words_of(case: UpdateCase) -> dict[str, Any]:
    """The bag of words of a captured update, beside what the client trained on; {"failed": why} where there is none."""
    start = {name: p.detach() for name, p in case.model.module.named_parameters()}
    steps: float = case.replay.trained.steps if case.replay.trained else len(case.batches)
    if "resolution" in case.update.details:  # a sum, whose clients do not say how many steps they took
        steps = steps_by_decay(case.model, case.delta, case.optimiser) or steps
    update = case.optimiser.as_gradient(case.delta, start, steps)
    if case.plan.objective != QUESTIONS:
        return {"failed": f"the objective {case.plan.objective!r} masks words at random, so the truth is not known"}
    used = [(case.pages[example.page], example.question) for example in case.trained_on]
    return _words(case.model, update, case.plan, steps, used, float(case.update.details.get("resolution") or 0.0))


def _words(
    model: DocumentModel,
    update: dict[str, Tensor],
    plan: LocalPlan,
    steps: float,
    used: Sequence[tuple[Page, Any]],
    resolution: float = 0.0,
) -> dict[str, Any]:
    try:
        bag = bag_of_words(model, update, optimiser=optimiser_of(plan), steps=steps, resolution=resolution)
    except AttackError as fault:
        return {"failed": str(fault)}
    encoded = [model.encode(model.fit(page), question) for page, question in used]
    true = set().union(*(tokens_of(model, e) for e in encoded))
    pages = list({page.name: page for page, _ in used}.values())
    made_up = list(make_pages(CONTROLS, seed=CONTROL_SEED))
    return {
        "exact": bag.exact,
        "tokens": len(bag.belief),
        "true": len(true),
        **_agreement(set(bag.tokens), true),
        "places": {
            axis: _agreement(set(found), set().union(*(_places(e, axis) for e in encoded)))
            for axis, found in bag.coordinates.items()
        },
        "fields": _covered(model, bag, pages),
        "control": _covered(model, bag, made_up),
        "control_tokens": _by_chance(model, bag, made_up, len(used)),
    }


def _by_chance(model: DocumentModel, bag: Bag, pages: Sequence[Page], count: int) -> list[float]:
    """For sets of ``count`` questions about made-up pages: tokens in bag and set, as a share of those in either."""
    asked = [tokens_of(model, model.encode(model.fit(page), question)) for page in pages for question in page.questions]
    sets = [set().union(*asked[at : at + count]) for at in range(0, len(asked), max(1, len(asked) // CONTROLS))]
    found = set(bag.tokens)
    return [len(found & tokens) / max(1, len(found | tokens)) for tokens in sets]


def _agreement(found: set[int], true: set[int]) -> dict[str, Any]:
    right = len(found & true)
    return {
        "found": len(found),
        "right": right,
        "precision": right / len(found) if found else None,
        "recall": right / len(true) if true else None,
    }


def tokens_of(model: DocumentModel, example: Encoded) -> set[int]:
    """Ids that an example looks up: of its text, and of the answer as the decoder is given it."""
    tensors = example.tensors
    if "decoder_input_ids" in tensors:
        return set(tensors["decoder_input_ids"].tolist())
    found = set(tensors["input_ids"].tolist())
    if "labels" in tensors:
        decoder: Any = model.module
        found |= {int(decoder.t5.config.decoder_start_token_id), *tensors["labels"].tolist()[:-1]}
    return found


def _places(example: Encoded, axis: str) -> set[int]:
    columns = [0, 2] if axis == "x" else [1, 3]
    return set(example.tensors["bbox"][:, columns].flatten().tolist())


def _covered(model: DocumentModel, bag: Bag, pages: Sequence[Page]) -> list[int]:
    """[held, of]: private fields all of whose tokens are in the bag; [0, 0] for models that read no words."""
    tokens, held, of = set(bag.tokens), 0, 0
    for page in pages:
        fitted = model.fit(page)
        example = model.encode(fitted, Question("?", ("?",)))
        owners = example.tensors.get("word_ids")
        if owners is None:
            return [0, 0]
        for field in fitted.private_fields:
            own = example.tensors["input_ids"][torch.isin(owners, torch.tensor(field.words, dtype=owners.dtype))]
            if len(own):
                of, held = of + 1, held + (set(own.tolist()) <= tokens)
    return [held, of]


@dataclass(frozen=True)
class Sight:
    """What an attack on pictures was given and found. ``pages`` are as the model sees them, the target first.

    ``finding`` is None where nothing was attacked, and ``why`` says so. ``answers`` are those that the attacker was
    given of each page.
    """

    pages: tuple[Page, ...]
    knowledge: Knowledge | None
    test: SelfTest | None
    finding: Finding | None
    why: str = ""
    route: str = ""
    answers: tuple[tuple[str, ...], ...] = ()


def sight_of(
    case: UpdateCase,
    attack: Attack,
    checked: Check,
    *,
    budget: int,
    seed: int,
    allow_failed: bool,
    report: Callable[[int], None],
) -> Sight:
    """Attack the pictures of a captured update, where that is within reach and its check has passed; ``route`` is the
    attack that gave them."""
    used = case.trained_on
    if checked.test and not checked.test.passed and not allow_failed:
        return Sight((), None, checked.test, None, "the self-test failed")
    pages = sorted({example.page for example in used})
    if case.plan.objective != QUESTIONS:
        return _unseen(f"the objective {case.plan.objective!r} masks words at random, which an attack cannot imitate")
    if len(pages) > MOST_PAGES or len(case.batches) > MOST_STEPS:
        return _unseen(
            f"{len(case.batches)} steps over {len(used)} questions about {len(pages)} pages; up to {MOST_STEPS} steps "
            f"over {MOST_PAGES} pages are attacked"
        )
    numbers = {n: i for i, n in enumerate(sorted({n for batch in case.batches for n in batch}))}
    true = [[numbers[n] for n in batch] for batch in case.batches]
    return _attacked(
        case.model, case.delta, case.plan, case.batching, [case.pages[n] for n in pages],
        [Example(pages.index(e.page), e.question) for e in used], true,
        attack, budget=budget, seed=seed, allow_failed=allow_failed, dropout=case.dropout, report=report,
    )  # fmt: skip


def _unseen(why: str) -> Sight:
    return Sight((), None, None, None, why)


def _attacked(
    model: DocumentModel,
    delta: dict[str, Tensor],
    plan: LocalPlan,
    batching: Batching,
    pages: Sequence[Page],
    examples: Sequence[Example],
    batches: Sequence[Sequence[int]],
    attack: Attack,
    *,
    budget: int,
    seed: int,
    allow_failed: bool,
    dropout: bool,
    report: Callable[[int], None],
) -> Sight:
    """Self-test with the true order, then the attack with the order that the adversary assumes."""
    fitted = tuple(model.fit(page) for page in pages)
    inputs = [model.encode(fitted[e.page], e.question) for e in examples if e.question is not None]
    knowledge = _known(model, fitted, inputs)
    if knowledge is None:
        return _unseen("none of the pages has a private field with a place")
    pixels = torch.stack([pixels_of(page.image, _device(model)) for page in fitted])

    def view_of(steps: Sequence[Sequence[int]]) -> GradientView | None:
        return _view(model, delta, imitated(steps, examples, plan, batching), knowledge, dropout)

    view, assumption = view_of(batches), view_of(assumed(len(examples), plan))
    if view is None or assumption is None:
        return _unseen("nothing of the update rises above the rounding of the weights it was sent as")
    test = self_test(view, pixels, inputs)
    if not test.passed and not allow_failed:
        return Sight(fitted, knowledge, test, None, "the self-test failed")
    finding, route = _found(attack, assumption, knowledge, budget, seed, report)
    asked = [(e.page, e.question.answers) for e in examples if e.question is not None]
    answers = tuple(tuple(a for page, told in asked if page == i for a in told) for i in range(len(pages)))
    return Sight(fitted, knowledge, test, finding, route=route, answers=answers)


def _found(
    attack: Attack, view: GradientView, knowledge: Knowledge, budget: int, seed: int, report: Callable[[int], None]
) -> tuple[Finding, str]:
    """The finding of ``attack`` and its name, or of closed-form recovery where that explains more of the gradient."""
    finding = attack.run(
        view, knowledge, budget=budget, generator=torch.Generator().manual_seed(seed),
        on_evaluation=lambda number, loss, seen: report(number),
    )  # fmt: skip
    if view.batch_size != 1 or attack.name in (CLOSED_FORM.name, "random"):
        return finding, attack.name
    try:
        closed = CLOSED_FORM.run(view, knowledge, budget=1, generator=torch.Generator().manual_seed(seed))
    except AttackError:  # another architecture, or a part of the tensors
        return finding, attack.name
    return (closed, CLOSED_FORM.name) if closed.explained > finding.explained else (finding, attack.name)


def _view(
    model: DocumentModel, delta: dict[str, Tensor], local: ImitatedSteps, knowledge: Knowledge, dropout: bool
) -> GradientView | None:
    try:
        return observe(model, delta, local, knowledge, train_mode=dropout)
    except GradientError:
        return None


def _known(model: DocumentModel, pages: Sequence[Page], inputs: list[Encoded]) -> Knowledge | None:
    """Blank templates, and question and answer of every example, as in the published attack."""
    private = torch.stack([torch.from_numpy(private_mask(page)) for page in pages]).to(_device(model))
    if not bool(private.any()):
        return None
    template = torch.stack([pixels_of(blank_template(page), _device(model)) for page in pages])
    return Knowledge(template, private, inputs)


def _device(model: DocumentModel) -> torch.device:
    return next(model.module.parameters()).device


@dataclass(frozen=True)
class Cell:
    """One point of "how leakage falls": ``steps`` local steps over batches of ``batch_size``, each of another page."""

    steps: int
    batch_size: int

    @property
    def id(self) -> str:
        return f"steps-{self.steps:03d}--batch-{self.batch_size:03d}"


def cell_of(
    case: UpdateCase,
    cell: Cell,
    attack: Attack | None,
    *,
    budget: int,
    seed: int,
    report: Callable[[int], None],
) -> tuple[dict[str, Any], Sight]:
    """Let the client train from the captured start for so many steps without dropout, and attack what it would send.

    Without an ``attack`` only words are looked for. The client's pages come in their order, those with private fields
    first, one question each; if they are fewer than are needed, they are trained on again.
    """
    plan = without_dropout(case.plan, steps=cell.steps, batch_size=cell.batch_size)
    pages = _one_question_each(case, cell.steps * cell.batch_size)
    if len(pages) < cell.batch_size:
        why = f"the client has {len(pages)} pages with questions, fewer than a batch of {cell.batch_size}"
        return {"failed": why}, _unseen(why)
    load_start(case.model, case.update)
    trained = train_locally(case.model, pages, plan, client=case.update.client, rng=np.random.default_rng(seed))
    load_start(case.model, case.update)
    delta = {name: torch.from_numpy(value) for name, value in trained.update.delta.items()}
    examples = objective_of(QUESTIONS).examples(pages)
    start = {name: p.detach() for name, p in case.model.module.named_parameters()}
    used = [(pages[e.page], e.question) for e in examples]
    update = optimiser_of(plan).as_gradient(delta, start, trained.steps)
    words = _words(case.model, update, plan, trained.steps, used)
    if attack is None:
        return words, _unseen("only words are looked for")
    sight = _attacked(
        case.model, delta, plan, Batching(), pages, examples, trained.batches, attack,
        budget=budget, seed=seed, allow_failed=False, dropout=False, report=report,
    )  # fmt: skip
    return words, sight


def _one_question_each(case: UpdateCase, count: int) -> list[Page]:
    numbers = sorted({example.page for example in case.examples})
    first = [n for n in numbers if case.pages[n].private_fields]
    ordered = [*first, *(n for n in numbers if n not in set(first))][:count]
    asked = {e.page: e.question for e in reversed(case.examples)}
    return [replace(case.pages[n], questions=(question,)) for n in ordered if (question := asked[n]) is not None]
