"""The planner's answers against measured ones, what decides them, and what closes a channel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from docleak.errors import PrivacyError
from docleak.privacy.channels import Shape, State, as_text, plan
from scripts.plan_measured import compared, compared_picture

OPEN = Shape(width=1024, words=200, patches=100, rank=16, rounds=9, tower_width=1152)


def states(shape: Shape) -> list[State]:
    return [channel.state for channel in plan(shape)]


def test_ranks_and_widths_decide() -> None:
    assert states(OPEN) == [State.OPEN] * 3
    assert states(replace(OPEN, rounds=1))[:2] == [State.CLOSED, State.UNTOLD]
    assert states(replace(OPEN, pages=4)) == [State.UNTOLD, State.UNTOLD, State.CLOSED]
    assert states(replace(OPEN, adapted=0))[:2] == [State.CLOSED, State.UNTOLD]
    assert states(replace(OPEN, frozen_a=True))[:2] == [State.CLOSED, State.UNTOLD]
    assert states(replace(OPEN, rounds=1, rank=128))[:2] == [State.UNTOLD] * 2
    assert states(replace(OPEN, frozen_a=True, rank=128))[:2] == [State.UNTOLD] * 2
    assert states(replace(OPEN, tower_width=128))[2] is State.CLOSED
    assert states(replace(OPEN, tiles=4))[2] is State.CLOSED
    assert set(states(replace(OPEN, aggregation="dp"))) == {State.UNTOLD}
    assert states(replace(OPEN, rank=0, table=True, optimiser="adamw", pages=64))[0] is State.OPEN


@pytest.mark.parametrize(("rank", "state", "said"), [
    (8, State.CLOSED, "of 91 behind rank 8 no word was read, on one model"),
    (9, State.UNTOLD, "nothing was measured between"),
    (31, State.UNTOLD, "nothing was measured between"),
    (32, State.UNTOLD, "of 91 behind rank 32 17 of 28 words were read, on one model"),
])  # fmt: skip
def test_an_a_that_does_not_move_closes_words_only_as_far_as_was_measured(rank: int, state: State, said: str) -> None:
    """No number of docs/results/ours/adapters.md is about the page then."""
    words, page, _ = plan(Shape(words=28, patches=63, rank=rank, frozen_a=True))
    assert words.state is state and words.condition.endswith(said)
    assert page.state is State.UNTOLD and page.condition.endswith("not measured") and page.basis == "nothing known"


@pytest.mark.parametrize(("clients", "basis"), [(4, "measured"), (16, "measured"), (10, "nothing known")])
def test_what_was_measured_of_a_page_in_a_sum_is_said(clients: int, basis: str) -> None:
    page = plan(Shape(aggregation="secure", clients=clients))[1]
    assert page.state is State.UNTOLD and page.basis == basis
    table = (Path(__file__).parents[2] / "docs/results/ours/adapters.md").read_text(encoding="utf-8")
    for count, own, nearest in ((4, "0.001", "0.007"), (16, "0.003", "0.004")):
        (row,) = [line for line in table.splitlines() if line.startswith(f"| secure aggregation of {count} |")]
        assert f"| {own}, {nearest} |" in row and f"{count} clients" in page.condition
        assert own in page.condition and nearest in page.condition
    assert "one tiny model" in page.condition
    assert ("was not measured" in page.condition) is (clients == 10)


def test_of_whole_weights_no_words_and_pages_are_closed() -> None:
    """A token table tied to the output layer, norms and what lies behind the attention are sent, too."""
    for shape in (Shape(rank=0, pages=64), Shape(rank=0, adapted=0), Shape(rank=0, width=64, optimiser="adamw")):
        words, page, picture = plan(shape)
        assert words.state is page.state is picture.state is State.UNTOLD
        assert "weights" in words.condition and words.basis == "nothing known"
    assert states(Shape(rank=0))[:2] == [State.OPEN] * 2
    assert states(Shape(rank=0, tower_width=128))[2] is State.CLOSED
    assert plan(Shape(rank=0))[0].change.startswith("nothing here")


def test_a_trained_token_table_is_open_beside_adapters() -> None:
    words = plan(replace(OPEN, table=True, frozen_a=True, pages=64))[0]
    assert words.state is State.OPEN and "token table" in words.condition


def test_what_is_said_where_everything_lies_in_the_span() -> None:
    words, page, _ = plan(OPEN)
    for channel in (words, page):
        assert "all of them in its span" in channel.condition and "inf" not in channel.condition


def test_what_several_steps_on_one_page_show_of_its_picture() -> None:
    """Steps of SGD add up to one system; a step of AdamW may be inverted, several are not."""
    seen = {(kind, steps): states(replace(OPEN, optimiser=kind, local_steps=steps))[2]
            for kind in ("sgd", "adamw") for steps in (1, 3)}  # fmt: skip
    assert seen["sgd", 1] is seen["sgd", 3] is State.OPEN
    assert seen["adamw", 1] is State.UNTOLD and seen["adamw", 3] is State.CLOSED
    assert states(replace(OPEN, tower_width=128, optimiser="adamw"))[2] is State.CLOSED
    assert states(replace(OPEN, precision="bfloat16"))[2] is State.UNTOLD


def test_what_closes_a_channel_closes_it() -> None:
    words, page, picture = plan(OPEN)
    assert words.change.startswith("freeze LoRA's A (measured: A is frozen") and "on one model" in words.change
    assert picture.change.startswith("freeze the tower (algebra: ")
    assert page.change.startswith("nothing here")
    (table, *_) = plan(replace(OPEN, rank=0, table=True))
    assert table.change.startswith("nothing here; differential privacy bounds it")
    assert "closed by: nothing here" in as_text((table,))
    assert plan(replace(OPEN, table=True, adapted=0))[0].change.startswith("freeze the token table (algebra: ")
    assert plan(replace(OPEN, table=True))[0].change.startswith("freeze the token table and freeze LoRA's A (measured")
    assert plan(replace(OPEN, rank=0, table=True, aggregation="dp"))[0].state is State.UNTOLD


def test_what_was_not_measured_is_named_and_nothing_else() -> None:
    half, steps = replace(OPEN, precision="bfloat16"), replace(OPEN, rank=0, local_steps=2)
    assert plan(half)[0].condition.endswith("; not measured: bfloat16")
    assert plan(steps)[0].condition.endswith("; not measured: several steps on whole weights")


def test_pages_are_counted_as_if_they_shared_no_word_and_that_is_said() -> None:
    wide = replace(OPEN, width=20_000)
    several = plan(replace(wide, pages=64))[0]
    assert "if 64 pages share no word or patch" in several.condition
    assert "share" not in plan(wide)[0].condition


def test_all_faults_are_said_at_once() -> None:
    with pytest.raises(PrivacyError, match=r"width is 0.*optimiser is 'lion'.*"):
        Shape(width=0, optimiser="lion")


def test_open_and_closed_are_so_on_configurations_drawn_at_random() -> None:
    """The first of the two hundred in docs/results/plan.md."""
    rows = [row for seed in range(24) for row in compared(seed)]
    answered = [row for row in rows if row[1] is not State.UNTOLD]
    wrong = [(name, said, shape) for name, said, opened, shape, _ in answered if (said is State.OPEN) != opened]
    assert len(answered) >= 8 and len(wrong) <= 0.1 * len(answered), wrong


def test_pictures_are_open_where_the_plan_says_so() -> None:
    rows = [compared_picture(seed) for seed in range(3, 11)]
    answered = [(said, opened) for _, said, opened, _, _ in rows if said is not State.UNTOLD]
    assert len({said for said, _ in answered}) == 2 and all((said is State.OPEN) == opened for said, opened in answered)
