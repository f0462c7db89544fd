"""``docleak attack membership`` and ``memorisation``, and ``docleak data make --blue-red``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docleak.runs.run import Run
from docleak.studies.answers import shipped

Command = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case without arguments, with few providers."""
    for name, value in (("PROVIDERS", 12), ("DOCUMENTS", 3.0), ("CLIENTS", 1)):
        monkeypatch.setattr(shipped, name, value)


def test_membership_without_arguments_attacks_and_writes(command: Command, small: None, tmp_path: Path) -> None:
    known = "AZK,APK:known=0.4,AZK+CLS1+CLS2:known=0.4,APK+CLS1+CLS2:known=0.4"
    few = ("--minimum", "0", "--attacks", known, "--keys", "provider_name", "--seeds", "2", "--workers", "1")
    code, out, err = command("attack", "membership", *few, "--json")
    assert code == 0, err
    control, released = json.loads(out)["releases"]
    assert control["control"] and sorted(released["membership"]) == ["APK", "APK+CLS1+CLS2", "AZK", "AZK+CLS1+CLS2"]
    home = tmp_path / "docleak-membership"
    (unit,) = [unit for unit in Run(home).units() if not unit["control"]]
    member = unit["membership"]
    assert len(member["scores"]) == member["members"] + member["others"]
    assert {row["member"] for row in member["scores"]} == {0, 1}
    assert Run(home).read_image(unit["unit"], "scores.png").size > 5000
    assert "epsilon at least" in member["remarks"]["Measured"]
    page = (home / "report.html").read_text()
    assert "released model: AZK" in page and "G1 + G2 + G3" in page
    given = ("--release", shipped.RELEASED, "--division", home / shipped.DIVISION)
    code, out, err = command("attack", "membership", *given, *few, "--out", "other")
    assert code == 0 and "Without a public model no epsilon is measured" in out, err
    (alone,) = Run(tmp_path / "other").units()
    assert alone["membership"]["attacks"]["APK"] == {"features": ["G1", "G2"], "setting": "PK + S"}
    before = {f: f.stat().st_mtime_ns for f in home.rglob("*.jsonl")}
    code, out, err = command("attack", "membership", *few)
    assert code == 0 and before == {f: f.stat().st_mtime_ns for f in home.rglob("*.jsonl")}, "nothing is asked again"


def test_memorisation_without_arguments(command: Command, small: None, tmp_path: Path) -> None:
    keys = ("--keys", "provider_name,registration_id,colour")
    code, out, err = command("attack", "memorisation", *keys, "--workers", "1")
    assert code == 0 and "No model was given" in err, err
    assert "public model:" in out and "Asked for what was taken off the page" in out
    home = tmp_path / "docleak-memorisation"
    (unit,) = [unit for unit in Run(home).units() if not unit["control"]]
    record = unit["memorisation"]
    assert {row["key"] for row in record["answers"]} >= {"provider_name"}
    assert {row["member"] for row in record["answers"]} == {0, 1}
    assert "no document of RED shows" in record["remarks"]["colour"] and "example-000" in unit["images"]
    page = (home / "report.html").read_text()
    assert "provider_name" in page and "Asked of documents that do not show it" in page
    assert "EDPB Opinion 28/2024" in page, "a finished model gives them away"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("membership", "--release", "vt5-start"), "nobody knows whose documents it saw"),
        (("membership", "--division", "somewhere"), "--division is given without --release"),
        (("membership", "--release", "vt5-start", "--division", "nowhere"), "data make OUT --blue-red"),
        (("membership", "--minimum", "few"), "--minimum is 'few'"),
        (("membership", "--attacks", "APK:known=7"), "known"),
        (("memorisation", "--keys", ","), "keys are ()"),
    ],
)
def test_refusals(words: tuple[str, ...], said: str, command: Command, tmp_path: Path) -> None:
    code, _, err = command("attack", *words)
    assert code == 1 and said in " ".join(err.split()) and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_both_are_listed(command: Command) -> None:
    _, out, _ = command("attack", "--list")
    assert "membership" in out and "memorisation" in out


def test_blue_and_red_are_made(command: Command, tmp_path: Path, shared_data: Path) -> None:
    code, out, err = command("data", "make", "mine", "--blue-red", "--issuers", 12, "--per-issuer", 3, "--partition", 2,
                             "--json")  # fmt: skip
    assert code == 0 and err == ""
    parts = {part["name"]: part for part in json.loads(out)["parts"]}
    assert {"client-0", "client-1", "red-positive", "red-negative"} <= set(parts)
    manifest = json.loads((tmp_path / "mine" / "blue-red.json").read_text())
    assert manifest["plan"]["clients"] == 2 and manifest["parts"]["client-0"]["pages"] == parts["client-0"]["pages"]
    assert str(tmp_path) not in (tmp_path / "mine" / "blue-red.json").read_text()
    vrdu = f"vrdu:{shared_data / 'vrdu_pfl'}"
    for words, said in (
        (("--documents", vrdu, "--by", "clients", "--count", 9), "--count would cut training documents"),
        (("--documents", vrdu, "--count", 9), "name no provider|of the 10 clients"),
    ):
        code, _, err = command("data", "make", "own", "--blue-red", *words)
        assert code == 1 and re.search(said, err)
    code, _, err = command("data", "make", "two", "--blue-red", "--documents", vrdu, "--documents", vrdu)
    assert code == 1 and "2 data sets to divide into BLUE and RED" in err
