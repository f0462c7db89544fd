"""``docleak train central --unit record``, and what a private training says about delta and shared providers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., tuple[Any, str, str]]
SMALL = ("--pages", 10, "--rounds", 2, "--unit-rate", 0.2, "--denominator", 4, "--delta", 1e-3)


def test_records_are_protected_and_what_is_not_is_said(command: Command, tmp_path: Path) -> None:
    code, out, err = command("train", "central", "--unit", "record", "--epsilon", 8, *SMALL, "--out", "run", "--json")
    assert code == 0, err
    value = json.loads(out)
    kept = json.loads((tmp_path / "run" / "units" / "training" / "unit.json").read_text())
    assert value == {name: kept[name] for name in value}
    assert 7.9 < value["epsilon_per_record"] <= 8 and value["epsilon_by_opacus"] == pytest.approx(8, rel=0.02)
    assert "not a provider" in value["claim"] and value["most_records_of_a_provider"] > 1
    assert len(value["loss_kept_before_and_after"]) == 2
    assert command("train", "central", "--unit", "record", "--noise", 1, *SMALL, "--out", "run")[0] == 1, "it is spent"
    code, out, err = command("report", "run")
    assert code == 0 and "steps over" in out and "not a provider" in out, err
    code, out, err = command(
        "train", "central", "--unit", "record", "--noise", 2, *SMALL, "--model", tmp_path / "run" / "model",
        "--holdout", 0, "--delta", 0.5, "--out", "again",
    )  # fmt: skip
    assert code == 0 and "not measured" in out and "Warning: delta 0.5 is not below 1/" in err, err
    assert "delta 0.5 is not below 1/" in out, "beside the claim, too"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--objective", "tm", "--optimiser", "sgd"), "no --optimiser, --objective"),
        (("--capture",), "no --capture"),
        (("--denominator", 0), "the denominator is 0"),
    ],
)
def test_records_what_is_refused(command: Command, words: tuple[object, ...], said: str) -> None:
    code, _, err = command("train", "central", "--unit", "record", "--noise", 1, *SMALL, *words)
    assert code == 1 and said in err


def test_federations_do_not_draw_records(command: Command) -> None:
    code, _, err = command("train", "federated", "--unit", "record", "--noise", 1, "--denominator", 2)
    assert code == 1 and "docleak train central --unit record" in err


def test_delta_is_judged_by_the_providers_there_are_and_shared_ones_are_refused(
    command: Command, tmp_path: Path
) -> None:
    small = ("--clients", 2, "--documents", 12, "--rounds", 1, "--max-steps", 1, "--noise", 1, "--denominator", 2)
    code, _, err = command("train", "federated", *small, "--delta", 0.3, "--out", "run")
    assert code == 0 and "Warning: delta 0.3 is not below 1/" in err and "one provider" in err, err
    (tmp_path / "policy.toml").write_text('[[rule]]\nmeasure = "epsilon-claimed"\nat_most = 1e9\n')
    code, out, _ = command("check", "run", "--policy", "policy.toml")
    assert code == 2 and "but: Of about 4 providers, by the plan's public numbers, delta 0.3 is not below 1/4" in out
    first, second = sorted((tmp_path / "run" / "silos").iterdir())[:2]
    shutil.rmtree(second)
    shutil.copytree(first, second)
    code, _, err = command(
        "train", "federated", "--silos", tmp_path / "run" / "silos", *small[4:], "--out", "again"
    )  # fmt: skip
    assert code == 1 and "every provider must be in one client only" in err, err
