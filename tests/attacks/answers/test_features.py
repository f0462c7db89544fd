"""Features against a plain loop: means per provider, differences to the public model, what is missing or refused."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docleak.attacks.answers.features import GROUPS, Reply, provider_features
from docleak.errors import AttackError

UNIT = st.floats(0, 1)
OUTPUTS = st.tuples(st.sampled_from([0.0, 1.0]), UNIT, st.floats(0, 20), UNIT)


def reply(provider: str, number: int, outputs: tuple[float, float, float, float]) -> Reply:
    return Reply(provider, f"{provider}-{number // 2}", f"key{number % 2}", *outputs)


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.sampled_from("dacb"), st.lists(st.tuples(OUTPUTS, OUTPUTS), min_size=1, max_size=5), min_size=1),
    st.randoms(),
)
def test_a_row_is_what_a_loop_over_the_provider_gives(
    asked: dict[str, list[tuple[tuple[float, ...], tuple[float, ...]]]], shuffler: object
) -> None:
    target = [reply(name, i, pair[0]) for name, pairs in asked.items() for i, pair in enumerate(pairs)]  # type: ignore[arg-type]
    public = [reply(name, i, pair[1]) for name, pairs in asked.items() for i, pair in enumerate(pairs)]  # type: ignore[arg-type]
    memory = {name: (len(name) / 7, len(pairs) / 10) for name, pairs in asked.items()} | {"never asked": (1.0, 1.0)}
    for replies in (target, public):
        shuffler.shuffle(replies)  # type: ignore[attr-defined]
    table = provider_features(target, public, memory)
    assert table.providers == tuple(sorted(asked))
    assert table.questions.tolist() == [len(asked[name]) for name in sorted(asked)]
    for row, name in enumerate(table.providers):
        outputs = [[pair[which] for pair in asked[name]] for which in (0, 1)]
        for place, column in enumerate(("accuracy", "nls", "loss", "confidence")):
            before, after = (statistics.fmean([o[place] for o in outputs[which]]) for which in (1, 0))
            assert table.column(column)[row] == pytest.approx(after, abs=1e-9)
            if place >= 2:
                assert table.column(f"delta_{column}")[row] == pytest.approx(abs(after - before), abs=1e-9)
        assert table.column("nls_memory")[row] == memory[name][0]
        assert table.column("delta_nls_memory")[row] == memory[name][1]
    assert table.values.dtype == np.float64
    assert table.values.shape == (len(asked), 4 + 2 + 2)


def planted(questions: dict[str, int]) -> list[Reply]:
    return [reply(name, i, (1.0, 0.5, float(i), 0.25)) for name, number in questions.items() for i in range(number)]


def test_groups_choose_columns_in_the_papers_sense() -> None:
    replies = planted({"a": 1, "b": 3})
    table = provider_features(replies, replies, {"a": (0.1, 0.2), "b": (0.3, 0.4)})
    assert table.columns == tuple(name for group in GROUPS.values() for name in group)
    assert table.select(["G1"]).tolist() == [[1, 0.5], [1, 0.5]]
    assert table.select(["G2"]).tolist() == [[0, 0.25], [1, 0.25]]
    assert table.select(["G3"]).tolist() == [[0, 0], [0, 0]]
    assert table.select(["G4"]).tolist() == [[0.1, 0.2], [0.3, 0.4]]
    assert table.select(["G1", "G4"]).shape == (2, 4)


def test_more_than_s_questions_are_kept_not_s() -> None:
    table = provider_features(planted({"a": 5, "b": 6, "c": 1, "d": 11}))
    assert table.more_than(0).providers == ("a", "b", "c", "d")
    assert table.more_than(5).providers == ("b", "d")
    assert table.more_than(5).questions.tolist() == [6, 11]
    assert table.more_than(5).column("loss").tolist() == [2.5, 5.0]
    assert table.more_than(99).providers == ()


def test_rows_are_chosen_in_the_order_asked_for() -> None:
    table = provider_features(planted({"a": 1, "b": 2, "c": 3}))
    assert table.of(["c", "a"]).column("loss").tolist() == [1.0, 0.0]
    with pytest.raises(AttackError, match="1 of 2 providers have no row, such as 'z'"):
        table.of(["a", "z"])


def test_a_black_box_that_gives_text_only_has_g1_only() -> None:
    replies = [replace(r, loss=None, confidence=None) for r in planted({"a": 2, "b": 1})]
    table = provider_features(replies, replies)
    assert table.columns == GROUPS["G1"]
    with pytest.raises(AttackError, match="no loss, confidence"):
        table.select(["G1", "G2"])
    with pytest.raises(AttackError, match="1 replies have no loss"):
        provider_features([*planted({"a": 2}), replace(replies[0], confidence=0.5)])


def test_bad_input_is_refused() -> None:
    replies = planted({"a": 2, "b": 1})
    with pytest.raises(AttackError, match="no reply"):
        provider_features([])
    with pytest.raises(AttackError, match="3 and 2 questions that differ"):
        provider_features(replies, replies[:2])
    with pytest.raises(AttackError, match="4 and 3 questions"):
        provider_features([*replies, replies[0]], replies)
    with pytest.raises(AttackError, match="ask both the same"):
        provider_features(replies, [replace(replies[0], key="another"), *replies[1:]])
    with pytest.raises(AttackError, match="1 of 2 providers were not in the memorisation test, such as 'b'"):
        provider_features(replies, memory={"a": (0.0, 0.0)})
    table = provider_features(replies)
    for groups, words in ((["G5"], "G5"), ([], "none at all"), (["G4"], "memorisation test")):
        with pytest.raises(AttackError, match=words):
            table.select(groups)
    with pytest.raises(AttackError, match="no column 'delta_loss'"):
        table.column("delta_loss")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"accuracy": 0.5}, "accuracy"),
        ({"nls": 1.1}, "nls"),
        ({"nls": math.nan}, "nls"),
        ({"loss": -0.1}, "loss"),
        ({"loss": math.inf}, "loss"),
        ({"confidence": 2.0}, "confidence"),
        ({"nls": -1.0, "loss": math.nan}, "nls.*loss"),
    ],
)
def test_a_reply_outside_its_range_is_refused(change: dict[str, float], word: str) -> None:
    with pytest.raises(AttackError, match=word):
        replace(planted({"a": 1})[0], **change)  # type: ignore[arg-type]
