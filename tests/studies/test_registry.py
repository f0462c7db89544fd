"""Joining the readings of several runs into one page."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from docleak.runs.run import Run
from docleak.studies import registry


def test_all_but_the_first_kind_or_question_are_read_briefly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, bool]] = []

    def read(runs: list[Run], rng: object, *, beside: bool = False) -> Any:
        told.append((len(runs), beside))

    monkeypatch.setattr(
        registry, "load_study", lambda kind: SimpleNamespace(read=read, asks=lambda run: run.path.name == "3")
    )
    runs = [Run.open(tmp_path / str(number), {}, kind=kind) for number, kind in enumerate(("a", "b", "a", "a"))]
    registry.read_runs(runs)
    assert told == [(2, False), (1, True), (1, True)]


def test_naming_another_run_hides_no_run_within_one(tmp_path: Path) -> None:
    for name in ("first", "first/weights", "second"):
        Run.open(tmp_path / name, {}, kind="weights" if "/" in name else "gradient")
    alone = registry.runs_at([tmp_path / "first"])
    both = registry.runs_at([tmp_path / "first", tmp_path / "second", tmp_path / "first" / "weights"])
    assert [run.path.name for run in alone] == ["first", "weights"]
    assert [run.path.name for run in both] == ["first", "second", "weights"]
