"""Joining the readings of several runs into one page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import docleak
from docleak.attacks.registries import ATTACKS
from docleak.errors import AttackError, RunError
from docleak.options import stored_fault
from docleak.registry import importing_nothing
from docleak.report.page import Reading
from docleak.runs.run import Run
from docleak.studies import registry
from docleak.studies.gradient.config import DefenceConfig, GradientConfig
from docleak.studies.kinds import STUDIES
from docleak.studies.study import Study, plain


def test_all_but_the_first_kind_or_question_are_read_briefly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, bool]] = []

    def read(runs: list[Run], rng: object, *, beside: bool = False) -> Any:
        told.append((len(runs), beside))
        return Reading("?", "", (), "", (), (), {})

    monkeypatch.setattr(
        registry, "load_study", lambda kind: SimpleNamespace(
            read=read, asks=lambda run: run.path.name == "3", Config=GradientConfig
        )
    )  # fmt: skip
    runs = [Run.open(tmp_path / str(number), {}, kind=kind) for number, kind in enumerate(("a", "b", "a", "a"))]
    registry.read_runs(runs)
    assert told == [(2, False), (1, True), (1, True)]


def test_runs_are_read_in_the_order_of_their_kinds_whichever_was_named_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def read(runs: list[Run], rng: object, *, beside: bool = False) -> Any:
        told.append(f"{runs[0].kind}{' beside' * beside}")
        return Reading("?", "", (), "", (), (), {})

    shared = {"read": read, "asks": lambda run: "", "Config": GradientConfig}
    monkeypatch.setattr(registry, "load_study", lambda kind: SimpleNamespace(**shared))
    runs = [Run.open(tmp_path / kind, {}, kind=kind) for kind in ("mine", "answers", "gradient", "also")]
    registry.read_runs(runs)
    assert told == ["gradient", "answers beside", "mine beside", "also beside"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"budget": float("nan")}, "budget is nan; expected 1 to 10,000,000. It was changed"),
        ({"pages": "1"}, "pages is '1'; expected 1 to"),
        ({"pages": True}, "pages is True"), ({"pages": None}, "pages is None"), ({"documents": 5}, "expected str"),
        ({"exposure": {"train_mode": "no"}}, "exposure.train_mode is 'no'; expected bool"),
        ({"models": ["donut-start", 1]}, "models is 1; expected str"),
    ],
)  # fmt: skip
def test_a_run_whose_settings_were_changed_to_what_none_can_be_is_not_reported(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    run = Run.open(tmp_path / "run", plain(GradientConfig()), kind="gradient")
    with pytest.raises(RunError, match="no finished unit"):
        registry.read_runs([run])
    file = run.path / "run.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps({**manifest, "config": {**manifest["config"], **changed}}))
    with pytest.raises(RunError, match=said):
        registry.read_runs([run])


def test_settings_of_every_study_are_what_it_reads_back() -> None:
    for kind in STUDIES:
        config, given = registry.load_study(kind).Config, {"updates": "folder"} if kind == "updates" else {}
        if given or all(one.default is not MISSING or one.default_factory is not MISSING for one in fields(config)):
            assert not stored_fault(config, plain(config(**given))), kind
    assert stored_fault(DefenceConfig, {"audit": {"budget": "0"}}) == "audit.budget is '0'; expected 1 to 10,000,000"


def test_naming_another_run_hides_no_run_within_one(tmp_path: Path) -> None:
    for name in ("first", "first/weights", "second"):
        Run.open(tmp_path / name, {}, kind="weights" if "/" in name else "gradient")
    alone = registry.runs_at([tmp_path / "first"])
    both = registry.runs_at([tmp_path / "first", tmp_path / "second", tmp_path / "first" / "weights"])
    assert [run.path.name for run in alone] == ["first", "weights"]
    assert [run.path.name for run in both] == ["first", "second", "weights"]


@pytest.mark.parametrize("how", ["load_run", "report", "check", "compare"])
def test_reading_a_run_imports_nothing_that_its_files_name(how: str, tmp_path: Path) -> None:
    """Whoever hands over a run chooses what stands in it; code that lies beside it stays a file."""
    run = Run.open(tmp_path / "run", {}, kind="handed_over:Study")
    (run.path / "handed_over.py").write_text("import pathlib; pathlib.Path('ran').touch()")
    (run.path / "policy.toml").write_text('[[rule]]\nmeasure = "verdict"\nat_worst = "none"\n')
    code = "import docleak; print(docleak.load_run('.').verdict)" if how == "load_run" else (
        f"import sys; sys.argv = {['docleak', how, '.', *HOW[how]]!r}; from docleak.cli import main; main()"
    )  # fmt: skip
    ended = subprocess.run([sys.executable, "-c", code], cwd=run.path, env=ENVIRONMENT, capture_output=True, text=True)
    assert ended.returncode != 0 and not (run.path / "ran").exists()
    assert "reading a run imports no file that it names" in ended.stderr and "--study handed_over:Study" in ended.stderr


HOW = {"report": [], "check": ["--policy", "policy.toml"], "compare": ["."]}
#: Paths absolute, and nothing of the test's own folder.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(map(str, map(Path.absolute, map(Path, filter(None, sys.path))))),
}


def test_an_attack_that_a_run_names_is_not_imported_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "named_attack.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    with importing_nothing(), pytest.raises(AttackError, match="reading imports nothing"):
        ATTACKS.load("named_attack:ATTACK")
    with pytest.raises(AttackError, match="SystemExit: imported"):
        ATTACKS.load("named_attack:ATTACK")


def test_who_computed_a_run_of_another_version_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading("?", "", (), "", (), (), {})
    monkeypatch.setattr(
        registry, "load_study", lambda kind: SimpleNamespace(
            read=lambda *a, **k: reading, asks=lambda run: "", Config=GradientConfig
        )
    )  # fmt: skip
    run = Run.open(tmp_path / "run", {}, kind="a")
    assert registry.read_runs([run])[0].notices == ()
    file = run.path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "docleak": "9.9"}))
    (notice,) = registry.read_runs([run])[0].notices
    assert notice == f"{run.path}: computed by docleak 9.9, and read by {docleak.__version__}."
    here = Run.open(tmp_path / "here", {}, kind="a")
    assert registry.read_runs([here, run])[0].notices == (notice,), "of the one that another computed alone"


class Whole(Study[GradientConfig]):
    """All that a study has to have."""

    kind = "tests:Whole"
    Config = GradientConfig
    units = compute = read = None  # type: ignore[assignment]


class Kindless(Whole):
    kind = None  # type: ignore[assignment]


class Loose(Whole):
    Config = SimpleNamespace


class Given(Whole):
    Config = GradientConfig()  # type: ignore[assignment]


class Bare(Study[GradientConfig]):
    """One of which nothing is written."""


@pytest.mark.parametrize(
    ("study", "lacking"),
    [
        (Kindless, "kind, its name or 'module:Class'"),
        (Loose, "Config, a dataclass of its settings"),
        (Given, "Config, a dataclass of its settings"),
        (Bare, "compute; read; units; kind, its name or 'module:Class'; Config, a dataclass of its settings"),
    ],
)
def test_a_study_that_is_not_whole_is_told_what_it_lacks(study: type[Study[Any]], lacking: str, tmp_path: Path) -> None:
    registry.require_whole(Whole)
    for call in (lambda: docleak.audit(study=study, out=tmp_path / "run"),
                 lambda: registry.load_study(f"{__name__}:{study.__name__}")):  # fmt: skip
        with pytest.raises(RunError, match=f"the study {study.__name__} lacks {lacking}. docs/studies.md"):
            call()
    assert not list(tmp_path.iterdir())


READ = """
    @classmethod
    def read(cls, runs, rng, *, beside=False):
        return Reading("Q?", "", (Part("w", Severity.UNMEASURED, "."),), ".", (), (), {})
