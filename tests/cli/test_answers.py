"""``docleak attack membership`` and ``memorisation``, and ``docleak data make --blue-red``."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docleak.evidence.answers import shipped

Command = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The case without arguments, with few providers."""
    for name, value in (("PROVIDERS", 12), ("DOCUMENTS", 3.0), ("CLIENTS", 1)):
        monkeypatch.setattr(shipped, name, value)


def test_membership_without_arguments_attacks_and_writes(command: Command, small: None, tmp_path: Path) -> None:
    code, out, err = command("attack", "membership", "--minimum", "0", "--known", "0.4", "--seeds", "2", "--json")
    assert code == 0, err
    value = json.loads(out)
    assert sorted(value["attacks"]) == ["APK", "APK+CLS1+CLS2", "AZK", "AZK+CLS1+CLS2"]
    home = tmp_path / "docleak-membership"
    rows = list(csv.DictReader((home / "scores.csv").open()))
    assert len(rows) == value["members"] + value["others"] and {row["member"] for row in rows} == {"0", "1"}
    assert (home / "scores.png").stat().st_size > 5000 and "| AZK | G1 |" in (home / "table.md").read_text()
    assert "epsilon at least" in value["measured"]
    before = {f: f.stat().st_mtime_ns for f in home.rglob("*.jsonl")}
    data = home / shipped.DIVISION
    given = ("--model", shipped.RELEASED, "--data", data)
    code, out, err = command("attack", "membership", *given, "--minimum", "0", "--known", "0.4", "--seeds", "2",
                             "--out", home)  # fmt: skip
    assert code == 0 and "No public model was given" in out and "| APK | G1 + G2 | PK + S |" in out, err
    assert before == {f: f.stat().st_mtime_ns for f in home.rglob("*.jsonl")}, "what was said is not asked again"


def test_memorisation_without_arguments(command: Command, small: None, tmp_path: Path) -> None:
    code, out, err = command("attack", "memorisation", "--keys", "provider_name,registration_id,colour")
    assert code == 0 and "No model was given" in err, err
    assert "Key `provider_name`, hidden:" in out and "no document of RED shows" in out and "| public model |" in out
    home = tmp_path / "docleak-memorisation"
    rows = list(csv.DictReader((home / "answers.csv").open()))
    assert {row["key"] for row in rows} >= {"provider_name"} and {row["member"] for row in rows} == {"0", "1"}
    assert (home / "example-000.png").is_file() and json.loads((home / "result.json").read_text())["keys"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("membership", "--model", "vt5-start"), "nobody knows whose documents it saw"),
        (("membership", "--data", "somewhere"), "--data is given without --model"),
        (("membership", "--model", "vt5-start", "--data", "nowhere"), "data make OUT --blue-red"),
        (("membership", "--minimum", "few"), "--minimum is 'few'"),
        (("memorisation", "--keys", ","), "--keys is empty"),
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
