"""``docleak plan``: of which models its verdict holds, and what it refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from docleak.models.vlm.tiny import make_tiny


@pytest.fixture
def plan(command: Any) -> Any:
    """Exit code, standard output and standard error of ``docleak plan WORDS``."""
    return partial(command, "plan")


def test_it_says_of_which_models_its_verdict_holds(plan: Any) -> None:
    code, out, _ = plan("--width", 128, "--vocabulary", 1200)
    assert code == 0 and "decoder of pictures and words" in out.splitlines()[0]
    assert "LayoutLMv3" in out and "docleak audit gradient" in out
    held = json.loads(plan("--json")[1])["holds_for"]
    assert "decoder of pictures and words" in held and "LayoutLMv3" in held


def test_it_says_what_it_took_for_granted(plan: Any, command: Any) -> None:
    assert "Not said, so taken to be: --width 1024, --vocabulary 32000, --words 200" in plan()[1]
    _, out, _ = plan("--rank", 8, "--pages", 1, "--optimiser", "sgd")
    (line,) = (line for line in out.splitlines() if line.startswith("Not said"))
    assert "--rounds 10" in line and "no --table" in line
    assert not any(f"--{name} " in line for name in ("rank", "pages", "optimiser", "clients", "tiles"))
    assert json.loads(plan("--rounds", 3, "--json")[1])["not_said"].keys().isdisjoint({"rounds", "clients"})
    _, out, _ = command("budget", "--epsilon", 4)
    assert (
        "Not said, so taken to be: --rounds 10, --rate 1000/4149, --client-rate 1, --delta 1e-05, --unit provider"
        in out
    )
    _, out, _ = command(
        "budget",
        "--noise",
        1,
        "--rounds",
        3,
        "--delta",
        1e-4,
        "--unit",
        "client",
        "--relation",
        "add-or-remove-one",
        "--client-rate",
        1,
        "--json",
    )
    assert json.loads(out)["not_said"] == {}


def test_it_says_to_whom_closed_is_closed(plan: Any) -> None:
    said = "Open or closed is about the exact attacks of docleak: what is closed to them may be open to others."
    assert said in plan("--rounds", 1)[1].splitlines()
    assert json.loads(plan("--json")[1])["assumes"] == said


@pytest.mark.parametrize("words", [
    ("--width", 128, "--vocabulary", 1200, "--words", 25, "--patches", 196),
    ("--width", 96, "--vocabulary", 1300, "--words", 60, "--optimiser", "adamw"),
    ("--pages", 64),
    ("--adapted", 0),
])  # fmt: skip
def test_no_full_fine_tuning_is_called_closed(plan: Any, words: tuple[Any, ...]) -> None:
    """An encoder-decoder trained whole, by whose numbers plan had said closed, gives everything away."""
    code, out, _ = plan("--rank", 0, *words, "--json")
    states = {channel["name"]: channel["state"] for channel in json.loads(out)["channels"]}
    assert code == 0 and "closed" not in states.values(), states
    assert "no adapters" not in plan("--rank", 0, *words)[1]


@pytest.mark.parametrize("model", ["layoutlmv3-start", "vt5-start", "donut-start"])
def test_another_architecture_is_sent_to_the_audits(plan: Any, model: str) -> None:
    code, out, told = plan("--model", model)
    assert code == 1 and not out
    assert "docleak audit gradient" in told and "docleak audit updates" in told and "nothing of" in told
    assert "--width" not in told


@pytest.mark.parametrize(("words", "said"), [
    (("--rank", 0, "--frozen-a"), "--frozen-a belongs to adapters"),
    (("--adapted", 0, "--frozen-a"), "--frozen-a belongs to adapters"),
    (("--tower-patches", 100), "--tower-patches belongs to a trained tower (--tower-width"),
    (("--tiles", 4), "--tiles belongs to a trained tower"),
    (("--clients", 50), "--clients belongs to --aggregation secure"),
    (("--clients", 50, "--aggregation", "dp"), "--clients belongs to --aggregation secure"),
])  # fmt: skip
def test_what_would_change_nothing_is_refused(plan: Any, words: tuple[Any, ...], said: str) -> None:
    code, out, told = plan(*words)
    assert code == 1 and not out and said in told


def test_a_models_own_tower_takes_patches_beside_it(plan: Any, tmp_path: Path) -> None:
    make_tiny("llava", tmp_path / "base", seed=0)
    assert plan("--model", "base", "--tower-patches", 20)[0] == 0
    assert plan("--aggregation", "secure", "--clients", 50)[0] == 0
