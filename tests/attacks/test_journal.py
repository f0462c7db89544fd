"""A search that is cut off goes on where it was, to the very result that it would have had."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from docleak.attacks.gradients import ATTACKS, engine, journal, matching
from docleak.attacks.gradients.journal import Search
from docleak.runs.run import Run
from docleak.runs.searches import searches_in
from docleak.studies.engine import begin, carry_out
from docleak.studies.gradient.config import GradientConfig
from docleak.studies.gradient.study import GradientStudy

BUDGET = 40
Undisturbed = Callable[[str], tuple[Any, int]]


class Killed(BaseException):
    """As a process that ends."""


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "EVERY", 0.0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A mark for every gradient that is computed, true for those of the search."""
    asked: list[bool] = []
    dummy_of = matching.dummy_of

    def counted(*args: Any, create_graph: bool) -> Any:
        asked.append(create_graph)
        return dummy_of(*args, create_graph=create_graph)

    monkeypatch.setattr(engine, "dummy_of", counted)
    return asked


def attacked(name: str, small: Any, *, until: int = BUDGET) -> Any:
    """The attack, killed after so many evaluations."""

    def told(number: int, loss: float, pixels: torch.Tensor) -> None:
        if number >= until < BUDGET:
            raise Killed

    generator = torch.Generator().manual_seed(0)
    return ATTACKS.load(name).run(small.view, small.knowledge, budget=BUDGET, generator=generator, on_evaluation=told)


@pytest.fixture(scope="module")
def wholes() -> dict[str, tuple[Any, int]]:
    return {}


@pytest.fixture
def undisturbed(small: Any, asked: list[bool], wholes: dict[str, tuple[Any, int]]) -> Undisturbed:
    """What an attack finds if nobody kills it, and how many gradients its search takes; once for all tests."""

    def run(name: str) -> tuple[Any, int]:
        if name not in wholes:
            asked.clear()
            wholes[name] = attacked(name, small), sum(asked)
            asked.clear()
        return wholes[name]

    return run


@pytest.mark.parametrize("name", ["gi-dqa", "gi-dqa-adam", "dlg", "inverting-gradients", "april"])
def test_a_search_that_was_killed_twice_ends_as_if_undisturbed(
    name: str, small: Any, tmp_path: Path, asked: list[bool], undisturbed: Undisturbed
) -> None:
    whole, searched = undisturbed(name)
    for until in (25, 33):
        with pytest.raises(Killed), searches_in(tmp_path / "search"):
            attacked(name, small, until=until)
    with searches_in(tmp_path / "search"):
        resumed = attacked(name, small)
    assert torch.equal(resumed.pixels, whole.pixels) and resumed.history == whole.history
    assert (resumed.matching, resumed.explained) == (whole.matching, whole.explained)
    assert (resumed.evaluations, resumed.start, resumed.loss) == (whole.evaluations, whole.start, whole.loss)
    assert sum(asked) == searched, "no evaluation of the search was computed twice"
    assert resumed.seconds > 0


def test_what_is_of_other_unknowns_is_computed(
    small: Any, tmp_path: Path, asked: list[bool], undisturbed: Undisturbed
) -> None:
    """As after a move to a machine whose solver rounds otherwise."""
    whole, _ = undisturbed("gi-dqa")
    with pytest.raises(Killed), searches_in(tmp_path):
        attacked("gi-dqa", small, until=30)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == 13 and files[-1].stem == "00-00012"
    search = Search(tmp_path, 0)
    first = search.known(torch.zeros(3))
    assert first is None and not list(tmp_path.iterdir()), "the first one is of others already"
    files[5].with_name("00-00000.safetensors").write_bytes(b"no tensors")
    asked.clear()
    with searches_in(tmp_path):
        again = attacked("gi-dqa", small)
    assert torch.equal(again.pixels, whole.pixels) and sum(asked) == BUDGET - 17


def test_what_follows_a_damaged_file_is_computed_again(
    small: Any, tmp_path: Path, asked: list[bool], undisturbed: Undisturbed
) -> None:
    whole, _ = undisturbed("gi-dqa")
    with pytest.raises(Killed), searches_in(tmp_path):
        attacked("gi-dqa", small, until=30)
    sorted(tmp_path.glob("*.safetensors"))[8].write_bytes(b"cut")
    asked.clear()
    with searches_in(tmp_path):
        again = attacked("gi-dqa", small)
    assert torch.equal(again.pixels, whole.pixels) and sum(asked) == BUDGET - 17 - 8


def test_quick_searches_leave_nothing(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "EVERY", 60.0)
    with pytest.raises(Killed), searches_in(tmp_path):
        attacked("gi-dqa", small, until=30)
    assert not list(tmp_path.iterdir())
    attacked("gi-dqa", small)  # and outside of a run nothing is kept
    assert not list(tmp_path.iterdir())


def test_a_unit_goes_on_and_leaves_no_search(
    tmp_path: Path, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def study(seed: int = 3) -> GradientStudy:
        return GradientStudy(
            GradientConfig(models=("layoutlmv3-start",), attacks=("gi-dqa",), pages=1, budget=24, seed=seed)
        )

    def record(run: Run) -> list[Any]:
        (unit,) = [one for one in run.units() if one["attack"] == "gi-dqa"]
        return [{**unit["finding"], "seconds": 0}, unit["score"], unit["snapshots"]]

    def cut(out: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Run, "write_snapshot", killing)
            carry_out(study(), out)

    whole = record(carry_out(study(), tmp_path / "whole"))
    write_snapshot = Run.write_snapshot

    def killing(run: Run, unit: str, evaluation: int, image: Any) -> str:
        if evaluation > 20:
            raise Killed
        return write_snapshot(run, unit, evaluation, image)

    with pytest.raises(Killed):
        cut(tmp_path / "cut")
    run = Run.load(tmp_path / "cut")
    unit = next(unit for unit in study().units() if unit.id.endswith("gi-dqa"))
    assert study().progress(unit, run) == "-00-00003"
    shutil.copytree(tmp_path / "cut", tmp_path / "other")
    asked.clear()
    assert record(carry_out(study(), tmp_path / "cut")) == whole and sum(asked) == 24 - 17 - 4
    assert not list((tmp_path / "cut").rglob("search")) and study().progress(unit, run) == ""

    assert list((tmp_path / "other").rglob("search"))
    begin(study(seed=4), tmp_path / "other")
    assert not list((tmp_path / "other").rglob("search")), "another run's evaluations"
