"""``docleak attack canaries``: both lines, and what cannot be asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., tuple[Any, str, str]]


def test_both_trainings_are_bounded_and_compared(command: Command, tmp_path: Path) -> None:
    code, out, err = command("attack", "canaries", "--canaries", "18", "--others", "2", "--rounds", "2", "--unit-rate",
                             "1", "--every-round", "--json")  # fmt: skip
    assert code == 0, err
    value = json.loads(out)
    assert value["audits"] == json.loads((tmp_path / "docleak-canaries" / "results.json").read_text())["audits"]
    bare, private = value["audits"]["without noise"], value["audits"]["epsilon 8"]
    assert bare["right"]["weights"] == 12 and bare["epsilon_claimed"] is None
    assert 0 < bare["epsilon_at_least"] < 3 and private["epsilon_at_least"] <= private["epsilon_claimed"] <= 8
    assert "after every round" in private["threat"] and "2 rounds" in private["claim"]


def test_people_read_both_lines(command: Command) -> None:
    code, out, err = command("attack", "canaries", "--canaries", "6", "--others", "2", "--epsilon", "1",
                             "--delta", "0.2")  # fmt: skip
    assert code == 0 and "Warning: delta 0.2 is not below 1/8" in err, err
    assert "claimed: " in out and "delta 0.2 is not below 1/8" in out, "beside the claim, too"
    assert "Training without noise" in out and "Training epsilon 1" in out
    assert out.count("measured, by weights: epsilon at least") == 2 and out.count("claimed:") == 2
    assert "\n  canaries " in command("attack", "--list")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--epsilon", "0"), "--epsilon is 0.0"),
        (("--canaries", "5000"), "5000 canaries and 8 others"),
        (("--guesses", "97"), "no more than canaries"),
        (("--unit-rate", "often"), "expected a probability"),
    ],
)
def test_what_cannot_be_asked(command: Command, words: tuple[str, ...], said: str) -> None:
    code, _, err = command("attack", "canaries", *words)
    assert code == 1 and said in err
