"""``docleak audit updates``: captures that are none, and what reports say of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from docleak.cli import main
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.runs.run import Run
from docleak.training.federated.capture import write_update


def said(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["docleak", "audit", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    return capsys.readouterr().err


def test_a_folder_that_is_no_capture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(["updates", str(tmp_path)], monkeypatch, capsys)
    assert "no capture: it has no capture.json" in text and "docleak.tap" in text


def test_a_capture_has_no_options_of_a_gradient_that_is_computed(
    command: Callable[..., tuple[Any, str, str]], tmp_path: Path
) -> None:
    for words in (("--stages", "vision"), ("--rounds", "2")):
        code, _, err = command("audit", "updates", tmp_path, *words)
        assert code == 2 and "No such option" in err
    for words in ((), ("u", "--before", "a", "--after", "b"), ("--before", "a"), ("--after", "b")):
        code, _, err = command("audit", "updates", *words)
        assert code == 1 and "before and after" in " ".join(err.split()) and "expected" in err
    code, _, err = command("audit", "updates", tmp_path, "--steps", "many")
    assert code == 1 and "--steps is 'many'; expected numbers" in err


def test_what_is_about_pictures_is_refused_where_updates_are_masked(
    command: Callable[..., tuple[Any, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    masked = SimpleNamespace(ours={"secure": True})
    monkeypatch.setattr("docleak.training.federated.capture.read_updates", lambda path: [masked])
    code, _, err = command("audit", "updates", "capture", "--steps", "1,2", "--budget", "9")
    assert code == 1 and "--steps, --budget belong to updates that the server sees one by one" in err.replace(
        "--budget, --steps", "--steps, --budget"
    )


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


def test_all_that_is_lacking_is_asked_for_at_once(command: Callable[..., tuple[Any, str, str]], tmp_path: Path) -> None:
    """The model, and the pages of clients for whom the folder has none; nothing is begun."""
    start = {"w": np.zeros(2, np.float32)}
    for client in ("7000", "7001"):
        write_update(tmp_path / "updates", round=1, client=client, start=start, received={"w": start["w"] + 1},
                     kind="weights", examples=1, details={"partition-id": int(client) - 7000})  # fmt: skip
    save(make_pages(1, seed=0), tmp_path / "pages" / "0")
    code, _, err = command("audit", "updates", "updates", "--documents", "pages")
    assert code == 1 and "the audit lacks" in err and "--model: nothing says which model was trained" in err
    assert "client 7001: pages holds folders of pages (0), none of them called '7001' or '1'" in err
    assert "--client 7001=FOLDER" in err and "client 7000:" not in err
    code, _, err = command("audit", "updates", "updates", "--client", "7001=")
    assert code == 1 and "expected ID, or ID=FOLDER" in err
    assert not (tmp_path / "docleak-audit").exists()
