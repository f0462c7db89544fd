"""Question and answer out of real Donut gradients; and gradients that do not give them away."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from docleak.attacks.gradients import GradientView
from docleak.attacks.gradients.algebra.donut import _Reading, _Tables, recover_text
from docleak.attacks.gradients.algebra.layernorm import MEDIAN_SQUARE, ROUNDING, NormInputs
from docleak.attacks.gradients.algebra.peeling import (
    Mixture,
    Residue,
    _Field,
    _Level,
    assign,
    contested,
    dense_rank,
    dense_rows,
    mismatch,
    residue,
)
from docleak.attacks.gradients.algebra.recovered import Recovered
from docleak.documents import Question
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models import DocumentModel, Encoded, load_model, pixels_of
from docleak.models.base import plain_ids
from docleak.models.donut import Donut
from docleak.models.tiny import donut_start
from docleak.studies.gradient.case import Case, build_case
from docleak.studies.gradient.config import Exposure
from docleak.training.update import client_gradient

POSITIONS = "decoder.model.decoder.embed_positions.weight"
WORDS = "decoder.model.decoder.embed_tokens.weight"
WIDTH = 96  # of the tiny Donuts


@pytest.fixture(scope="module")
def models() -> dict[str, DocumentModel]:
    return {name: load_model(name) for name in ("donut-start", "donut-trained")}


def client(model: DocumentModel, page: int = 0, **exposure: Any) -> Case:
    made = make_pages(page + 1, seed=0, size=model.image_size)[page]
    return build_case(model, [model.fit(made)], Exposure(**exposure), seed=page)


@pytest.fixture(scope="module")
def case(models: dict[str, DocumentModel]) -> Case:
    return client(models["donut-start"])


def changed(view: GradientView, change: Callable[[str, Tensor], Tensor]) -> GradientView:
    return replace(view, gradient={name: change(name, value) for name, value in view.gradient.items()})


def noisy(view: GradientView, sigma: float) -> GradientView:
    generator = torch.Generator().manual_seed(1)
    return changed(view, lambda _, value: value + sigma * torch.randn(value.shape, generator=generator))


def text_of(small: Any, question: str, answer: str) -> Encoded:
    """A question and an answer about the small page, as the client's model reads them."""
    example: Encoded = small.model.encode(small.pages[0], Question(question, (answer,), "total"))
    return example


def view_of(model: DocumentModel, small: Any, example: Encoded) -> GradientView:
    return GradientView(model, client_gradient(model, small.pixels, [example]))


def assert_same_text(found: Recovered, true: Encoded) -> None:
    (example,) = found.inputs
    assert example.tokens == true.tokens
    assert example.tensors.keys() == true.tensors.keys()
    for name, value in true.tensors.items():
        assert example.tensors[name].dtype == value.dtype and example.tensors[name].device == value.device, name
        assert torch.equal(example.tensors[name], value), name


def share_right(found: Recovered, true: Encoded) -> float:
    ids, reading = true.tensors["decoder_input_ids"], found.inputs[0].tensors["decoder_input_ids"]
    count = min(len(ids), len(reading))
    return float((ids[:count] == reading[:count]).sum()) / len(ids)


def condition(found: Recovered, part: str) -> Any:
    (one,) = [c for c in found.conditions if part in c.name]
    return one


@pytest.mark.parametrize("name", ["donut-start", "donut-trained"])
@pytest.mark.parametrize("train_mode", [False, True])
def test_every_token_at_its_position(name: str, train_mode: bool, models: dict[str, DocumentModel]) -> None:
    for page in range(4):
        case = client(models[name], page, train_mode=train_mode)
        recovered = recover_text(case.view)
        assert_same_text(recovered, case.inputs[0])
        assert recovered.exact, recovered.conditions
        assert recovered.pixels is None and recovered.seconds < 20
        assert condition(recovered, "one token fits").found.startswith(f"{len(case.inputs[0].tensors['labels'])} of ")


