"""``docleak attack cdmi`` as a person runs it, and that gradient attacks keep their place beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from docleak.cli import main

QUICK = ["--pages=9", "--fields=2", "--attempts=2", "--candidates=5", "--epochs=1", "--workers=1", "--seed=4"]


def run(*words: str) -> int:
    sys.argv = ["docleak", "attack", *words]
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


@pytest.fixture(autouse=True)
def argv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])


def test_a_game_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "game"
    assert run("cdmi", *QUICK, "--task", "ee-bio", "--out", str(out)) == 0
    shown = capsys.readouterr()
    assert "weights of a model trained for ee-bio" in shown.out
    assert "IpF" in shown.out and "epsilon of IpF 0.001" in shown.out and "2 fields of" in shown.out
    assert "target model, epoch 1 of 1" in shown.err and "2 of 2" in shown.err
    assert run("cdmi", *QUICK, "--task", "ee-bio", "--out", str(out), "--json") == 0
    again = capsys.readouterr()
    value = json.loads(again.out)
    assert value["improvement_factor"]["n_fields"] == 2 and "epoch" not in again.err
    assert f"{value['improvement_factor']['value']:.3f}" in shown.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--task", "poetry"], "poetry"),
        (["--metric", "loudness"], "loudness"),
        (["--model", "layoutlm-tyni"], "layoutlm-tiny"),
        (["--documents", "nowhere"], "nowhere"),
        (["--task", "el"], "links between entities"),
        (["--top-p", "0"], "top_p is 0.0"),
    ],
)
def test_what_cannot_be_run_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run("cdmi", *QUICK, "--out", str(tmp_path / "o"), *words) == 1
    shown = capsys.readouterr()
    assert said in shown.err and "Traceback" not in shown.err


def test_gradient_attacks_are_still_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("gi-dqua") == 1
    assert "Did you mean 'gi-dqa'" in capsys.readouterr().err
    assert run("--list") == 0
    listed = capsys.readouterr().out
    assert "gi-dqa" in listed and "cdmi" in listed