"""


@pytest.mark.parametrize(
    ("units", "compute", "read", "said"),
    [
        ("None", "{}, {}", READ, "units of the study {kind} gave NoneType None; expected a list of Unit"),
        ("['a']", "{}, {}", READ, r"units of the study {kind} gave list \['a'\]; expected a list of Unit"),
        ("[Unit('a')]", "None", READ, "compute of the study {kind} gave NoneType None; expected a record and"),
        ("[Unit('a')]", "{'images': 3, 'x': 1}, {}", READ, "compute of the study {kind} gave a record with images"),
        ("[Unit('a')]", "{'x': 1}", READ, "compute of the study {kind} gave dict {{'x': 1}}; expected a record and"),
        ("[Unit('a')]", "{}, {'p': [1]}", READ, "p.png: the picture is of type list; expected an array"),
        ("[Unit('a')]", "{}, {}", READ.replace("return Reading", "return None and Reading"),
         "read of the study {kind} gave NoneType; expected a Reading"),
        ("[Unit('a')]", "{}, {}", READ.replace('return Reading("Q?"', 'return Reading(runs[0].config["gone"]'),
         "cannot be read by its study {kind}: .*KeyError: 'gone'.* The study is wrong, or a file"),
    ],
)  # fmt: skip
def test_what_a_study_of_one_s_own_gives_that_is_none_is_told_so(
    units: str, compute: str, read: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of a traceback from within docleak, or of "a file in it was changed"."""
    name = f"odd_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        "from dataclasses import dataclass\n"
        "from docleak.report.page import Reading\nfrom docleak.report.severity import Part, Severity\n"
        "from docleak.studies.study import Study, Unit\n\n"
        "@dataclass(frozen=True)\nclass Settings:\n    seed: int = 0\n\n"
        f"class Odd(Study[Settings]):\n    kind, Config = '{name}:Odd', Settings\n\n"
        f"    def units(self):\n        return {units}\n\n"
        f"    def compute(self, unit, run, tell):\n        return {compute}\n{read}"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunError, match=said.format(kind=f"{name}:Odd")):
        docleak.audit(study=f"{name}:Odd", out=tmp_path / "run").report()


@pytest.mark.parametrize("kind", list(STUDIES))
@pytest.mark.parametrize("edited", ["{}", '{"unit": "another", "images": {}}', '{"unit": "one", "images": []}'])
def test_a_unit_that_was_edited_to_nothing_is_named_with_what_to_do(
    kind: str, edited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Continued, such a run ended in a KeyError, and a report named the whole run to be deleted."""
    from docleak.cli import main

    config = registry.load_study(kind).Config
    given = {"updates": "folder"} if kind == "updates" else {}
    try:
        settings = plain(config(**given))
    except TypeError:  # which have settings without a default
        settings = {"releases": []}
        monkeypatch.setattr(registry, "stored_fault", lambda *_: "")
    run = Run.open(tmp_path / "run", settings, kind=kind)
    run.write_unit("one", {}, {})
    file = run.folder("one") / "unit.json"
    file.write_text(edited, encoding="utf-8")
    said = rf"{file} .*: it was changed, or is damaged. Delete {file.parent} and repeat"
    report = [] if kind in ("training", "trainings") else [lambda: registry.report_on([run.path])]  # which want more
    for read in (run.units, lambda: run.record("one"), *report):
        with pytest.raises(RunError, match=said):
            read()
    monkeypatch.setattr(sys, "argv", ["docleak", "report", str(run.path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
