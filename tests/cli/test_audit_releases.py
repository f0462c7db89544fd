"""``docleak audit answers``: released models side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docleak.documents.blue_red import BlueRedPlan
from docleak.documents.blue_red_files import open_issuers, write_blue_red
from docleak.runs.run import Run
from docleak.studies.answers.verdict import YARDSTICK

Command = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def blue_red(tmp_path: Path) -> Path:
    plan = BlueRedPlan(clients=2, red=0.4, test=0.34, validation=0.0)
    write_blue_red(open_issuers(16, 4.0, plan, seed=0), tmp_path / "data")
    return tmp_path / "data"


def test_releases_are_compared_with_what_they_cost_and_claim(command: Command, blue_red: Path, tmp_path: Path) -> None:
    private = ("--epsilon", 8, "--denominator", 2, "--delta", 1e-3, "--holdout", 0, "--evaluate-every", 0)
    small = ("--silos", blue_red / "silos", "--rounds", 1, "--max-steps", 1, "--batch-size", 2, "--no-capture")
    code, _, err = command("train", "federated", *small, *private, "--out", "private")
    assert code == 0, err
    asked = (
        "--division",
        blue_red,
        "--release",
        "FL+DP 8=private",
        "--release",
        "plain=vt5-start",
        "--public",
        "vt5-start",
    )
    code, out, err = command("audit", "answers", *asked, "--out", "audit")
    assert code == 0, err
    assert "public model:" in out and "FL+DP 8:" in out and "plain:" in out
    assert "Claimed: epsilon" in out and "It claims no differential privacy" in out
    plain = out.partition("plain:")[2]
    assert "No all-clear: nothing of the release says whose documents it saw" in plain, "it is the public model"
    assert "members, and none of the" in out.partition("FL+DP 8:")[2].partition("plain:")[0], "its own record says so"
    results = json.loads((tmp_path / "audit" / "results.json").read_text())
    records = {r["release"]: r for r in results["releases"]}
    assert list(records) == ["public model", "FL+DP 8", "plain"]
    private = records["FL+DP 8"]
    measured = next(iter(private["membership"].values()))["epsilon_measured"]["value"]
    assert 0 < private["bill"]["epsilon"] <= 8 and private["bill"]["bytes"] > 4e6
    assert measured <= private["bill"]["epsilon"] and private["utility"][""]["gigabytes"]["value"] > 0
    assert records["plain"]["bill"]["bytes"] is None and records["public model"]["label"] == YARDSTICK
    assert [part["part"] for part in results["verdict"]["parts"]] != ["answers of public model"]
    assert len(results["verdict"]["parts"]) == 2, "the control is no part of the verdict"
    assert records["plain"]["membership"] == records["public model"]["membership"], "one model"
    page = (tmp_path / "audit" / "report.html").read_text()
    assert page.count("<img") >= 3 and "FL+DP 8" in page and "<svg" in page
    before = {f: f.stat().st_mtime_ns for f in (tmp_path / "audit").rglob("*.jsonl")}
    code, again, _ = command("audit", "answers", *asked, "--out", "audit")
    assert (
        code == 0 and again == out and "not finished" not in out and before == {f: f.stat().st_mtime_ns for f in before}
    )
    code, out, _ = command("audit", "answers", *asked[:-2], "--public", "vt5-public", "--out", "audit", "--json")
    assert code == 1 and "another config" in json.loads(out)["error"]
    run = Run(tmp_path / "audit")
    for name, said in (("plain", "1 of 2 releases"), ("public model", "1 of 2 releases, no control")):
        (run.folder(name) / "unit.json").unlink()
        assert f"The run is not finished: {said}." in command("report", "audit")[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--release", "=vt5-start"), "expected LABEL=MODEL"),
        (("--release", "a/b=vt5-start"), "a name of its own"),
        (("--release", "a=vt5-start", "--release", "a=vt5-public"), "a name of its own"),
        (("--release", "vt5-start", "--attacks", "dlg"), "unknown attack on answers 'dlg'"),
        ((), "--division is given without --release"),
    ],
)
def test_what_cannot_be_audited_is_refused(
    options: tuple[str, ...], said: str, command: Command, blue_red: Path
) -> None:
    code, out, _ = command("audit", "answers", "--division", blue_red, *options, "--json")
    assert code == 1 and said in json.loads(out)["error"]


def test_releases_need_a_division(command: Command) -> None:
    code, out, _ = command("audit", "answers", "--release", "a=vt5-start", "--json")
    assert code == 1 and "--release is given without --division" in json.loads(out)["error"]
