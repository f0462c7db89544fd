"""The example study, from outside the package: carried out, killed and resumed, joined with another run, as a frame."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import docleak
from docleak.errors import DocleakError, RunError
from docleak.studies.engine import begin, carry_out

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(EXAMPLES)])}
SCRIPT = "import docleak\nfrom projection_residual import ProjectionStudy\n"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("projection_residual")


def test_pages_of_the_batch_are_told_from_others(example: ModuleType, tmp_path: Path) -> None:
    """The members' gradients lie in the update's row space to rounding; the others' do not."""
    study = example.ProjectionStudy(example.ProjectionConfig(pages=16))
    results = docleak.load_run(carry_out(study, tmp_path / "run").path)
    frame = results.to_frame()
    inside = frame["member"].astype(bool)
    assert len(frame) == 16 and inside.sum() == 8
    assert frame["residual"][inside].max() < 1e-4 < 1e-2 < frame["residual"][~inside].min()
    row = results.tables()["projection"].iloc[0]
    assert row["auc"] == 1 and row["auc_low"] < 1 and row["auc_n"] == 16
    assert "Pages told apart" in results.verdict.label
    page = results.report().read_text()
    assert "Honest-but-curious server that suspects a page" in page and "AUC" in page


def test_what_cannot_be_measured_is_refused_before_anything_is_written(example: ModuleType, tmp_path: Path) -> None:
    for settings, said in (({"layer": "no.such.weight"}, "trains no matrix"), ({"count": 3}, "0 rounds of 2 x 2")):
        with pytest.raises(DocleakError, match=said):
            docleak.audit(study=example.ProjectionStudy, out=tmp_path / "run", **settings)
        assert not list((tmp_path / "run").glob("units/*"))


def test_a_killed_run_goes_on(example: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code = SCRIPT + f"docleak.audit(study=ProjectionStudy, count=16, out={str(out)!r})"
    process = subprocess.Popen([sys.executable, "-c", code], env=ENVIRONMENT)
    until = time.monotonic() + 120
    while len(list(out.glob("units/*/unit.json"))) < 2 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {file: file.stat().st_mtime_ns for file in out.glob("units/*/unit.json")}
    assert len(before) >= 2
    said: list[str] = []
    results = docleak.audit(study=example.ProjectionStudy, count=16, out=out, say=said.append)
    assert len(results.to_frame()) == 16 and len(said) == 16 - len(before)
    assert all(file.stat().st_mtime_ns == then for file, then in before.items())


def test_docleak_report_joins_it_with_other_runs(example: ModuleType, tmp_path: Path) -> None:
    """By the command line, which is told the study: files of a run are data, and name no code to carry out."""
    for batch_size in (1, 2):
        docleak.audit(study=example.ProjectionStudy, count=8, batch_size=batch_size, out=tmp_path / str(batch_size))
    command = [sys.executable, "-c", "from docleak.cli import main; main()", "report", "1", "2", "--out", "both"]
    run = subprocess.run(command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False)
    named = "--study projection_residual:ProjectionStudy"
    assert run.returncode == 1 and named in run.stderr and not (tmp_path / "both").exists()
    command += named.split()
    run = subprocess.run(command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    page = (tmp_path / "both" / "report.html").read_text()
    assert "batches of 1" in page and "batches of 2" in page
    joined = docleak.load_run([tmp_path / "1", tmp_path / "2"])
    assert set(joined.to_frame()["run"]) == {str(tmp_path / "1"), str(tmp_path / "2")}
    assert [part.said for part in joined.verdict.parts] == ["Could not tell"] * 2  # of so few pages


def test_a_study_whose_code_was_changed_is_not_resumed(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is a helper that its ``compute`` calls; the same code goes on."""
    text = Path(str(example.__file__)).read_text().replace("float(residual)", "scaled(float(residual))", 1)
    text += "\n\ndef scaled(value: float) -> float:\n    return value\n"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def study(code: str) -> Any:
        (tmp_path / "somebodys.py").write_text(code.replace("projection_residual:", "somebodys:"))
        monkeypatch.delitem(sys.modules, "somebodys", raising=False)
        return importlib.import_module("somebodys").ProjectionStudy

    settings = {"count": 4, "batch_size": 1}
    first = docleak.audit(study=study(text), out=tmp_path / "run", **settings).to_frame()
    again = docleak.audit(study=study(text), out=tmp_path / "run", **settings).to_frame()
    assert list(first["residual"]) == list(again["residual"])
    other = study(text.replace("return value", "return 2 * value"))
    with pytest.raises(RunError, match=r"or of other code:\n  - code of somebodys:ProjectionStudy"):
        docleak.audit(study=other, out=tmp_path / "run", **settings)


def test_fields_that_a_configuration_adds_count(example: ModuleType, tmp_path: Path) -> None:
    """Of a subclass of the study's own configuration, too."""

    @dataclass(frozen=True)
    class Scaled(example.ProjectionConfig):  # type: ignore[name-defined, misc]
        scale: float = 1.0

    runs = [begin(example.ProjectionStudy(Scaled(scale=scale)), tmp_path / str(scale)) for scale in (1.0, 100.0)]
    assert [run.config["scale"] for run in runs] == [1.0, 100.0]
    assert runs[0].config["object"].endswith("Scaled")
