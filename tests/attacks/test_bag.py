"""The bag of words of a round: the set of tokens and coordinates that a client's update gives away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.bag import TABLES, _beyond, _moved, bag_of_words, looked_up, steps_by_decay
from docleak.attacks.gradients.local_steps import Optimiser
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models import DocumentModel, load_model, pixels_of
from docleak.models.vlm.tiny import make_tiny
from docleak.studies.updates.words import tokens_of
from docleak.training.federated.local import parameters_of, set_parameters, train_locally
from docleak.training.federated.local_plan import LocalPlan
from docleak.training.update import client_gradient


def round_of(model: DocumentModel, pages: list[Any], plan: LocalPlan) -> tuple[dict[str, Tensor], list[Any]]:
    """A client's update in the units of a gradient, and the inputs it was made from; the model is put back."""
    start = parameters_of(model)
    done = train_locally(model, pages, plan, client="c", rng=np.random.default_rng(0))
    set_parameters(model, start)
    examples = [(page, question) for page in pages for question in page.questions if question.answers]
    used = [examples[i] for i in sorted({i for batch in done.batches for i in batch})]
    optimiser = Optimiser(plan.optimiser, plan.learning_rate, plan.weight_decay)
    delta = {name: torch.from_numpy(value) for name, value in done.update.delta.items()}
    update = optimiser.as_gradient(delta, {name: torch.from_numpy(v) for name, v in start.items()}, done.steps)
    return update, [model.encode(model.fit(page), question) for page, question in used]


def agreement(found: set[int], true: set[int]) -> tuple[float, float]:
    return len(found & true) / len(found), len(found & true) / len(true)


SGD = LocalPlan(epochs=9, learning_rate=0.1, weight_decay=0.01, optimiser="sgd", dropout=False)
ADAMW = LocalPlan(epochs=9, learning_rate=5e-4, weight_decay=0.01, optimiser="adamw", dropout=False)


@pytest.mark.parametrize("name", ["vt5-start", "fedocvqa-start"])
@pytest.mark.parametrize(
    ("plan", "least"),
    [
        (replace(SGD, batch_size=1, max_steps=1), (1.0, 1.0)),
        (replace(SGD, batch_size=4, max_steps=4), (0.98, 0.95)),
        (replace(ADAMW, batch_size=1, max_steps=1), (0.9, 0.98)),
        (replace(ADAMW, batch_size=4, max_steps=4), (0.9, 0.95)),
    ],
    ids=["sgd-1", "sgd-4x4", "adamw-1", "adamw-4x4"],
)
def test_a_table_that_is_the_output_layer_too(name: str, plan: LocalPlan, least: tuple[float, float]) -> None:
    """Every row moves, and yet those that were looked up stand out: (precision, recall) of T5's tied table."""
    model = load_model(name)
    update, inputs = round_of(model, list(make_pages(4, seed=3, size=model.image_size)), plan)
    optimiser = Optimiser(plan.optimiser, plan.learning_rate, plan.weight_decay)
    bag = bag_of_words(model, update, optimiser=optimiser, steps=plan.max_steps)
    true = set().union(*(tokens_of(model, e) for e in inputs))
    assert not bag.exact and len(true) < 0.2 * len(bag.belief)
    precision, recall = agreement(set(bag.tokens), true)
    assert precision >= least[0] and recall >= least[1], (precision, recall)
    boxes = torch.cat([e.tensors["bbox"] for e in inputs])
    if "x" in TABLES[model.architecture][1]:
        assert set(bag.coordinates["x"]) == set(boxes[:, [0, 2]].flatten().tolist())
        assert set(bag.coordinates["y"]) == set(boxes[:, [1, 3]].flatten().tolist())


@pytest.mark.parametrize("plan", [replace(SGD, batch_size=2, max_steps=2), replace(ADAMW, batch_size=2, max_steps=2)])
def test_a_table_of_inputs_alone_is_exact_despite_decay(plan: LocalPlan) -> None:
    model = load_model("layoutlmv3-start")
    update, inputs = round_of(model, list(make_pages(2, seed=3, size=model.image_size)), plan)
    bag = bag_of_words(
        model, update, optimiser=Optimiser(plan.optimiser, plan.learning_rate, plan.weight_decay), steps=2
    )
    true = set().union(*(tokens_of(model, e) for e in inputs))
    assert bag.exact and set(bag.tokens) == true - {1}, "all but padding, which the model's table never learns"


