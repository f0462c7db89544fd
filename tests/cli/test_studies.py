"""Commands made of studies: one of somebody's own, defaults that a command changes, and what is imported when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docleak.cli.app import command_line
from docleak.cli.guard import commands_of
from docleak.cli.studies import Late
from docleak.runs.run import Run
from docleak.studies.kinds import AUDITS, STUDIES
from docleak.studies.registry import load_study

Command = Callable[..., tuple[Any, str, str]]
OWN = '''
from dataclasses import dataclass

from docleak.report.page import Reading
from docleak.report.severity import Part, Severity
from docleak.studies.study import Study, Unit


@dataclass(frozen=True)
class Config:
    pages: int = 3
    words: tuple[str, ...] = ("a",)
    loud: bool = False
    seed: int = 0


class Counting(Study[Config]):
    """Counts."""

    kind = "my_study:Counting"
    Config = Config

    def check(self, say):
        say(f"counting to {self.config.pages}")

    def units(self):
        return [Unit(f"page-{number}", what=number) for number in range(self.config.pages)]

    def compute(self, unit, run, tell):
        print("counted")
        return {"number": unit.what, "words": list(self.config.words), "loud": self.config.loud}, {}

    @classmethod
    def read(cls, runs, rng, *, beside=False):
        said = f"{len(runs[0].units())} pages were counted."
        return Reading("How many?", said, (Part("pages", Severity.UNMEASURED, said),), said, (), (said,), {}, {})
'''


def test_a_study_of_ones_own_is_audited_with_options_of_its_configuration(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_study.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", [*sys.path])
    code, out, err = command("audit", "my_study:Counting", "--pages", 2, "--words", "x,y", "--loud", "--workers", 2)
    assert code == 0 and "2 pages were counted." in out and "counting to 2" in err, err
    units = Run.load(tmp_path / "docleak-counting").units()
    assert [unit["words"] for unit in units] == [["x", "y"]] * 2 and all(unit["loud"] for unit in units)
    code, out, err = command("audit", "my_study:Counting", "--json", "--workers", 1, "--out", "again")
    assert code == 0 and json.loads(out)["report"].endswith("report.html") and "counted" in err, out
    code, out, _ = command("audit", "my_study:Counting", "--help")
    assert code == 0 and "--pages" in out and "--loud" in out and "--out" in out
    sys.modules.pop("my_study")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("audit", "nowhere:Study"), "the study 'nowhere:Study' cannot be loaded: No module named 'nowhere'. Its file"),
        (("audit", "pathlib:Study"), "cannot be loaded: module 'pathlib' has no attribute 'Study'.\n"),
        (("audit", "pathlib:Path"), "'pathlib:Path' is no study"),
        (("audit", "pathlib:Path", "--help"), "'pathlib:Path' is no study"),
        (("audit", "gradient", "--compare-defenses"), "No such option"),
        (("audit", "gradients"), "There is no study 'gradients'; known:"),
        (("defend", "clip", "--attack", "random,dlg"), "on one model by one attack; found 1 and 2"),
    ],
)
def test_what_is_no_study(words: tuple[str, ...], said: str, command: Command, tmp_path: Path) -> None:
    code, _, err = command(*words)
    assert code in (1, 2) and said in err and "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", AUDITS)
def test_the_table_of_studies_is_true(name: str) -> None:
    kind, study = STUDIES[name], load_study(name)
    assert study.kind == name
    assert f"{study.Config.__module__}:{study.Config.__qualname__}" == kind.config


def test_every_option_of_a_study_has_help_and_a_panel_holds_those_of_runs() -> None:
    for name, command in commands_of(command_line()):
        if isinstance(command, Late):
            flags = [flag for parameter in command.params for flag in parameter.opts]
            assert len(flags) == len(set(flags)), name
            panels = {p.opts[0]: getattr(p, "rich_help_panel", None) for p in command.params}
            assert panels["--out"] == panels["--workers"] == panels["--json"] == "Run"
            assert panels["--device"] == "Run", "no study leaves a GPU idle that it is given"


@pytest.mark.parametrize("words", ["--help", "--version", "attack --list", "defend --list", "attack --help",
                                   "audit --help",
                                   "audit gradient --help", "attack gi-dqa --help"])  # fmt: skip
def test_nothing_heavy_is_imported_to_say_what_there_is(words: str, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom docleak.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "heavy = ('numpy', 'PIL', 'scipy', 'torch', 'transformers', 'flwr', 'matplotlib')\n"
        "print('HEAVY', *(name for name in heavy if name in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True, check=True,
                         cwd=tmp_path)  # fmt: skip
    assert run.stdout.splitlines()[-1].strip() == "HEAVY"


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [("audit we", "weights"), ("attack mmgia-s", "mmgia-stage1"), ("audit gradient --bat", "--batch-size")],
)
def test_completion(typed: str, wanted: str, tmp_path: Path) -> None:
    words = f"docleak {typed}"
    asked = {"_DOCLEAK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    code = "import sys\nfrom docleak.cli import main\nsys.argv = ['docleak']\nmain()"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path,
                         env={**os.environ, **asked})  # fmt: skip
    assert run.stdout.split() == [wanted], run.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--workers", "2"), "--workers does nothing with --cluster"),
        ((), "no Dask scheduler answers at 'tcp://127.0.0.1:1'"),
    ],
)
def test_a_cluster_that_cannot_do_the_work_is_refused_before_anything_is_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], said: str
) -> None:
    pytest.importorskip("dask.distributed", reason="the cluster extra is not installed")
    monkeypatch.setattr("docleak.runs.pool.CLUSTER_TIMEOUT", "1s")
    words = ["audit", "gradient", "--model", "donut-start", "--budget", "20", "--out", "run"]
    code, _, err = command(*words, "--cluster", "tcp://127.0.0.1:1", *more)
    assert code == 1 and said in err and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("audit", "pairs", "--pairs", "nlvr:nowhere"),
        ("audit", "weights", "--model", "./nowhere"),
        ("train", "central", "--model", "./nowhere"),
        ("attack", "canaries", "--model", "./nowhere"),
    ],
)
def test_what_could_not_begin_leaves_no_folder(words: tuple[str, ...], command: Command, tmp_path: Path) -> None:
    code, _, err = command(*words, "--out", "run")
    assert code == 1 and "nowhere" in err
    assert not (tmp_path / "run").exists()
