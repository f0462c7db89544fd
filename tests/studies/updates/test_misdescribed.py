"""Captures of somebody else's Flower app, described wrongly: no all-clear, and the true cause is named."""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from docleak.report.page import joined
from docleak.report.severity import Severity
from docleak.studies.registry import report_on
from docleak.studies.updates import sight
from docleak.studies.updates.verdict import severity_of

pytest.importorskip("flwr")
SCRIPT = Path(__file__).parents[3] / "scripts" / "misdescribed_captures.py"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("misdescribed_captures", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


captures = _script()


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sight, "_engine", lambda name: captures.NothingRead())
    logging.getLogger("flwr").setLevel(logging.ERROR)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = captures.write_model(tmp_path_factory.mktemp("model"))
    return folder


def audited(case: Any, model: Path, folder: Path, optimiser: str) -> tuple[dict[str, Any], str, str, dict[str, Any]]:
    """The first client's record, the terminal's text, the page, and results.json."""
    record, run = captures.audited(case, optimiser, model, folder)
    page, (said,) = report_on([run.path])
    results = json.loads((run.path / "results.json").read_text())
    return record, "\n".join([joined([said]).sentence, *said.lines]), page.read_text(), results


@pytest.mark.parametrize("optimiser", ["sgd", pytest.param("adamw", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", captures.CASES, ids=lambda case: str(case.name))
def test_what_is_misdescribed_is_no_all_clear_and_its_cause_is_named(
    case: Any, optimiser: str, model: Path, tmp_path: Path
) -> None:
    record, text, page, results = audited(case, model, tmp_path, optimiser)
    severity = severity_of(record)
    assert severity is not Severity.NONE and severity is not Severity.UNMEASURED
    for said in (text, page, json.dumps(results)):
        assert "No field read" not in said and severity.label in said
    causes = record["check"]["causes"]
    assert case.cause in [cause["key"] for cause in causes[:2]]
    assert captures.row_of(case, optimiser, record)[-1] == "yes"
    assert "ossible causes, the most probable first" in text and causes[0]["sentence"] in text
    assert "--train-mode" not in text
    if case.name in ("pages", "swapped"):
        assert severity is Severity.UNTOLD, "what others' pages share with these is no leak"
    if case.name in ("order", "dropout", "padding"):
        assert severity is Severity.SEVERE, "the words are read, whatever the self-test says"


@pytest.mark.parametrize("case", captures.CONTROLS, ids=lambda case: str(case.name))
def test_what_is_rightly_described_has_no_alarm_and_its_words_are_read(case: Any, model: Path, tmp_path: Path) -> None:
    record, text, _, results = audited(case, model, tmp_path, "adamw" if case.name == "as described" else "sgd")
    assert record["check"]["doubts"] == record["check"]["causes"] == []
    assert record["check"]["self_test"]["passed"]
    assert record["words"]["precision"] == record["words"]["recall"] == 1.0
    assert results["updates"][0]["severity"] == "severe" and results["verdict"]["label"] == "Severe leak"
    assert text.startswith("All tokens of ")