@pytest.mark.parametrize("plan", [replace(SGD, batch_size=2, max_steps=2), replace(ADAMW, batch_size=2, max_steps=2)])
def test_a_decay_that_is_told_wrongly_hides_no_word(plan: LocalPlan) -> None:
    """What every row loses of itself is seen, whoever says how much: up to 0.3.0 none to two thirds were read."""
    model = load_model("layoutlmv3-start")
    update, inputs = round_of(model, list(make_pages(2, seed=3, size=model.image_size)), plan)
    true = set().union(*(tokens_of(model, e) for e in inputs)) - {1}
    start = {name: torch.from_numpy(value) for name, value in parameters_of(model).items()}
    axes = TABLES["layoutlmv3"][1]
    right = bag_of_words(model, update, optimiser=Optimiser(plan.optimiser, plan.learning_rate, 0.01), steps=2)
    for kind, excess in (("sgd", 0.09), ("sgd", -0.01), ("adamw", 0.09), ("adamw", -0.01)):
        wrong = {name: value - excess * start[name] for name, value in update.items()}
        bag = bag_of_words(model, wrong, optimiser=Optimiser(kind, plan.learning_rate, 0.01 + excess), steps=2)
        assert bag.exact and set(bag.tokens) == true, (kind, excess)
        assert {axis: bag.coordinates[axis] for axis in axes} == right.coordinates


@pytest.mark.parametrize("name", ["vt5-start", "donut-start"])
def test_a_decay_that_is_told_wrongly_hides_no_word_of_a_tied_table(name: str) -> None:
    model, plan = load_model(name), replace(SGD, batch_size=2, max_steps=2)
    update, inputs = round_of(model, list(make_pages(2, seed=3, size=model.image_size)), plan)
    true = set().union(*(tokens_of(model, e) for e in inputs))
    for excess in (0.0, 0.09, -0.01):
        wrong = {name: value - excess * torch.from_numpy(parameters_of(model)[name]) for name, value in update.items()}
        bag = bag_of_words(model, wrong, optimiser=Optimiser("sgd", plan.learning_rate, 0.01 + excess), steps=2)
        precision, recall = agreement(set(bag.tokens), true)
        assert not bag.exact and recall == 1.0 and precision > 0.97, excess


@pytest.mark.parametrize("steps", [1, 3, 100])
def test_a_decay_of_its_own_in_each_step_hides_no_row(steps: int) -> None:
    """As LAMB's, which nobody told of; every step rounds once more. Where all rows move otherwise none is set apart."""
    generator = torch.Generator().manual_seed(0)
    start = 0.02 * torch.randn(420, 48, generator=generator)
    after, optimiser = start, Optimiser("adamw", 0.2, 0.0)
    for share in torch.rand(steps, generator=generator) * 1e-3:
        after = after * (1 - share)
    after[:52] += 1e-4 * torch.randn(52, 48, generator=generator)
    update = optimiser.as_gradient({"table": start - after}, {"table": start}, 1)["table"]
    assert _moved(update, start, optimiser, 0.0).nonzero().flatten().tolist() == list(range(52))
    tied = update + torch.rand(420, 2, generator=generator) @ torch.randn(2, 48, generator=generator) * 1e-5
    assert bool(_moved(tied, start, optimiser, 0.0).all())
    assert bool(_moved(update, torch.zeros_like(start), None, 0.0).all()), "of a table of zeros no share is known"


def test_a_decay_inside_a_gradient_hides_no_word() -> None:
    model = load_model("layoutlmv3-start")
    page = model.fit(make_pages(1, seed=2, size=model.image_size)[0])
    example = model.encode(page, page.questions[0])
    gradient = client_gradient(model, pixels_of(page.image)[None], [example])
    named = dict(model.module.named_parameters())
    bag = bag_of_words(model, {name: value + 0.01 * named[name].detach() for name, value in gradient.items()})
    assert bag.exact and set(bag.tokens) == tokens_of(model, example) - {1}


@pytest.mark.parametrize("plan", [replace(SGD, batch_size=2, max_steps=2), replace(ADAMW, batch_size=2, max_steps=2)])
@pytest.mark.parametrize(("family", "exact"), [("smolvlm", True), ("qwen2_vl", True), ("lighton_ocr", False)])
def test_vision_language_models_have_a_table_too(family: str, exact: bool, plan: LocalPlan, tmp_path: Path) -> None:
    """Words of questions and answers, and the turns around them; a picture's placeholder is not looked up."""
    make_tiny(family, tmp_path / family, seed=0)
    model = load_model(str(tmp_path / family))
    update, inputs = round_of(model, [model.fit(page) for page in make_pages(2, seed=3)], plan)
    optimiser = Optimiser(plan.optimiser, plan.learning_rate, plan.weight_decay)
    bag = bag_of_words(model, update, optimiser=optimiser, steps=2)
    true = set().union(*(tokens_of(model, e) for e in inputs))
    assert bag.exact == exact and set(bag.tokens) == true
    assert int(model.module.config.image_token_id) in set(inputs[0].tensors["input_ids"].tolist()) - true