@pytest.mark.parametrize(("draw", "ahead"), [(0, 0.0), (7, 0.0), (8, 0.0), (15, 0.0), (0, 5.0), (1, 5.0)])
def test_tokens_that_chance_lets_pass_are_told_apart(
    draw: int, ahead: float, models: dict[str, DocumentModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trained model's answer leaves less than its rank in the output layer, and what is spare takes up an error; also
    where the positions alone would settle for the wrong token (``ahead`` of the right one, in log-odds)."""
    model = models["donut-trained"]
    page = model.fit(make_pages(1, seed=3, size=model.image_size)[0])
    question = Question("Which company issued the receipt?", ("TEO HENG STATIONERY & BOOKS",))
    case = build_case(model, [replace(page, questions=(question,))], Exposure(), seed=0)
    true, generator, costs = case.inputs[0].tensors["decoder_input_ids"], np.random.default_rng(draw), _Tables.costs
    plain = plain_ids(model.tokenizer)  # type: ignore[attr-defined]

    def passing(tables: _Tables, signal: NormInputs) -> Tensor:
        told = costs(tables, signal)
        for place in generator.integers(38, len(true) - 1, 2):
            told[place, plain[generator.integers(len(plain))]] = told[place, true[place]] - ahead - generator.random()
        return told

    monkeypatch.setattr(_Tables, "costs", passing)
    recovered = recover_text(case.view)
    assert_same_text(recovered, case.inputs[0])
    assert recovered.exact, recovered.conditions
    assert condition(recovered, "chance lets pass").found.startswith("the nearest rival leaves ")


def test_the_recovered_text_gives_the_same_gradient(case: Case) -> None:
    """Labels and prompt are right too: with the true page they reproduce what the client sent."""
    again = client_gradient(case.view.model, case.pixels, recover_text(case.view).inputs)
    for name, value in case.view.gradient.items():
        torch.testing.assert_close(again[name], value, rtol=1e-4, atol=1e-7)


def test_it_draws_no_randomness_and_changes_nothing(case: Case) -> None:
    before, gradient = torch.get_rng_state(), {name: value.clone() for name, value in case.view.gradient.items()}
    view = noisy(case.view, 1e-5)
    first, second = recover_text(view), recover_text(view)
    assert first.conditions == second.conditions and first.inputs[0].tokens == second.inputs[0].tokens
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(case.view.gradient[name], value) for name, value in gradient.items())


def test_a_weight_delta_tells_the_same(case: Case) -> None:
    """What a client sends after one step of SGD: its gradient times minus the learning rate."""
    recovered = recover_text(changed(case.view, lambda _, value: -3e-3 * value))
    assert_same_text(recovered, case.inputs[0])
    assert recovered.exact, recovered.conditions


def test_an_output_layer_of_its_own(small: Any) -> None:
    model = donut_start(seed=1, size=small.model.image_size)
    head = model.module.decoder.lm_head
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    example = text_of(small, "What is the total?", "EUR 1,234.56")
    recovered = recover_text(view_of(model, small, example))
    assert_same_text(recovered, example)
    assert recovered.exact and condition(recovered, "serves the input only").holds


def test_more_tokens_than_the_width(small: Any) -> None:
    example = text_of(
        small, "Which amount stands at the very bottom of this page, all taxes and tips included, in euros?", "42.00"
    )
    assert len(example.tensors["labels"]) > WIDTH
    recovered = recover_text(view_of(small.model, small, example))
    assert_same_text(recovered, example)
    assert recovered.exact, recovered.conditions


def test_an_answer_longer_than_the_width_leaves_the_positions_alone_to_tell(small: Any) -> None:
    example = text_of(small, "All?", "the quick brown fox jumps over 13 lazy dogs; " * 2 + "sphinx of black quartz")
    assert int((example.tensors["labels"] >= 0).sum()) > WIDTH
    recovered = recover_text(view_of(small.model, small, example))
    assert share_right(recovered, example) >= 0.98
    assert not condition(recovered, "fewer answer tokens").holds


def test_the_position_table_alone_is_nearly_enough(case: Case) -> None:
    recovered = recover_text(replace(case.view, gradient={POSITIONS: case.view.gradient[POSITIONS]}))
    assert share_right(recovered, case.inputs[0]) > 0.95
    assert not condition(recovered, "token table sent").holds


@pytest.mark.parametrize(("sigma", "least"), [(1e-6, 1.0), (1e-5, 1.0), (1e-4, 0.9)])
def test_noise_that_leaves_the_text_readable(case: Case, sigma: float, least: float) -> None:
    recovered = recover_text(noisy(case.view, sigma))
    assert share_right(recovered, case.inputs[0]) >= least
    assert not recovered.exact or least == 1.0


def test_noise_that_hides_the_text(case: Case) -> None:
    recovered = recover_text(noisy(case.view, 1e-2))
    assert not recovered.exact, "the adversary knows that it failed"
    assert share_right(recovered, case.inputs[0]) < 0.5
    assert not condition(recovered, "times its noise").holds


def test_noise_that_hides_every_position(case: Case) -> None:
    with pytest.raises(AttackError, match=r"no row .* rises above the noise"):
        recover_text(noisy(case.view, 10.0))


def test_without_the_position_table(case: Case) -> None:
    gradient = {name: value for name, value in case.view.gradient.items() if name != POSITIONS}
    with pytest.raises(AttackError, match=f"needs the gradient of {POSITIONS}.*{WORDS}"):
        recover_text(replace(case.view, gradient=gradient))


def test_a_position_table_of_zeros(case: Case) -> None:
    """A client that froze the table and sent zeros for it."""
    view = changed(case.view, lambda name, value: torch.zeros_like(value) if name == POSITIONS else value)
    with pytest.raises(AttackError, match="no text to read"):
        recover_text(view)


def test_several_examples(make_small: Callable[..., Any]) -> None:
    two = make_small("42", "17")
    with pytest.raises(AttackError, match="over 2 examples"):
        recover_text(two.view)
    assert not recover_text(replace(two.view, batch_size=1)).exact, "the batch size was misstated"


def test_other_models() -> None:
    with pytest.raises(AttackError, match="no Donut"):
        recover_text(client(load_model("layoutlmv3-start")).view)


def with_prompt(model: Any, prompt: str) -> Donut:
    return Donut(model.module, model.tokenizer, image_size=model.image_size, name=model.name, prompt=prompt)


def test_a_client_with_another_prompt(small: Any) -> None:
    """The tokens are read all the same; the adversary sees that its idea of the prompt is wrong."""
    other = with_prompt(small.model, "<s_docvqa><s_answer>{question}</s_answer><s_question>")
    example = other.encode(small.pages[0], small.pages[0].questions[0])
    recovered = recover_text(view_of(small.model, small, example))
    assert not recovered.exact
    assert not condition(recovered, "in their places").holds
    assert_same_text(recovered, example)
    told = recover_text(view_of(other, small, example))
    assert told.exact, told.conditions
    assert_same_text(told, example)


@pytest.mark.parametrize("prompt", ["<s_docvqa><s_answer>", "<s_docvqa><s_question>{question}"])
def test_a_prompt_that_does_not_show_where_the_answer_begins(prompt: str, small: Any) -> None:
    with pytest.raises(AttackError, match="no fixed text after the question"):
        recover_text(GradientView(with_prompt(small.model, prompt), small.view.gradient))


def test_a_token_table_that_does_not_fit_the_positions(case: Case) -> None:
    """Two rows exchanged: each position's own test still tells its token, but the belief must go."""
    tokens = case.view.model.tokenizer.convert_tokens_to_ids(["e", "x"])  # type: ignore[attr-defined]

    def exchanged(name: str, value: Tensor) -> Tensor:
        value = value.clone()
        if name == WORDS:
            value[tokens] = value[tokens[::-1]]
        return value

    recovered = recover_text(changed(case.view, exchanged))
    assert not recovered.exact


def normed(count: int, width: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Candidates, places, chosen tokens and the gradient at the input of a LayerNorm, of a random loss."""
    generator = torch.Generator().manual_seed(seed)
    candidates, places = torch.randn(500, width, generator=generator), torch.randn(count, width, generator=generator)
    tokens = torch.randint(500, (count,), generator=generator)
    inputs = (2 * candidates[tokens] + places).requires_grad_(True)
    out = torch.nn.functional.layer_norm(inputs, (width,), torch.rand(width, generator=generator) + 0.5)
    loss = (out * torch.randn(count, width, generator=generator)).sin().sum()
    return candidates, places, tokens, torch.autograd.grad(loss, inputs)[0]


def test_the_gradient_at_a_layernorms_input_is_orthogonal_to_it() -> None:
    candidates, places, tokens, gradient = normed(40, 64, seed=0)
    signal = NormInputs.of(torch.cat([gradient, torch.zeros(10, 64)]), torch.zeros(2, 64))
    assert (signal.count, signal.unused, signal.noise) == (40, 10, 0.0) and signal.rounding < 1e-6
    costs = signal.costs(candidates, places, scale=2.0, epsilon=1e-5)
    assert float((costs.argmin(1) == tokens).double().mean()) > 0.95
    wrong_scale = signal.costs(candidates, places, scale=1.0, epsilon=1e-5)
    assert float((wrong_scale.argmin(1) == tokens).double().mean()) < 0.1


def test_noise_is_measured_where_no_position_is() -> None:
    _, _, _, gradient = normed(40, 64, seed=1)
    noise = 1e-3 * torch.randn(102, 64, generator=torch.Generator().manual_seed(2))
    rows = torch.cat([gradient, torch.zeros(60, 64)]) + noise[:100]
    signal = NormInputs.of(rows, noise[100:])
    assert signal.count == 40
    assert signal.noise == pytest.approx(1e-3, rel=0.05)
    rounded = NormInputs.of(torch.cat([gradient.bfloat16().float(), torch.zeros(60, 64)]), torch.zeros(2, 64))
    assert 1e-4 < rounded.rounding < 1e-2, "bfloat16 keeps 8 bits"


def planted(rank: int, seed: int = 0) -> tuple[Mixture, Tensor]:
    """G = 3 Aᵀ Δ + W with 30 positions, 400 tokens, width 64 and noise 1e-4; the last ``rank`` positions are labels."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    deltas, hidden = draw(30, 64) / 8, draw(rank, 64)
    tokens = torch.randint(400, (30,), generator=generator)
    shares = draw(400, rank).softmax(0)
    shares[tokens[30 - rank :], torch.arange(rank)] -= 1
    rows = shares @ hidden + 1e-4 * draw(400, 64)
    rows.index_add_(0, tokens, 3 * deltas)
    return Mixture(rows, deltas, 3.0, variance=1e-8, blur=1e-12, rank=rank, first_label=30 - rank), tokens


@pytest.mark.parametrize("rank", [0, 8])
def test_peeling_tells_tokens_without_any_other_hint(rank: int) -> None:
    mixture, tokens = planted(rank)
    belief = assign(mixture, torch.zeros(30, 400, dtype=torch.float64))
    torch.testing.assert_close(belief.sum(1), torch.ones(30, dtype=torch.float64))
    assert torch.equal(belief.argmax(1), tokens)
    assert dense_rank(mixture, tokens) == rank


def test_rivals_are_tried_and_the_one_that_leaves_least_stands() -> None:
    """Nine of ten deltas tell their tokens; the last is zero, so that any token there leaves the same."""
    generator = torch.Generator().manual_seed(0)
    true = torch.randint(40, (10,), generator=generator)
    deltas = torch.randn(10, 16, generator=generator, dtype=torch.float64)
    deltas[9] = 0.0
    rows = torch.zeros(40, 16, dtype=torch.float64).index_add(0, true, deltas)
    mixture = Mixture(rows, deltas, 1.0, 1e-12, 0.0)

    def left(tokens: Tensor) -> Residue:
        return residue(mixture, tokens, torch.full((40,), 4e-6, dtype=torch.float64))

    wrong = true.clone()
    wrong[[2, 5]] = (true[[2, 5]] + 1) % 40
    rivals = [(t, int(v)) for t in (2, 5) for v in (true[t], wrong[t], (true[t] + 2) % 40)]
    tokens, times = contested(wrong, rivals, left)
    assert torch.equal(tokens, true) and times > 1e3
    assert contested(true, [], left)[1] == math.inf
    tokens, times = contested(true, [(9, (int(true[9]) + 1) % 40)], left)
    assert torch.equal(tokens, true) and times == 1.0, "nothing tells them apart"


def test_peeling_keeps_to_what_is_excluded() -> None:
    mixture, tokens = planted(8)
    costs = torch.zeros(30, 400, dtype=torch.float64)
    costs[5, tokens[5]] = torch.inf
    assert assign(mixture, costs)[5, tokens[5]] == 0


@pytest.mark.parametrize("rank", [0, 8])
def test_one_wrong_token_is_left_over(rank: int) -> None:
    mixture, tokens = planted(rank)
    noise = torch.full((400,), 1e-4 * 8, dtype=torch.float64)
    right = residue(mixture, tokens, noise)
    assert right.largest_row < 1.5 and right.next < 5 and (rank == 0 or right.last > 5 * right.next)
    wrong = tokens.clone()
    wrong[3] = (wrong[3] + 1) % 400
    assert residue(mixture, wrong, noise).largest_row > 10


def test_the_view_may_hold_more_positions_than_the_text_uses(models: dict[str, DocumentModel]) -> None:
    """The number of tokens is read off, not given: a longer and a shorter question of one page."""
    model = models["donut-start"]
    page = model.fit(make_pages(1, seed=0, size=model.image_size)[0])
    for asked in ("No?", page.questions[0].text + " Please answer in one word."):
        example = model.encode(page, Question(asked, ("7",), "total"))
        gradient = client_gradient(model, pixels_of(page.image)[None], [example])
        assert_same_text(recover_text(GradientView(model, gradient)), example)


def test_how_large_the_largest_row_may_be_by_hand() -> None:
    signal: Any = SimpleNamespace(deltas=torch.zeros(5, 50))
    reading = _Reading(signal, None, torch.zeros(5, 200), None, None, True)  # type: ignore[arg-type]
    assert reading.tolerance == pytest.approx(1 + (1 + math.sqrt(2 * math.log(200))) / 10)
    largest = torch.randn(400, 200, 50, generator=torch.Generator().manual_seed(0)).square().mean(2).sqrt().amax(1)
    assert float((largest <= reading.tolerance).float().mean()) > 0.8, "rows of nothing but noise stay below it"
    assert float(largest.mean()) > 1 + math.sqrt(2 * math.log(200)) / 10 - 0.1, "and it is not far above them"


@pytest.mark.parametrize(("length", "clear"), [(1.05, True), (0.95, False)])
def test_a_position_is_clear_at_ten_times_the_length_of_its_noise(length: float, clear: bool) -> None:
    """Noise of 0.01 in each of 64 numbers is 0.08 long; the weakest of three positions decides."""
    deltas = torch.zeros(3, 64)
    deltas[:, 5] = torch.tensor([2.0, 0.8 * length, 1.0])
    signal: Any = SimpleNamespace(deltas=deltas, noise=0.01, count=3, unused=7)
    condition = _Reading(signal, None, torch.zeros(3, 9), None, None, True)._clear()  # type: ignore[arg-type]
    assert condition.holds == clear and "noise 8.0e-02" in condition.found


def test_rounding_is_read_off_the_sums_of_rows_by_hand() -> None:
    """Three rows of lengths 1, 3 and 9 that add up to 0 but for 0.001, 0.002 and 0.003 times the root of the width."""
    rows = torch.zeros(5, 16, dtype=torch.float64)
    rows[:3, 0] = torch.tensor([1.0, 3.0, 9.0]) / math.sqrt(2)
    rows[:3, 1] = -rows[:3, 0]
    rows[:3] += torch.tensor([[0.001], [0.002], [0.003]]) / 4
    signal = NormInputs.of(rows, torch.zeros(2, 16))
    assert (signal.count, signal.noise) == (3, 0.0)
    assert signal.rounding == pytest.approx(ROUNDING + 0.002 / math.sqrt(MEDIAN_SQUARE) / 3, rel=1e-3)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_costs_of_candidates_by_hand(noise: float) -> None:
    """-log of a Gaussian where the noise is larger than rounding, of a Cauchy where it is not."""
    draw = torch.Generator().manual_seed(0)
    deltas, places = (torch.randn(3, 8, generator=draw, dtype=torch.float64) for _ in range(2))
    candidates = torch.randn(5, 8, generator=draw, dtype=torch.float64)
    deltas -= deltas.mean(1, keepdim=True)
    costs = NormInputs(deltas, noise, 1e-3, 4).costs(candidates, places, scale=2.0, epsilon=0.01)
    for t in range(3):
        for v in range(5):
            normed = 2 * candidates[v] + places[t]
            normed = normed - normed.mean()
            size = float(normed.square().sum())
            off = float(deltas[t] @ normed) ** 2 / size
            rounding = float(deltas[t].square().sum()) * (1e-3 + 0.03 * 0.01 / (size / 8 + 0.01)) ** 2
            odds = off / (noise**2 + rounding)
            assert float(costs[t, v]) == pytest.approx(odds / 2 if noise else math.log1p(odds), rel=1e-6)


def beliefs(seed: int) -> tuple[Mixture, Tensor, Tensor]:
    """A mixture of 4 positions and 7 tokens in 6 numbers, with a dense part of rank 2; a belief (4, 7); costs."""
    draw = torch.Generator().manual_seed(seed)
    rows, deltas, costs = (torch.randn(n, d, generator=draw, dtype=torch.float64) for n, d in ((7, 6), (4, 6), (4, 7)))
    belief = torch.full((4, 7), 1e-3, dtype=torch.float64)
    for position, token, share in ((0, 0, 0.9), (1, 1, 0.7), (2, 2, 0.99), (3, 3, 0.8), (1, 4, 0.3), (3, 0, 0.2)):
        belief[position, token] = share
    return Mixture(rows, deltas, 1.5, 0.5, 0.2, rank=2, first_label=3), belief, costs


def test_a_positions_belief_is_renewed_as_bayes_has_it() -> None:
    """Without a dense part: the row of every token with and without the position, given the mean of all others."""
    mixture, belief, costs = beliefs(0)
    mixture = replace(mixture, rank=0)
    field, expected = _Field(mixture, costs, belief, _Level(0.4, 0.0, False)), belief.clone()
    for t in (0, 1, 2, 3, 2, 0):
        log = torch.zeros(7, dtype=torch.float64)
        for v in range(7):
            left, variance = mixture.rows[v].clone(), 0.4 + 0.5 + 0.2
            for s in (s for s in range(4) if s != t):
                p = float(expected[s, v])
                left -= 1.5 * p * mixture.deltas[s]
                variance += p * 0.2 + p * (1 - p) * 1.5**2 * float(mixture.deltas[s].square().mean())
            here = left - 1.5 * mixture.deltas[t]
            log[v] = float(left.square().sum() - here.square().sum()) / (2 * variance) - costs[t, v]
        change = field._update(t)
        assert change == pytest.approx(float((log.softmax(0) - expected[t]).abs().max()), abs=1e-9)
        expected[t] = log.softmax(0)
        torch.testing.assert_close(field.belief, expected, atol=1e-9, rtol=0)


def test_the_dense_part_shows_in_rows_of_labels_and_of_no_position() -> None:
    mixture, belief, _ = beliefs(1)
    doubt = mixture.doubt(belief).sum(0)
    rows = [3, 4, 5, 6]  # 3 is the one label; 0, 1 and 2 belong to positions that are none
    left = torch.stack([
        (mixture.rows[v] - 1.5 * sum(float(belief[t, v]) * mixture.deltas[t] for t in range(4)))
        / math.sqrt(0.5 + float(doubt[v])) for v in rows
    ])  # fmt: skip
    space = torch.linalg.svd(left)[2][:2]
    basis = dense_rows(mixture, belief, robust=False)
    torch.testing.assert_close(basis.T @ basis, space.T @ space, atol=1e-9, rtol=0)

    field = _Field(mixture, torch.zeros(4, 7), belief, _Level(0.4, 0.0, False))
    unused = mixture.left(belief)[[4, 5, 6]]
    usual = (unused @ basis.T).square().mean(0)
    scaled = 1.5 * mixture.deltas
    seen = scaled - (scaled @ basis.T * (usual / (usual + 0.4 + 0.5 + 0.2))) @ basis
    torch.testing.assert_close(field.overlap[0], scaled @ seen.T, atol=1e-9, rtol=0)
    torch.testing.assert_close(field.overlap[1], scaled @ (scaled - scaled @ basis.T @ basis).T, atol=1e-9, rtol=0)


def test_how_badly_a_position_explains_a_row_by_hand() -> None:
    """Mean square of the difference over that of the best position, or of noise and blur where that is smaller."""
    mixture, _, costs = beliefs(2)
    mixture = replace(mixture, rank=0)
    mixture.rows[5] = 1.5 * mixture.deltas[2]
    misfits = mismatch(mixture, costs, torch.tensor([1, 5]))
    for column, token in enumerate((1, 5)):
        far = [float((mixture.rows[token] - 1.5 * mixture.deltas[t]).square().mean()) for t in range(4)]
        best = max(min(far), 0.5 + 0.2)
        assert misfits[:, column].tolist() == pytest.approx([max(d / best - 1, 0.0) * 3 for d in far])
