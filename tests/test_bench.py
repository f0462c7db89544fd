"""``python -m bench``: every benchmark is run by it, and those that are named are merged into what is there."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT)
    from bench import __main__, secure

    monkeypatch.setattr(secure, "PARAMETERS", 1_000)
    monkeypatch.setattr(secure, "ROUNDS", 1)
    return __main__


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_benchmark_is_called(bench: Any) -> None:
    there = {path.stem for path in (ROOT / "bench").glob("*.py")} - {"__main__"}
    assert set(bench.PARTS) == there and set(bench.APART) < there
    lacking = [name for name in bench.PARTS if not {"measure", "as_markdown"} <= functions(ROOT / f"bench/{name}.py")]
    assert not lacking, "as python -m bench calls them"


def test_a_part_is_measured_and_the_others_kept(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (ROOT / "docs" / "results" / "bench.json").read_bytes()
    (tmp_path / "bench.json").write_bytes(before)
    bench.main(["secure"], results=tmp_path)
    parts, kept = json.loads((tmp_path / "bench.json").read_text()), json.loads(before)
    assert {name: part for name, part in parts.items() if name != "secure"} == {
        name: part for name, part in kept.items() if name != "secure"
    }
    assert parts["secure"]["numbers"]["parameters"] == 1_000 and parts["secure"]["environment"]["commit"]
    assert list(parts) == [name for name in bench.PARTS if name in parts], "the page's order"
    page = (tmp_path / "bench.md").read_text()
    assert capsys.readouterr().out.strip() == page.strip()
    assert "1000 parameters" in page and page.count("\n## ") == len(parts)
    bench.main(["secure"], results=tmp_path / "new")
    assert set(bench.read(tmp_path / "new")) == {"secure"}


def test_a_game_is_trained_before_its_time_is_taken(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import cdmi

    for name, least in {"FIELDS": 2, "ATTEMPTS": 1, "CANDIDATES": 2, "EPOCHS": 1, "WORKERS": 1}.items():
        monkeypatch.setattr(cdmi, name, least)
    measured = cdmi.measure()
    assert measured["fields"] == 2 and measured["minutes"] > 0 and "2 | 1 | 2 | 1 |" in cdmi.as_markdown(measured)


def test_an_evaluation_is_measured_on_the_device_that_is_there(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import accelerator

    sizes = {"small": ("layoutlmv3-start", None, False, 2), "recomputed": ("donut-start", (96, 112), True, 1)}
    monkeypatch.setattr(accelerator, "SIZES", sizes)
    monkeypatch.setattr(accelerator, "SIDE", 512)
    small, again = (accelerator.of_size(size, "float32", device="cpu") for size in sizes)
    assert small["seconds"] > 0 and small["gflop"] > 1 and 0.2 < small["products_share"] < 1 and small["moved"] < 1e-6
    assert again["gflop"] == 0, "recomputed layers are not counted"
    before = torch.backends.cudnn.allow_tf32
    with accelerator.precision("tf32"):
        assert torch.backends.cudnn.allow_tf32 and torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before and not torch.backends.cuda.matmul.allow_tf32
    page = accelerator.as_markdown({"small, float32": small, "recomputed, float32": again})
    assert "| small | 224 x 224 | float32 |" in page and "recomputed | float32" in page


def test_the_committed_page_is_of_the_committed_numbers(bench: Any) -> None:
    results = ROOT / "docs" / "results"
    assert (results / "bench.md").read_text() == bench.as_markdown(bench.read(results))


def test_the_league_is_of_the_committed_numbers(bench: Any) -> None:
    from scripts import league

    results = ROOT / "docs" / "results"
    assert (results / "league.md").read_text() == league.page_of(results)
    assert [league.verdict(*ends) for ends in ((0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1), (None, None))] == [
        "won", "lost", "cannot tell", "cannot tell"
    ]  # fmt: skip


def test_what_is_no_benchmark_is_refused(bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.main(["secure", "speed"], results=tmp_path)
    assert "no benchmark 'speed'; there are startup" in capsys.readouterr().err and not list(tmp_path.iterdir())
    (tmp_path / "bench.json").write_text('{"documents": {"cold": 1}}')
    with pytest.raises(SystemExit, match="expected environment and numbers by part"):
        bench.main(["secure"], results=tmp_path)
    run = subprocess.run(
        [sys.executable, "-m", "bench", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "federated" in run.stdout
