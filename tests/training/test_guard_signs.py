"""The guard: what it sees in weights, in changes and in a gradient, and that it remembers only what it let through."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from docleak.errors import PrivacyError
from docleak.training.guard.guard import LAST, Guard, inspect
from docleak.training.guard.signs import bare, of_gradient, of_weights

WIDTH = 24


def network(seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def only(opinion: object, *words: str) -> None:
    reasons = opinion.reasons  # type: ignore[attr-defined]
    assert len(reasons) == len(words), reasons
    assert all(word in reason for word, reason in zip(words, reasons, strict=True)), reasons


def test_an_honest_step_passes_and_bins_zeros_leaps_and_additions_do_not() -> None:
    last = weights(network())
    step = {name: value + 0.01 * torch.randn(value.shape) for name, value in last.items()}
    assert not inspect(step, last).refused and not inspect(step).refused
    bins = {**step, "0.weight": step["0.weight"][:1].expand(64, -1).clone()}
    only(inspect(bins), "two directions")
    only(inspect({**step, "2.weight": torch.zeros(WIDTH, 64)}, last), "all zeros")
    only(inspect({**step, "0.weight": 30 * step["0.weight"]}, last), "moved by")
    only(
        inspect({**step, "imprint.bias": torch.zeros(3)}, last),
        "built otherwise: it has 1 tensor that the last model had not, first imprint.bias",
    )
    only(inspect({**step, "0.bias": torch.zeros(63)}, last), "0.bias has shape (63,), and had (64,)")
    only(inspect({**step, "0.bias": torch.full((64,), torch.nan)}), "not finite")
    only(inspect({**step, "0.weight": 1e4 * step["0.weight"]}), "have length")
    adapters = {"q.lora_A.default.weight": torch.randn(8, 24), "q.lora_B.default.weight": torch.zeros(24, 8)}
    assert not inspect(adapters).refused  # they begin so


def test_what_is_next_to_nothing_is_silenced_as_what_is_nothing() -> None:
    """Attention scaled to 1e-12 let a server's traps read three times as many tokens, and passed a first round; a small
    matrix passed beside the last model, too, and so did norms that are zeros in a first round."""
    last = weights(network())
    usual = {**last, "1.weight": torch.ones(WIDTH), "1.bias": torch.zeros(WIDTH), "4.weight": 0.5 * last["2.weight"]}
    assert not inspect(usual).refused and not inspect(usual, usual).refused
    only(inspect({**usual, "4.weight": 1e-12 * last["2.weight"]}), "all zeros, or next to it, in 1 of its tensors")
    only(inspect({**usual, "4.weight": 1e-12 * last["2.weight"]}, usual), "next to it, in 1 of its tensors, first 4.w")
    only(inspect({**usual, "1.weight": torch.zeros(WIDTH)}), "first 1.weight")
    begun = {**last, "layers.0.norm.weight": torch.zeros(WIDTH), "layers.1.norm.weight": torch.zeros(WIDTH)}
    assert not inspect(begun).refused, "Gemma's norms, to which 1 is added, begin so"
    for other in ("layers.1.norm.weight", "layers.1.after.weight"):  # all of a kind: Llama's before attention
        only(inspect({**begun, other: torch.ones(WIDTH)}), "first layers.0.norm.weight")


def test_what_comes_out_as_no_number_is_no_all_clear() -> None:
    last = weights(network())
    broken = {**last, "0.weight": last["0.weight"].clone()}
    broken["0.weight"][0, 0] = torch.nan
    only(inspect(last, broken), "the sign 'leap' could not be told of 0.weight")
    module = network()
    with torch.no_grad():
        module[2].bias.fill_(1e38)  # finite, and neither a matrix nor loud: only the loss tells
    inputs = torch.randn(4, WIDTH)
    opinion = inspect(weights(module), module=module, loss=lambda: module(inputs).square().sum())
    only(opinion, "the sign 'bare' could not be told:")
    assert np.isnan(opinion.signs[-1].value)
    assert "NaN" not in json.dumps(opinion.to_json()), "which is no JSON"


def test_bare_counts_the_inputs_that_a_gradient_shows_as_they_are() -> None:
    inputs = torch.randn(40, WIDTH, dtype=torch.float64)
    dense = torch.randn(40, 64, dtype=torch.float64)
    assert bare(inputs, dense) == 0
    alone = torch.zeros(40, 64, dtype=torch.float64)
    alone[torch.arange(12), torch.arange(12)] = 1.0  # rows 0 to 11 are one input each
    assert bare(inputs, alone) == 12
    cumulative = torch.ones(40, 40, dtype=torch.float64).tril()  # row k is the sum of inputs k and after
    assert bare(inputs, cumulative) == 39 or bare(inputs, cumulative) == 40
    assert bare(inputs[:1].expand(40, -1), alone) <= 1  # the same input counts once
    assert bare(inputs[:4], alone[:4]) == 0  # too few to say anything
    wide = torch.cat([torch.randn(40, 2200, dtype=torch.float64), alone], 1)
    assert bare(inputs, wide) == 12, "rows behind the first 2,048 were not looked at: real layers have 3,072 and more"


def test_rows_that_are_small_beside_others_are_read_all_the_same() -> None:
    """Traps that pass on a ten-millionth of what ordinary rows do had no input counted: 34 of 63 tokens of a page came
    back from a tiny LayoutLMv3 whose ``bare`` was 0."""
    torch.manual_seed(1)
    inputs, alone = torch.randn(40, WIDTH), torch.zeros(40, 12)
    alone[torch.arange(12), torch.arange(12)] = 1e-7
    ordinary = torch.randn(40, 52)
    assert bare(inputs, torch.cat([alone, ordinary], 1)) == 12
    assert bare(inputs, torch.cat([ordinary, torch.zeros(40, 12)], 1)) == 0
    cancelling = ordinary[:, :1] + torch.cumsum(1e-9 * alone.sign(), 1)  # differences below rounding cannot be read
    assert bare(inputs, cancelling) == 0


def test_one_vector_added_to_all_inputs_hides_none() -> None:
    """Who sets the bias of a layer norm makes all inputs alike, which counted once; the server takes it off again."""
    torch.manual_seed(1)
    inputs = torch.randn(40, WIDTH) + 6 * torch.ones(WIDTH)
    alone = torch.zeros(40, 64)
    alone[torch.arange(12), torch.arange(12)] = 1.0
    assert bare(inputs, alone) == 12
    assert bare(inputs, torch.randn(40, 64)) == 0
    assert bare(inputs[:1].expand(40, -1) + 1e-6 * torch.randn(40, WIDTH), torch.randn(40, 64)) <= 2


def test_what_is_silenced_step_by_step_is_silent_where_it_arrives() -> None:
    """Each step passed beside the last model: its own tenth is no leap of a small tensor, and no ten-thousandth."""
    last = weights(network())
    last = {**last, "4.weight": 0.5 * last["2.weight"]}
    guard, refused = Guard(), []
    for step in range(7):
        refused.append(guard.check({**last, "4.weight": 0.1**step * last["4.weight"]}).refused)
    assert refused == [False] * 4 + [True] * 3
    begun = {**last, "4.weight": 0 * last["4.weight"]}
    assert not inspect(begun, begun).refused, "the public checkpoint that a silo knows may hold zeros"


def test_a_gradient_is_tried_without_leaving_anything_behind() -> None:
    module = network()
    x = torch.randn(50, WIDTH)
    sign = of_gradient(module, lambda: module(x).square().mean())
    assert sign.value <= 2
    with torch.no_grad():  # traps: every row is passed by very few inputs
        module[0].weight.mul_(40)
        module[0].bias.copy_(-torch.quantile(x @ module[0].weight.T, 0.98, dim=0))
    caught = of_gradient(module, lambda: module(x).square().mean())
    assert caught.value > 10 and caught.where == "0"
    assert all(p.grad is None for p in module.parameters()) and not module[0]._forward_hooks
    only(inspect(weights(module), module=module, loss=lambda: module(x).square().mean()), "would come back as they are")


def test_a_guard_remembers_what_it_let_through_and_nothing_else(tmp_path: Path) -> None:
    guard, first = Guard(tmp_path / "kept"), weights(network())
    assert not guard.check(first).refused
    assert guard.check({name: 5 * value for name, value in first.items()}).refused
    again = Guard(tmp_path / "kept")
    assert again.last is not None and np.array_equal(again.last["0.weight"], first["0.weight"].numpy())
    assert not again.check({name: value.numpy() * 1.01 for name, value in first.items()}).refused
    with pytest.raises(PrivacyError, match=r"the guard refuses to train .* moved by"):
        again.check({name: -3 * value for name, value in first.items()}).require()
    (tmp_path / "kept" / LAST).write_bytes(b"no tensors")
    with pytest.raises(PrivacyError, match="without the last model no change can be seen"):
        Guard(tmp_path / "kept").check(first)


def test_a_trainer_asks_first() -> None:
    from docleak.training.guard.trainer import GuardCallback

    module = network()
    callback = GuardCallback(Guard(), loss=lambda model: model(torch.ones(30, WIDTH)).mean())
    callback.on_train_begin(None, None, None, model=module)
    assert callback.opinion is not None and not callback.opinion.refused
    with torch.no_grad():
        module[0].weight.zero_()
    with pytest.raises(PrivacyError, match="all zeros"):
        callback.on_train_begin(None, None, None, model=module)


def test_a_flower_client_is_not_reached_by_a_refused_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.supercore.task_identity import TaskIdentity

    from docleak.training.federated.flower.guard import guard_mod

    for name in ("task_id", "run_id", "node_id"):  # as in a process of Flower's, where messages are made
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    app = ClientApp(mods=[guard_mod(tmp_path / "guard")])
    reached = []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        reached.append(message)
        return Message(RecordDict({}), reply_to=message)

    def ask(arrays: dict[str, torch.Tensor]) -> Message:
        record = ArrayRecord({name: Array(value.numpy()) for name, value in arrays.items()})
        message = Message(RecordDict({"arrays": record}), dst_node_id=1, message_type="train")
        return app(message, Context(1, 1, {}, RecordDict({}), {}))

    first = weights(network())
    assert not ask(first).has_error() and len(reached) == 1
    reply = ask({name: 9 * value for name, value in first.items()})
    assert reply.has_error() and len(reached) == 1
    assert "guard" in reply.error.reason and "moved" not in reply.error.reason  # the reasons stay with the silo
    assert "moved by" in capsys.readouterr().out


def test_a_matrix_that_is_called_an_index_of_places_is_looked_at_all_the_same() -> None:
    """Names come from whoever sends the model."""
    crossed = torch.outer(torch.arange(1.0, 65.0), torch.ones(64))
    index = torch.arange(64 * 64).reshape(64, 64)
    signs = {sign.name: sign for sign in of_weights({"b.relative_position_index": crossed, "a.weight": torch.eye(64)})}
    assert signs["flat"].where == "b.relative_position_index" and signs["flat"].value > 0.99
    assert of_weights({"b.relative_position_index": index})[0].where == ""
