"""A client's round: the update is what training changed, and equals a bare loop's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from docleak.documents.synthetic import make_pages
from docleak.errors import FederationError
from docleak.models import load_model
from docleak.models.base import DocumentModel, Encoded, pixels_of, trainable
from docleak.training.federated.fedopt import FedOpt, ServerState, step
from docleak.training.federated.local import parameters_of, parts_of, set_parameters, train_locally
from docleak.training.federated.local_plan import LocalPlan

PLAN = LocalPlan(batch_size=4, max_steps=2, dropout=False)


@pytest.fixture
def model() -> DocumentModel:
    return load_model("vt5-start")


@pytest.fixture(scope="module")
def pages() -> list:
    return list(make_pages(3, seed=1, split="train", size=(224, 224)))


def run(model: DocumentModel, pages: list, plan: LocalPlan = PLAN, seed: int = 0):
    return train_locally(model, pages, plan, client="silo", rng=np.random.default_rng(seed))


def test_the_update_is_what_changed_and_is_reproducible(model: DocumentModel, pages: list) -> None:
    before = parameters_of(model)
    first = run(model, pages)
    after = parameters_of(model)
    assert first.steps == 2 and first.update.examples == sum(len(page.questions) for page in pages)
    for name, delta in first.update.delta.items():
        np.testing.assert_array_equal(delta, before[name] - after[name])
    assert any(np.abs(delta).max() > 0 for delta in first.update.delta.values())
    set_parameters(model, before)
    again = run(model, pages)
    assert all((again.update.delta[name] == first.update.delta[name]).all() for name in before)
    set_parameters(model, before)
    other = run(model, pages, seed=1)
    assert any((other.update.delta[name] != first.update.delta[name]).any() for name in before)


def test_one_sgd_step_is_the_gradient(model: DocumentModel, pages: list) -> None:
    page = replace(pages[0], questions=pages[0].questions[:1])
    fitted = model.fit(page)
    loss = model.loss(pixels_of(fitted.image)[None], [model.encode(fitted, page.questions[0])]).mean()
    gradient = torch.autograd.grad(loss, [p for _, p in trainable(model.module)], allow_unused=True)
    plan = LocalPlan(batch_size=1, learning_rate=0.125, weight_decay=0.0, optimiser="sgd", dropout=False)
    update = run(model, [page], plan).update
    for (name, p), value in zip(trainable(model.module), gradient, strict=True):
        expected = np.zeros(p.shape) if value is None else value.numpy()
        np.testing.assert_allclose(update.delta[name] / 0.125, expected, atol=2e-5, rtol=2e-3)


def test_adams_decay_is_part_of_the_gradient_and_adamws_is_not(model: DocumentModel, pages: list) -> None:
    """One step by hand: Adam's first is lr (g + wd theta) / (|g + wd theta| + 1e-8), AdamW's lr g / (|g| + 1e-8) +
    lr wd theta. A number whose gradient is 0 moves by a whole step under Adam, by lr wd theta under AdamW."""
    page = replace(pages[0], questions=pages[0].questions[:1])
    fitted = model.fit(page)
    loss = model.loss(pixels_of(fitted.image)[None], [model.encode(fitted, page.questions[0])]).mean()
    named = list(trainable(model.module))
    gradient = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
    start, rate, decay = parameters_of(model), 0.01, 0.1
    plan = LocalPlan(batch_size=1, learning_rate=rate, weight_decay=decay, dropout=False, max_steps=1)
    still = 0
    for kind in ("adam", "adamw"):
        set_parameters(model, start)
        update = run(model, [page], replace(plan, optimiser=kind)).update
        for (name, _), value in zip(named, gradient, strict=True):
            if value is None:
                continue
            theta, g = start[name].astype(np.float64), value.numpy().astype(np.float64)
            whole = g + decay * theta if kind == "adam" else g
            step = rate * whole / (np.abs(whole) + 1e-8) + (rate * decay * theta if kind == "adamw" else 0.0)
            clear = (np.abs(whole) > 1e-5) | (value.numpy() == 0)
            np.testing.assert_allclose(update.delta[name][clear], step[clear], atol=2e-5, rtol=1e-3, err_msg=kind)
            still += int((value.numpy() == 0).sum())
    assert still > 1000, "rows that nothing looks up"


def test_a_large_model_takes_a_batch_in_parts_with_the_same_gradient(
    model: DocumentModel, pages: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, plan = parameters_of(model), replace(PLAN, batch_size=7, max_steps=1, optimiser="sgd", weight_decay=0.0)
    whole, calls, forward = run(model, pages, plan), [], model.loss
    monkeypatch.setattr("docleak.training.federated.local.LARGE", 1)
    monkeypatch.setattr("docleak.training.federated.local.AT_ONCE", 700)
    monkeypatch.setattr(type(model), "loss", lambda _, *given: calls.append(given) or forward(*given))
    set_parameters(model, start)
    parts = run(model, pages, plan)
    assert sum(len(inputs) for _, inputs, _ in calls) == 7 and 1 < len(calls) < 7
    assert all(len(pixels) == len(set(owners)) == max(owners) + 1 for pixels, _, owners in calls)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6) and parts.batches == whole.batches
    for name, delta in whole.update.delta.items():
        np.testing.assert_allclose(parts.update.delta[name], delta, atol=1e-6)


def test_parts_of_a_batch_count_padding_and_patches() -> None:
    inputs = [Encoded({"ids": torch.zeros(length, dtype=torch.long)}) for length in (10, 10, 50, 10, 10, 500)]
    pixels = torch.zeros(2, 3, 32, 48)  # six patches
    assert parts_of(inputs, pixels, 112) == [(0, 2), (2, 4), (4, 5), (5, 6)]
    assert parts_of(inputs, pixels, 10_000) == [(0, 6)] and parts_of(inputs, pixels, 1)[-1] == (5, 6)
    long = [Encoded({"ids": torch.zeros(length, dtype=torch.long)}) for length in (1_100, 1_100, 600, 600, 600, 600)]
    assert parts_of(long, pixels, 4_096) == [(0, 1), (1, 2), (2, 6)], "attention grows with the square"


def test_a_round_of_one_client_moves_the_server_to_its_model(model: DocumentModel, pages: list) -> None:
    state = ServerState.of(parameters_of(model))
    update = run(model, pages).update
    after = step(state, [update], FedOpt())
    for name, value in parameters_of(model).items():
        np.testing.assert_allclose(after.parameters[name], value, atol=1e-7)


def test_dropout_leaves_torchs_generator_alone(pages: list) -> None:
    model = load_model("donut-start")
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    run(model, pages[:1], replace(PLAN, dropout=True, max_steps=1))
    assert torch.rand(1) == expected and not model.module.training


def test_bad_clients_and_plans(model: DocumentModel, pages: list) -> None:
    with pytest.raises(FederationError, match="client 'silo' has 0 pages and no question"):
        run(model, [])
    with pytest.raises(FederationError, match="known: adamw, adam, sgd"):
        LocalPlan(optimiser="lion")
    with pytest.raises(FederationError, match=r"epochs is 0.*learning_rate is nan"):
        LocalPlan(epochs=0, learning_rate=float("nan"))
    arrays = parameters_of(model)
    name = next(iter(arrays))
    with pytest.raises(FederationError, match="Server and silo must use the same model"):
        set_parameters(model, {key: value for key, value in arrays.items() if key != name})
    with pytest.raises(FederationError, match="has shape"):
        set_parameters(model, {**arrays, name: np.zeros((1, 2, 3), np.float32)})
    with torch.no_grad():
        next(p for _, p in trainable(model.module)).fill_(float("nan"))
    named = r"the loss of step 1 is nan: the model itself has weights that are NaN or infinite, in 1 tensor, first "
    with pytest.raises(FederationError, match=named):
        run(model, pages)
    with torch.no_grad():
        next(p for _, p in trainable(model.module)).fill_(1e30)
    with pytest.raises(FederationError, match=r"the loss of step [12] is nan. Lower the learning rate"):
        run(model, pages)


def test_a_round_reads_a_page_once_and_its_update_does_not_depend_on_that(
    model: DocumentModel, pages: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    class Counted(list):
        def __getitem__(self, number):
            read.append(number)
            return super().__getitem__(number)

    before, plan = parameters_of(model), LocalPlan(batch_size=2, epochs=2, dropout=False)
    kept = run(model, Counted(pages), plan)
    steps = len(kept.batches)
    assert sorted(read) == [0, 0, 1, 1, 2, 2] and steps > 3  # for its questions, then for its pixels
    set_parameters(model, before)
    read.clear()
    monkeypatch.setattr("docleak.training.federated.local.KEPT", 224 * 224 * 3)  # room for one page
    without = run(model, Counted(pages), plan)
    counts = sorted(read.count(number) for number in range(3))
    assert counts[0] == 2 < counts[1]
    for name, delta in kept.update.delta.items():
        np.testing.assert_array_equal(delta, without.update.delta[name])
