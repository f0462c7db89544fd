"""``docleak audit --updates``: what cannot be combined with it, and captures that are none."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docleak.cli import main
from docleak.runs.run import Run


def said(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["docleak", "audit", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    return capsys.readouterr().err


def test_what_says_how_a_gradient_is_computed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--updates", str(tmp_path), "--stages", "vision", "--batch-size", "2"]
    text = said(options, monkeypatch, capsys)
    assert "--batch-size, --stages cannot be combined with --updates" in text and "Leave them out" in text


def test_a_folder_that_is_no_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(["--updates", str(tmp_path)], monkeypatch, capsys)
    assert "no capture: it has no capture.json" in text and "docleak.tap" in text


def test_options_about_recorded_updates_want_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(["--client", "silo-a", "--round", "2", "--local", "optimiser=sgd"], monkeypatch, capsys)
    assert "--round, --client, --local belong to --updates" in text


def test_the_report_of_updates_is_not_joined(command: Callable[..., tuple[Any, str, str]], tmp_path: Path) -> None:
    for name in ("one", "two"):
        Run.open(tmp_path / name, {"updates": "u"}, kind="updates")
    code, _, text = command("report", "one", "two", "--out", "there")
    assert code == 1 and "report them one by one" in text
    assert not (tmp_path / "there").exists()


def test_the_report_of_updates_tells_machines_the_verdict(
    command: Callable[..., tuple[Any, str, str]], tmp_path: Path
) -> None:
    run = Run.open(tmp_path / "one", {"updates": "u"}, kind="updates")
    record = {"kind": "update", "round": 1, "client": "a", "sent": "weights", "examples": 1, "pages": 1, "steps": 1,
              "plan": {"batch_size": 1, "optimiser": "sgd", "learning_rate": 0.1, "weight_decay": 0.0},
              "dropout": False, "replay": {"distance": None, "why": "no seed"}, "masked": {"failed": "no seed"},
              "words": {"failed": "masked"}, "pictures": {"why": "masked"}}  # fmt: skip
    run.write_unit("a", record, {})
    code, out, err = command("report", "one", "--json")
    value = json.loads(out)
    assert code == 0 and value["verdict"]["severity"] == "untold" and value["verdict"]["label"] == "Could not tell", err
    assert [update["severity"] for update in value["updates"]] == ["untold"] and Path(value["results"]).is_file()