def test_a_plain_gradient(small: Any) -> None:
    """Of a Donut (tied), from one example; and of a VT5."""
    model = load_model("vt5-start")
    page = model.fit(make_pages(1, seed=2, size=model.image_size)[0])
    example = model.encode(page, page.questions[0])
    bag = bag_of_words(model, client_gradient(model, pixels_of(page.image)[None], [example]))
    assert set(bag.tokens) == tokens_of(model, example)
    donut = bag_of_words(small.model, small.view.gradient)
    precision, recall = agreement(set(donut.tokens), tokens_of(small.model, small.inputs[0]))
    assert recall == 1.0 and precision > 0.7


@pytest.mark.parametrize("planted", [1, 5, 60, 400])
def test_rows_that_leave_the_common_way_are_found_and_no_others(planted: int) -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(6, 96, generator=generator) * 1e-2
    rows = torch.randn(1300, 6, generator=generator).softmax(0) @ states
    rows = rows + 1e-8 * torch.randn(1300, 96, generator=generator)
    rows[:planted] += 1e-3 * torch.randn(planted, 96, generator=generator)
    indices = (looked_up(rows, 1e-8) > 0.5).nonzero().flatten().tolist()
    assert indices == list(range(planted))


def test_rows_that_all_go_the_common_way_are_hardly_any_words() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1300, 6, generator=generator).softmax(0) @ torch.randn(6, 96, generator=generator)
    assert int((looked_up(rows + 1e-6 * torch.randn(1300, 96, generator=generator), 1e-6) > 0.5).sum()) <= 3


def test_what_has_no_table_or_no_update_of_it_is_refused(small: Any) -> None:
    table = TABLES["donut"][0]
    for gone in ({}, {table: torch.zeros_like(small.view.gradient[table])}):
        gradient = {name: value for name, value in small.view.gradient.items() if name != table} | gone
        with pytest.raises(AttackError, match="frozen or not sent"):
            bag_of_words(small.model, gradient)


@pytest.mark.parametrize("rate", [1e-4, 1e-2, 0.1])
def test_the_steps_are_read_off_compound_decay(rate: float) -> None:
    """50 steps, each of which leaves 1 - lr wd of a row: at 0.01 a linear reading would say 39.5."""
    model = load_model("vt5-start")
    named = dict(model.module.named_parameters())
    tables = TABLES[model.architecture][1].values()
    generator = torch.Generator().manual_seed(0)
    delta = {}
    for table in tables:
        start = named[table].detach().double()
        delta[table] = start - start * (1 - rate) ** 50
        few = torch.randperm(len(start), generator=generator)[: len(start) // 3]
        delta[table][few] += torch.randn(len(few), start.shape[1], generator=generator).double()
    optimiser = Optimiser("adamw", learning_rate=0.5, weight_decay=2 * rate)
    assert steps_by_decay(model, delta, optimiser) == pytest.approx(50, rel=1e-4)
    assert steps_by_decay(model, delta, Optimiser("adamw", 0.5)) is None, "without decay nothing tells"
    assert steps_by_decay(model, {}, optimiser) is None


@pytest.mark.parametrize(("optimiser", "steps", "error"), [(None, 1, 1e-3), (Optimiser("sgd", 0.1), 4, 1e-3 / 0.4)])
def test_what_the_resolution_explains_is_no_word(optimiser: Optimiser | None, steps: int, error: float) -> None:
    """A sum in fixed point is wrong by as much in the weights, which is that over rate times steps in a gradient."""
    model = load_model("layoutlmv3-start")
    name = TABLES[model.architecture][0]
    update = torch.zeros_like(dict(model.module.named_parameters())[name].detach())
    update[5, 3], update[6, 0], update[7, 2] = 1.02 * error, -1.02 * error, 0.98 * error
    bag = bag_of_words(model, {name: update}, optimiser=optimiser, steps=steps, resolution=1e-3)
    assert bag.exact and set(bag.tokens) == {5, 6}


@pytest.mark.parametrize("seed", range(8))
def test_the_cut_in_two_is_otsus_in_the_upper_half(seed: int) -> None:
    """Brute force over every cut that leaves at least half below, where a wider gap lies lower, too."""
    generator = torch.Generator().manual_seed(seed)
    size = 20 + seed
    values = torch.randn(size, generator=generator).double()
    values[: size // 3] -= 50.0  # a cut that may not be made
    values[-3:] += 12.0
    ordered = sorted(values.tolist())

    def between(below: int) -> float:
        low, high = ordered[:below], ordered[below:]
        return len(low) * len(high) * (sum(low) / len(low) - sum(high) / len(high)) ** 2

    best = max(range(size // 2, size), key=between)
    mask = _beyond(values[torch.randperm(size, generator=generator)])
    assert int(mask.sum()) == size - best <= (size + 1) // 2
