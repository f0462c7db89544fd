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
