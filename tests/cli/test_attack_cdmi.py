"""``docleak attack cdmi`` as a person runs it, and that gradient attacks keep their place beside it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from docleak.cli import main
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.models.encoders.loading import load_encoder, save_encoder
from docleak.models.encoders.tasks import Task, classes_of
from docleak.report.severity import Severity
from docleak.studies.weights.config import WeightsConfig, trainings
from docleak.studies.weights.study import WeightsStudy
from docleak.training.extraction.fit import FitConfig

ATTACK = "cdmi:candidates=5"
QUICK = ["--pages=9", "--fields=2", "--attempts=2", "--epochs=1", "--workers=1", "--seed=4"]


def run(*words: str) -> int:
    sys.argv = ["docleak", "attack", *words]
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings of ten epochs at most, those too whose number no option says."""

    def few(task: Task, *, epochs: int, learning_rate: float) -> tuple[FitConfig, FitConfig]:
        target, public = trainings(task, epochs=epochs, learning_rate=learning_rate)
        return replace(target, epochs=min(10, target.epochs)), replace(public, epochs=10)

    for module in ("config", "study"):
        monkeypatch.setattr(f"docleak.studies.weights.{module}.trainings", few)


@pytest.fixture(autouse=True)
def argv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])


@pytest.mark.parametrize("task", ["ee-bio", "qa"])
def test_a_game_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], short: None, task: str
) -> None:
    out = tmp_path / "game"
    assert run(ATTACK, *QUICK, "--task", task, "--out", str(out)) == 0
    shown = capsys.readouterr()
    assert f"weights of a model trained for {task}" in shown.out
    assert ("questions and where their answers stand" in shown.out) == (task == "qa")
    assert "IpF" in shown.out and "added to each of the eight means: 0.01." in shown.out and "2 fields of" in shown.out
    assert "target: 1 of" in shown.err and "units" in shown.err
    assert run(ATTACK, *QUICK, "--task", task, "--out", str(out), "--json") == 0
    again = capsys.readouterr()
    value = json.loads(again.out)
    factor, verdict = value["weights"]["improvement_factor"], value["verdict"]
    assert factor["n"] == 2 and not again.err
    assert f"{factor['value']:.3f}" in shown.out
    report = Path(value["report"])
    assert verdict["sentence"] in shown.out and verdict["sentence"] in report.read_text(encoding="utf-8")
    assert verdict["parts"][0]["severity"] == verdict["severity"] and verdict["severity"] in set(Severity)
    report.unlink()
    sys.argv = ["docleak", "report", str(out)]
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code and report.is_file() and verdict["sentence"] in capsys.readouterr().out


def test_a_model_of_ones_own_is_audited(tmp_path: Path, capsys: pytest.CaptureFixture[str], short: None) -> None:
    pages = make_pages(5, seed=1)
    save(pages, tmp_path / "private")
    save(make_pages(3, seed=2, split="train"), tmp_path / "public")
    save_encoder(load_encoder("bros-tiny").for_task("ee-bio", classes_of(pages), seed=0), tmp_path / "model")
    named = ["--documents", str(tmp_path / "private"), "--public-documents", str(tmp_path / "public")]
    model, out = str(tmp_path / "model"), tmp_path / "o"
    few = ["--fields=4", "--attempts=2", "--workers=1", "--json"]
    sys.argv = ["docleak", "audit", "weights", "--target", model, *named, "--out", str(out), *few]
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    value = json.loads(capsys.readouterr().out)
    assert "trained for ee-bio" in value["weights"]["threat"] and Path(value["report"]).is_file()
    again = ["--target", model, *named, "--fields=1", "--attempts=1", "--workers=1", "--no-calibrate"]
    assert run("cdmi:candidates=4", *again, "--out", str(tmp_path / "p")) == 0
    assert run(ATTACK, *again, "--epochs=3", "--out", str(tmp_path / "q")) == 1
    assert "--epochs belongs to a target that is trained here, without --target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "mine", "--documents", "synthetic"], "must be named: --documents and --public-documents"),
        (
            ["--target", "x", "--public-documents", "saved", "--pages", "3"],
            "--pages belongs to a target that is trained",
        ),
        (
            ["--target", "nowhere", "--documents", "synthetic", "--public-documents", "saved"],
            "model 'nowhere' is neither",
        ),
    ],
)
def test_an_audit_that_cannot_be_made_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save(make_pages(3, seed=1), tmp_path / "saved")
    sys.argv = ["docleak", "audit", "weights", *words, "--out", str(tmp_path / "o")]
    with pytest.raises(SystemExit) as stop:
        main()
    shown = capsys.readouterr()
    assert stop.value.code == 1 and said in shown.err and "Traceback" not in shown.err


def test_the_audit_without_options_is_the_default_game() -> None:
    assert WeightsStudy.of_options({}, {}) == WeightsStudy.of_options({}, {"attack": "cdmi"}) == WeightsConfig()
    assert WeightsStudy.of_options({"task": "qa"}, {}).target_training.epochs == 75
    assert WeightsStudy.of_options({"target_training.learning_rate": 0.5}, {}).public_training.learning_rate == 0.5
    finished = WeightsStudy.of_options({"target": "x", "public_documents": "y"}, {})
    assert (finished.pages, finished.model) == (0, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--task", "poetry"], "poetry"),
        (["--metric", "loudness"], "loudness"),
        (["--model", "layoutlm-tyni"], "layoutlm-tiny"),
        (["--documents", "nowhere"], "nowhere"),
        (["--task", "el"], "links between entities"),
        (["--criterion", "middle"], "precision, loss, last"),
    ],
)
def test_what_cannot_be_run_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run("cdmi", *QUICK, "--out", str(tmp_path / "o"), *words) == 1
    shown = capsys.readouterr()
    assert said in shown.err and "Traceback" not in shown.err


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("cdmi:top_p=0", "top_p is 0.0"),
        ("cdmi-weird", "unknown attack 'cdmi-weird'"),
        ("cdmi-strong:mean=arithmetic", "cannot be told 'mean=arithmetic'"),
        ("cdmi,cdmi-strong", "a game on weights takes one attack"),
        ("cdmi,gi-dqa", "attacks on different things"),
        ("membership,memorisation", "attacks on different things"),
    ],
)
def test_an_attack_that_there_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], attack: str, said: str
) -> None:
    assert run(attack, *QUICK, "--out", str(tmp_path / "o")) == 1
    shown = capsys.readouterr()
    assert said in shown.err and "Traceback" not in shown.err


def test_gradient_attacks_are_still_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("gi-dqua") == 1
    assert "Did you mean 'gi-dqa'" in capsys.readouterr().err
    assert run("--list") == 0
    listed = capsys.readouterr().out
    assert "gi-dqa" in listed and "cdmi" in listed
