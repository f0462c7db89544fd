"""docleak from Python: objects and names, what is refused, and what comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch

import docleak
from docleak.attacks.registries import ANSWERS, ATTACKS
from docleak.documents.folder import load, save
from docleak.errors import DefenseError, DocleakError
from docleak.models import DocumentModel
from docleak.registry import Given
from docleak.runs.run import Run
from docleak.studies.answers.config import Release
from docleak.studies.given import configured, given_model, given_pages, silos_of
from docleak.studies.gradient.config import GradientConfig
from docleak.studies.gradient.study import GradientStudy
from docleak.studies.identity import data_hash
from docleak.studies.kinds import STUDIES
from docleak.studies.registry import load_study

MODEL = "layoutlmv3-start"


@dataclass(frozen=True)
class Template:
    """An attack of one's own: it answers with the blank template."""

    name: str = "template"
    paper: str = "none"
    summary: str = "the blank template"

    def run(self, view: Any, knowledge: Any, **options: Any) -> Any:
        return ATTACKS.load("random").run(view, knowledge, **options)


@dataclass(frozen=True)
class Halved:
    """A defence of one's own: half of what would be sent."""

    summary: str = "half of the gradient"

    def protect(self, gradient: Any, model: Any, *, generator: Any) -> dict[str, torch.Tensor]:
        return {name: value / 2 for name, value in gradient.items()}

    def imitate(self, dummy: Any, observed: Any) -> Any:
        return {name: value / 2 for name, value in dummy.items()}


@pytest.fixture(scope="module")
def model() -> DocumentModel:
    return docleak.load_model(MODEL)


@pytest.fixture(scope="module")
def pages() -> list[docleak.Page]:
    return list(docleak.load_pages("synthetic", count=4, seed=3))


def test_import_is_light_and_everything_public_is_there() -> None:
    code = "import docleak, sys; print(*(m for m in ('torch', 'numpy', 'pandas') if m in sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ""
    assert all(getattr(docleak, name) is not None for name in docleak.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        docleak.no_such_name  # noqa: B018


def test_annotations_of_everything_public_can_be_evaluated() -> None:
    public = [getattr(docleak, name) for name in docleak.__all__]
    for thing in [*public, *(load_study(kind).Config for kind in STUDIES)]:
        assert get_type_hints(thing) is not None
    assert get_type_hints(docleak.train)["config"] == docleak.TrainingSettings | None


def test_objects_are_audited_in_worker_processes(
    model: DocumentModel, pages: list[docleak.Page], tmp_path: Path
) -> None:
    said: list[str] = []
    results = docleak.audit(
        model, pages[:2], attacks=Template(), defense=Halved(), out=tmp_path / "run", workers=2, budget=3, seed=1,
        say=said.append,
    )  # fmt: skip
    frame = results.to_frame()
    assert set(frame["attack"]) == {"template", "closed-form"} and len(frame) == len(said) == 4
    assert {"run", "kind", "unit", "page", "score.psnr"} <= set(frame.columns)
    assert results.verdict.sentence and results.report() == tmp_path / "run" / "report.html"
    assert all(file.is_file() for files in results.pictures().values() for file in files.values())
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["command"].startswith("docleak.audit(model=<LayoutLMv3>")
    assert set(manifest["config"]["objects"]) == {"template", "Halved"}  # the model and pages are named by their hashes


def test_other_weights_or_pages_are_refused(model: DocumentModel, pages: list[docleak.Page], tmp_path: Path) -> None:
    def audit(model: DocumentModel, pages: list[docleak.Page]) -> list[str]:
        said: list[str] = []
        docleak.audit(model, pages, attacks="random", out=tmp_path / "run", budget=1, seed=1, say=said.append)
        return said

    assert len(audit(model, pages[:1])) == 2
    assert audit(model, pages[:1]) == []  # nothing is left to do
    other = docleak.load_model(MODEL)
    with torch.no_grad():
        next(other.module.parameters()).add_(1e-3)
    with pytest.raises(DocleakError, match=r"models: .* there, .* asked for"):
        audit(other, pages[:1])
    with pytest.raises(DocleakError, match=r"documents: .* there, .* asked for"):
        audit(model, pages[1:2])


def test_a_given_model_is_a_copy_named_by_all_that_changes_a_gradient(model: DocumentModel) -> None:
    name = given_model(model)
    assert isinstance(name, Given) and name == given_model(docleak.load_model(MODEL))
    loaded = docleak.load_model(name)
    assert loaded.module is not model.module and not loaded.module.training
    frozen = docleak.load_model(MODEL)
    next(frozen.module.parameters()).requires_grad_(False)
    assert given_model(frozen) != name
    assert not next(docleak.load_model(given_model(frozen)).module.parameters()).requires_grad
    assert given_model("donut-start") == "donut-start" and not isinstance(given_model("donut-start"), Given)
    with pytest.raises(DocleakError, match="came as an object"):
        docleak.load_model(name, image_size=(11, 13))


def test_what_is_given_is_checked(pages: list[docleak.Page], tmp_path: Path) -> None:
    assert given_pages(pages) != given_pages(pages[:3])
    study: dict[str, Any] = {"out": tmp_path / "run"}
    for wrong, said in (
        ({"model": 3}, "without architecture"),
        ({"pages": [1]}, "of int"),
        ({"pages": []}, "are none"),
        ({"budgett": 3}, "Did you mean 'budget'"),
        ({"budget": "3"}, "budget is '3'"),
        ({"attacks": "no-such"}, "no-such"),
        ({"study": "no-such"}, "there is no study 'no-such'"),
        ({"device": "no-such"}, "cannot be used here"),
    ):
        with pytest.raises(DocleakError, match=said):
            docleak.audit(**(study | wrong))
    measured = GradientStudy(GradientConfig(models=(MODEL,)))
    for settings in ({"budget": 1}, {"device": "cpu"}):
        with pytest.raises(DocleakError, match="has its configuration already"):
            docleak.audit(study=measured, **(study | settings))
    assert not (tmp_path / "run").exists()
    with pytest.raises(DocleakError, match="Give a seed"):
        docleak.load_pages("synthetic")


def test_boxes_that_are_shares_of_the_page_are_refused_as_in_a_folder(pages: list[docleak.Page]) -> None:
    words = tuple(docleak.Word(word.text, (0.1, 0.1, 0.2, 0.2)) for word in pages[0].words)
    with pytest.raises(
        DocleakError, match=rf"page {pages[0].name!r}: all {len(words)} boxes lie in 0-1; expected pixel"
    ):
        given_pages([pages[1], replace(pages[0], words=words)])
    whole = tuple(docleak.Word(word.text, (0, 0, 1, 1)) for word in pages[0].words)
    assert isinstance(given_pages([replace(pages[0], words=whole)]), Given)


Calls = list[tuple[str, str]]
#: What is called, with OUT for a new folder and PAGES for two pages, and what is said of it.
REFUSED: Calls = [
    ("load_run(None)", "the run is None; expected its folder, or several"),
    ("load_run([5])", "the run is 5; expected its folder"),
    ("load_pages(None)", "pages is None; expected 'synthetic', a folder or FORMAT:PATH"),
    ("load_pages('synthetic', count='2', seed=1)", "count is '2'; expected a whole number"),
    ("load_pages('synthetic', seed=1.5)", "seed is 1.5; expected a whole number"),
    ("load_pages('synthetic', seed=-1)", "seed is -1; expected 0 to"),
    ("load_pages('synthetic', seed=2**70)", "seed is .*; expected 0 to"),
    ("load_pages('nope')", "'nope' is neither a format nor an existing path"),
    ("load_pages('nope', seed=1)", "'nope' is neither a format nor an existing path"),
    ("load_model(None)", "the model is None; expected a name, a directory"),
    ("load_model('vt5-start', device='banana')", "device 'banana' cannot be used here"),
    ("load_model('vt5-start', device='cuda:99')", "device 'cuda:99' cannot be used here"),
    ("load_model('donut-start', image_size='big')", "image size 'big' is not WIDTHxHEIGHT"),
    ("load_model('donut-start', image_size=(320,))", r"image_size is \(320,\); expected \(width, height\)"),
    ("load_model('donut-start', image_size=(-1, 5))", r"image_size is \(-1, 5\); expected \(width, height\)"),
    ("load_model('vt5-start', seed=-1)", "seed is -1; expected 0 to"),
    ("load_model('vt5-start', seed=1.5)", r"seed is 1\.5; expected a whole number"),
    ("reproduce(None)", "the recipe is None; expected its name"),
    ("reproduce('gi-dqa/table1', rows=5)", "rows is 5; expected a text"),
    ("reproduce('gi-dqa/table1', rows='Random', pages='two', out=OUT)", "pages is 'two'; expected a whole number"),
    ("reproduce('gi-dqa/table1', rows='Random', seed=-1, out=OUT)", "seed is -1; expected 0 to"),
    ("reproduce('gi-dqa/table1', rows='Random', workers=-3, out=OUT)", "workers is -3; expected 1 to 512"),
    ("reproduce('gi-dqa/table1', rows='Random', pages=1, out=5)", "out is 5; expected a folder"),
    ("reproduce('gi-dqa/table1', rows='Random', seed=1.5, out=OUT)", r"seed is 1\.5; expected a whole number"),
    (
        "reproduce('gi-dqa/table1', image_sizes={'dount': (64, 64)}, out=OUT)",
        "Did you mean 'donut'",
    ),
    ("reproduce('gi-dqa/table1', image_sizes=64, out=OUT)", "image_sizes is 64; expected sizes by model"),
    ("reproduce('mmgia/table1', image_sizes={'opnei': (64, 64)}, out=OUT)", "Did you mean 'openi'"),
    (
        "reproduce('gi-dqa/table1', models='donut-start', out=OUT)",
        "models is 'donut-start'; expected checkpoints",
    ),
    ("reproduce('gi-dqa/table1', models={'donut': 3}, out=OUT)", "the model 'donut' is 3; expected a name"),
    ("reproduce('gi-dqa/table1', documents=PAGES, out=OUT)", "documents is Page.*; expected 'synthetic', a folder"),
    ("reproduce('gi-dqa/table1', ocr=3, out=OUT)", "OCR engine 'int' is a int without"),
    ("reproduce('gi-dqa/real', out=OUT)", "the recipe needs 'documents' sroie:DIR; docs/reproduce.md says"),
    ("reproduce('gi-dqa/table1', budget=3, rows='GI-DQA', out=OUT)", "gi-dqa 18. Raise 'budget'"),
    ("reproduce('cdmi/table2', until_decided=True, out=OUT)", "'until_decided': rows of the kind weights"),
    ("reproduce('gi-dqa/table1', say='print', out=OUT)", "say is 'print'; expected what is called with each line"),
    ("train(silos=2, documents='many', out=OUT)", "documents is 'many'; expected a whole number"),
    ("train(silos=2.5, out=OUT)", "silos is 2.5; expected"),
    ("train(pages=5, out=OUT)", "the pages are of the type int; expected"),
    ("train(silos=2, capture='no', out=OUT)", "capture is 'no'; expected True or False"),
    ("train(silos=2, start_is_public=1, out=OUT)", "start_is_public is 1; expected True or False"),
    ("TrainingSettings(secure='no')", "secure is 'no'; expected True or False"),
    ("reproduce('gi-dqa/table1', until_decided='no', out=OUT)", "until_decided is 'no'; expected True or False"),
    ("train(silos={'../x': PAGES}, out=OUT)", "a silo is called '../x'; expected a name, which is no path"),
    ("train(silos={'..': PAGES}, out=OUT)", "a silo is called '..'; expected a name"),
    ("train(silos={'/nosuch/x': PAGES}, out=OUT)", "a silo is called '/nosuch/x'; expected a name"),
    ("train(silos={3: PAGES}, out=OUT)", "a silo is called 3; expected a name"),
    ("train(silos=2, out=None)", "out is None; expected a folder"),
    ("Results(()).report(5)", "out is 5; expected a folder"),
    ("Results(('a', 'b')).report()", "a is no docleak run"),
    ("Results(()).write(5)", "the file is 5; expected a name"),
    ("tap_client(None)", "the directory is None; expected a folder"),
    ("audit([], out=OUT)", "no model is named"),
    ("audit('vt5-start', attacks=[], out=OUT)", "no attack is named"),
    ("audit('vt5-start', PAGES, count=5, out=OUT)", "count is 5, and 2 pages were given"),
    ("audit('vt5-start', PAGES[:1], count=5, out=OUT)", "count is 5, and 1 page was given"),
    ("audit('vt5-start', PAGES, out=None)", "out is None; expected a folder"),
    ("audit('vt5-start', PAGES, models=['donut-start'], out=OUT)", "model and models are both given"),
    ("audit('vt5-start', PAGES, documents='/nosuch', out=OUT)", "pages and documents are both given"),
    ("audit('vt5-start', PAGES, study='updates', attacks='dlg', attack='random', out=OUT)", "attacks and attack are"),
    ("audit('vt5-start', 5, out=OUT)", "the pages are of the type int; expected"),
    ("audit(study=5, out=OUT)", "the study is 5; expected"),
    ("train({'rounds': 1}, out=OUT)", r"config is \{'rounds': 1\}; expected docleak\.TrainingSettings"),
    ("train(silos=2, documents=0, out=OUT)", "documents is 0; expected 1 to"),
    ("train(silos=0, out=OUT)", "silos is 0; expected 1 to"),
    ("train(silos={}, out=OUT)", "silos is an empty mapping; expected how many to make"),
    ("train(silos={'a': 'synthetic'}, out=OUT)", "silo 'a' is 'synthetic'; expected its folder, FORMAT:PATH or pages"),
    ("train(silos={'a': 'nosuch'}, out=OUT)", "'nosuch' is neither a format nor an existing path"),
    ("train(silos={'a': PAGES[0]}, out=OUT)", "the pages are of the type Page; expected"),
    ("train(silos={'a': ['x']}, out=OUT)", "the pages are of str; expected"),
    ("train(pages=['x'], out=OUT)", "the pages are of str; expected"),
    ("train(silos=2, say='x', out=OUT)", "say is 'x'; expected what is called with each line"),
    ("train(silos=2, seed=2**70, out=OUT)", "seed is .*; expected 0 to"),
    ("tap_client('new', limit_gb='10')", "limit_gb is '10'; expected gigabytes above 0"),
    ("TrainerTap('new', limit_gb=float('inf'))", "limit_gb is inf; expected gigabytes above 0"),
    ("audit('vt5-start', PAGES, say='print', out=OUT)", "say is 'print'; expected what is called with each line"),
    ("audit('vt5-start', PAGES, cluster=3, out=OUT)", "cluster is 3; expected the address of a Dask scheduler"),
    ("audit('vt5-start', PAGES, seed=-1, out=OUT)", "seed is -1; expected 0 to"),
    ("audit('vt5-start', PAGES, seed=2**70, out=OUT)", "seed is .*; expected 0 to"),
    ("audit('vt5-start', PAGES, count=True, out=OUT)", "count is True; expected a whole number"),
    ("audit('vt5-start', 'synthetic', count=0, seed=1, out=OUT)", "count is 0; expected 1 to 1,000,000"),
    ("audit('vt5-start', 'synthetic', study='presence', count=0, seed=1, out=OUT)", "count is 0; expected 1 to"),
    ("audit('vt5-start', documents=[*PAGES, 'x'], out=OUT)", "the pages are of str; expected"),
    ("audit('vt5-start', documents=[3], out=OUT)", "documents is .*; expected a text"),
    ("audit('vt5-start', workers=-1, out=OUT)", "workers is -1; expected 1 to 512"),
    ("audit('vt5-start', workers='2', out=OUT)", "workers is '2'; expected a whole number"),
    ("reproduce('pfl-docvqa/table1', per_issuer='3', out=OUT)", "per_issuer is '3'; expected a number"),
    ("reproduce('pfl-docvqa/table1', per_issuer=2.5, out=OUT)", "a mean of 2.5 documents"),
    *(
        (f"{call % name}", f"{said} is .*, which no file can be called .{why}.; expected ")
        for name, why in (
            ("'a' + chr(0)", "embedded null byte"),
            ("'x' * 300", "it is too long"),
            ("'~nosuch/x'", "Could not determine home directory"),
        )
        for call, said in (
            ("load_run(%s)", "the run"),
            ("load_model(%s)", "the model"),
            ("audit('vt5-start', PAGES, out=%s)", "out"),
            ("audit(%s, PAGES, out=OUT)", "the model"),
            ("train(silos=2, out=%s)", "out"),
            ("train(silos=%s, out=OUT)", "silos"),
            ("train(silos=2, model=%s, out=OUT)", "the model"),
            ("reproduce('gi-dqa/table1', out=%s)", "out"),
            ("reproduce('gi-dqa/table1', models={'donut': %s}, out=OUT)", "the model 'donut'"),
            ("Results(()).report(%s)", "out"),
            ("Results(()).write(%s)", "the file"),
            ("tap_client(%s)", "the directory"),
        )
    ),
    ("load_pages('x' * 300)", "the pages' path is .*, which no file can be called .it is too long.; expected "),
    ("load_pages('folder:' + 'x' * 300)", "the pages' path is .*, which no file can be called .it is too long.; exp"),
    ("load_pages('~nosuch/x')", "the pages' path is .*, which no file can be called .Could not determine home "),
    ("load_pages('sroie:' + 'x' * 300)", "the pages' path is .*, which no file can be called .it is too long.; exp"),
]


@pytest.mark.parametrize(("call", "said"), REFUSED, ids=[call for call, _ in REFUSED])
def test_a_value_of_another_type_is_a_sentence(
    call: str, said: str, pages: list[docleak.Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DocleakError, match=said):
        eval(f"docleak.{call}", {"docleak": docleak, "OUT": "new", "PAGES": pages[:2]})
    assert not list(tmp_path.iterdir())


def test_a_size_as_the_command_line_writes_it_and_a_directory() -> None:
    assert docleak.load_model("donut-start", image_size="320x608").image_size == (320, 608)
    assert docleak.load_model(MODEL, device="auto").architecture == "layoutlmv3"


def test_numbers_of_numpy_and_folders_as_paths_are_taken_everywhere(pages: list[docleak.Page], tmp_path: Path) -> None:
    one: Any = np.int64(1)
    assert (
        docleak.load_pages("synthetic", count=one, seed=one)[0].name == docleak.load_pages("synthetic", seed=1)[0].name
    )
    assert docleak.load_model(Path(MODEL), image_size=None, seed=one).name == MODEL
    assert docleak.load_model("donut-start", image_size=(one * 128, one * 128)).image_size == (128, 128)
    docleak.audit(MODEL, pages, attacks="random", budget=one, count=one, seed=one, workers=one, out=tmp_path / "run")
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (manifest["config"]["pages"], manifest["config"]["seed"]) == (1, 1)
    changed = {"pages": one, "budget": one, "seed": one, "image_sizes": {"donut": (one * 128, one * 128)}}
    table = docleak.reproduce("gi-dqa/table1", rows="Random (donut)", workers=one, out=tmp_path / "table", **changed)
    assert not table.failures and len(table.to_frame()) == 1


def test_silos_by_name_are_folders_formats_or_pages(pages: list[docleak.Page], tmp_path: Path) -> None:
    folder_of_a = save(pages, tmp_path / "a")
    silos: dict[str, Any] = {"a": folder_of_a, "b": f"folder:{folder_of_a}", "c": pages}
    written = silos_of(silos, None, None, tmp_path / "silos", seed=0)
    assert not (tmp_path / "silos").exists()
    folders = written()
    assert folders == {"a": folder_of_a, "b": tmp_path / "silos" / "b", "c": tmp_path / "silos" / "c"} == written()
    assert {data_hash(list(load(folder))) for folder in folders.values()} == {data_hash(list(load(folder_of_a)))}


def test_no_run_is_loaded_twice(pages: list[docleak.Page], tmp_path: Path) -> None:
    run = tmp_path / "run"
    docleak.audit(MODEL, pages[:1], attacks="random", out=run, budget=1, seed=1)
    assert len(docleak.load_run(run).to_frame()) == 2
    for twice in ([run, run], [run, tmp_path / "." / "run" / ""]):
        with pytest.raises(DocleakError, match="is named twice"):
            docleak.load_run(twice)


def test_settings_reach_the_part_of_the_configuration_that_has_them(tmp_path: Path) -> None:
    values = {"models": [MODEL], "documents": tmp_path, "train_mode": True, "stages": ["text"]}
    config = configured(GradientConfig, values, what="a study")
    assert config.models == (MODEL,) and config.documents == str(tmp_path)
    assert config.exposure.train_mode and config.exposure.stages == ("text",)


def test_epochs_and_rate_of_a_game_on_weights_are_those_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kind = load_study("weights")
    made: list[Any] = []

    def carry_out(study: Any, out: Path, **how: Any) -> Run:
        made.append(study.config)
        return Run(out)

    monkeypatch.setattr("docleak.front.carry_out", carry_out)
    docleak.audit(study="weights", epochs=7, learning_rate=1e-4, task="el", out=tmp_path)
    options = {"target_training.epochs": 7, "target_training.learning_rate": 1e-4, "task": "el"}
    assert made == [kind.of_options(options, {})]
    assert (made[0].target_training.epochs, made[0].public_training.learning_rate) == (7, 1e-4)
    for settings, said in (
        ({"warmup_epochs": 2.0}, "warmup_epochs is a setting of target_training and of public_training"),
        ({"epochs": 7, "target_training": made[0].target_training}, "epochs is a setting of target_training and of"),
        ({"epochs": "7"}, "epochs is '7'; expected a whole number"),
    ):
        with pytest.raises(DocleakError, match=said):
            docleak.audit(study="weights", out=tmp_path, **settings)


def test_attacks_on_answers_and_pairs_are_named_as_those_on_gradients(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[Any] = []

    def carry_out(study: Any, out: Path, **how: Any) -> Run:
        made.append(study.config)
        return Run(out)

    monkeypatch.setattr("docleak.front.carry_out", carry_out)
    releases = (Release("a", "vt5-released"),)
    docleak.audit(study="answers", attacks="AZK", releases=releases, division="shipped", out=tmp_path)
    docleak.audit(study="pairs", attacks=["mmgia"], out=tmp_path)
    assert made[0].attacks == (ANSWERS.load("AZK"),) and made[1].attacks == ("mmgia",)
    with pytest.raises(DocleakError, match="unknown attack on answers 'dlg'"):
        docleak.audit(study="answers", attacks="dlg", releases=releases, division="shipped", out=tmp_path)


def test_a_script_without_main_guard_is_told_so(tmp_path: Path) -> None:
    """Its workers import it again, and would start workers; neither may this go on for ever."""
    script = tmp_path / "script.py"
    script.write_text(
        "import docleak\n"
        f"docleak.audit({MODEL!r}, attacks='random', budget=1, count=2, workers=2, out={str(tmp_path / 'run')!r})\n"
    )
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 1
    assert "if __name__ == '__main__'" in run.stderr and "before its first unit" in run.stderr


def test_a_script_that_is_piped_in_has_workers(tmp_path: Path) -> None:
    script = (
        "import docleak\n"
        f"docleak.audit({MODEL!r}, 'synthetic', attacks='random', budget=1, seed=1, workers=2, out='run')\n"
    )
    run = subprocess.run(
        [sys.executable, "-"], input=script, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    assert len(docleak.load_run(tmp_path / "run").to_frame()) == 2


def test_trainings(pages: list[docleak.Page], tmp_path: Path) -> None:
    many = list(docleak.load_pages("synthetic", count=12, seed=3))
    tiny: dict[str, Any] = {"max_steps": 1, "seed": 1}
    central = docleak.train(pages=many, rounds=1, out=tmp_path / "central", **tiny)
    assert "no differential privacy" in central.verdict.sentence
    central = docleak.train(pages=many, rounds=2, out=tmp_path / "central", **tiny)
    assert list(central.tables()["rounds"]["after"]) == ["round 0", "round 1", "round 2"]
    assert {"round-0001", "round-0002"} <= set(central.to_frame()["unit"])
    with pytest.raises(DocleakError, match="holds other pages than those given now"):
        docleak.train(pages=many[:5], rounds=3, out=tmp_path / "central", **tiny)
    silos = {"a": many[:6], "b": many[6:]}
    private = docleak.train(silos=silos, rounds=1, noise=1.0, denominator=4, delta=1e-3, holdout=0.0, max_steps=1,
                            out=tmp_path / "private")  # fmt: skip
    assert "epsilon" in private.verdict.sentence and "per provider" in private.verdict.sentence
    assert docleak.load_model(str(tmp_path / "private" / "model")).architecture == "vt5"
    record = docleak.train(
        docleak.TrainingSettings(rounds=1, noise=1.0, denominator=4, delta=1e-3, unit="record"),
        pages=many, out=tmp_path / "record",
    )  # fmt: skip
    assert "per record" in record.verdict.sentence


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"delta": 1e-3}, "delta: of a private training"),
        ({"roundz": 1}, "Did you mean 'rounds'"),
        ({"epsilon": 8.0}, "denominator is 0"),
        ({"unit": "record", "noise": 1.0, "denominator": 4, "epochs": 3}, "has no epochs"),
        ({"unit": "record", "noise": 1.0, "denominator": 4, "capture": True}, "no rounds to capture"),
        ({"silos": 2}, "silos and pages are both given"),
        ({"documents": 3}, "pages are given"),
        ({"beta1": 0.5}, "beta1 belongs to server fedavgm or fedadam"),
        ({"beta1": 0.9}, "beta1 belongs to server fedavgm or fedadam"),
        ({"secure_threshold": 2}, "secure_threshold belongs to secure, and does nothing here"),
        ({"config": docleak.TrainingSettings(), "rounds": 2}, "config has all settings already"),
    ],
)
def test_trainings_that_say_something_idle_are_refused(
    settings: dict[str, Any], said: str, pages: list[docleak.Page], tmp_path: Path
) -> None:
    with pytest.raises(DocleakError, match=said):
        docleak.train(pages=pages, out=tmp_path / "run", **settings)
    assert not list((tmp_path / "run").glob("units/*"))


@pytest.mark.parametrize(
    ("study", "settings", "said"),
    [
        ("weights", {"target": "encoder-start", "epochs": 3}, "epochs belongs to a target that is trained here"),
        ("weights", {"target": "encoder-start", "control": False}, "control belongs to a target that is trained here"),
        ("updates", {"updates": "there", "before": "", "after": ""}, "before, after belong to weights instead of"),
    ],
)
def test_audits_that_say_something_idle_are_refused(
    study: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """As on the command line: what does nothing is not passed over in silence."""
    documents = {"documents": "synthetic", "public_documents": "other"} if study == "weights" else {}
    with pytest.raises(DocleakError, match=said):
        docleak.audit(study=study, out=tmp_path / "run", **settings, **documents)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("study", "settings", "said"),
    [
        ("updates", {}, "or 'before' and 'after' with the weights before and after one client's training"),
        ("updates", {"before": "a"}, "found 'before' a without 'after'; expected both"),
        ("updates", {"updates": "there", "before": "a", "after": "b"}, "there beside 'before' and 'after'"),
        ("updates", {"updates": "here"}, "give the weights themselves: docleak audit updates --before A --after B."),
        ("gradient", {"budget": 3}, "Raise 'budget'"),
        ("presence", {"count": 1}, "Ask for more 'count', or a smaller 'batch_size'"),
        ("presence", {"count": 8, "per_provider": 3, "batch_size": 4}, "multiple of 'per_provider'"),
    ],
)
def test_what_an_audit_cannot_do_is_said_by_the_names_of_arguments(
    study: str, settings: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """``--client`` of the command line is ``clients`` here; only whole commands to type keep theirs."""
    with pytest.raises(DocleakError) as error:
        docleak.audit(study=study, out=tmp_path / "run", **settings)
    assert said in str(error.value)
    assert "--" not in str(error.value).partition("docleak audit")[0]


def test_a_training_that_cannot_be_declared_public_is_told_by_the_argument(
    pages: list[docleak.Page], tmp_path: Path
) -> None:
    with pytest.raises(DocleakError, match=r"^'start_is_public' belongs to a start of which nothing is recorded"):
        docleak.train(
            pages=pages, model="vt5-start", noise=1.0, denominator=4, start_is_public=True, out=tmp_path / "run"
        )


def test_a_training_begins_with_a_checkpoint(pages: list[docleak.Page], tmp_path: Path) -> None:
    with pytest.raises(DocleakError, match="checkpoint on disk"):
        docleak.train(pages=pages, model=docleak.load_model("vt5-start"), out=tmp_path / "run")


def test_a_paper_s_table(tmp_path: Path) -> None:
    table = docleak.reproduce("gi-dqa/table1", rows="Random", pages=1, budget=1, out=tmp_path / "table")
    frame = table.to_frame()
    assert list(frame["model"]) == ["donut", "layoutlmv3"] and table.page.is_file() and not table.failures
    for wrong in ({"paages": 1}, {"models": {"x": "y"}}, {"scale": "huge"}, {"rows": "no such"}):
        with pytest.raises(DocleakError):
            docleak.reproduce("gi-dqa/table1", out=tmp_path / "other", **wrong)


def test_a_folder_below_the_home_is_where_it_is_said_to_be(
    pages: list[docleak.Page], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    audited = docleak.audit(MODEL, pages[:1], attacks="random", budget=1, seed=1, out="~/run")
    assert audited.paths == docleak.load_run("~/run").paths == (tmp_path / "home" / "run",)
    trained = docleak.train(pages=pages, rounds=1, max_steps=1, out="~/trained")
    table = docleak.reproduce("gi-dqa/table1", rows="Random", pages=1, budget=1, models={}, out="~/table")
    assert {trained.paths[0].parent, table.page.parent.parent} == {tmp_path / "home"}
    assert not (tmp_path / "~").exists()


def test_runs_are_read_from_disk(tmp_path: Path) -> None:
    with pytest.raises(DocleakError, match="no run is named"):
        docleak.load_run([])
    with pytest.raises(DocleakError, match="no docleak run"):
        docleak.load_run(tmp_path)


def _halved(model: DocumentModel) -> None:
    model.module.half()


def _mixed(model: DocumentModel) -> None:
    next(model.module.children()).bfloat16()


def _frozen(model: DocumentModel) -> None:
    model.module.requires_grad_(False)


def _meta(model: DocumentModel) -> None:
    model.module.to("meta")


def _zeroed(model: DocumentModel) -> None:
    with torch.no_grad():
        for weight in model.module.parameters():
            weight.zero_()


def _compiled(model: DocumentModel) -> None:
    model.module = torch.compile(model.module)  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_halved, "has weights in float16, and docleak computes in float32; call model.module.float"),
        (_mixed, "has weights in bfloat16, and docleak computes in float32"),
        (_frozen, r"has no weight that is trained, so a client would send nothing; call requires_grad_\(True\)"),
        (_meta, "has weights on the device meta, which holds no values; load the checkpoint"),
        (_zeroed, "has weights that are all 0, so nothing could be read from its gradients"),
        (_compiled, r"is compiled \(torch.compile\), so its weights have other names; give the network as it was"),
    ],
)
def test_a_model_of_which_no_gradient_can_be_read_is_refused_in_a_sentence(
    change: Callable[[DocumentModel], None], said: str, pages: list[docleak.Page], tmp_path: Path
) -> None:
    model = docleak.load_model(MODEL)
    change(model)
    with pytest.raises(DocleakError, match=f"model {MODEL!r} {said}"):
        docleak.audit(model, pages[:1], attacks="random", budget=1, out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def _as_arrays(gradient: Any) -> Any:
    return {name: value.detach().numpy() for name, value in gradient.items()}


def _flat(gradient: Any) -> Any:
    return {name: value.flatten() for name, value in gradient.items()}


def _renamed(gradient: Any) -> Any:
    return {f"x.{name}": value for name, value in gradient.items()}


def _detached(gradient: Any) -> Any:
    return {name: value.detach() for name, value in gradient.items()}


@dataclass(frozen=True)
class Wrong:
    """A defence of one's own whose methods give what nobody can use."""

    sent: Any = dict
    made: Any = dict
    summary: str = "wrong"

    def protect(self, gradient: Any, model: Any, *, generator: Any) -> Any:
        return self.sent(gradient)

    def imitate(self, dummy: Any, observed: Any) -> Any:
        return self.made(dummy)


@dataclass(frozen=True)
class Unprintable:
    """One of the template, which it loses."""

    made: Any
    summary: str = "wrong"

    def publish(self, model: Any, knowledge: Any, blank: Any, *, generator: Any) -> Any:
        return self.made(knowledge.template)


MAPPING = "expected a mapping from the gradient's names to tensors of floats"


@pytest.mark.parametrize(
    ("defence", "said"),
    [
        (Wrong(_as_arrays), f"protect of defence Wrong gave an array of float32 and the shape .* for .*; {MAPPING}"),
        (Wrong(list), f"protect of defence Wrong gave an object of the type list; {MAPPING}"),
        (Wrong(lambda gradient: None), "protect of defence Wrong gave None; expected"),
        (Wrong(_renamed), "gave something for 'x.*, which the gradient does not have"),
        (Wrong(_flat), r"gave a tensor of float32 and the shape \(\d+,\) for .*, each of the shape that it has there"),
        (Wrong(made=lambda dummy: None), "imitate of defence Wrong gave None; expected"),
        (Wrong(made=_renamed), "imitate of defence Wrong gave nothing for"),
        (Wrong(made=_detached), "imitate of defence Wrong gave tensors that are cut off from the gradient"),
        (Unprintable(lambda template: None), "publish of defence Unprintable gave None; expected a tensor of floats"),
        (Unprintable(lambda template: template[0]), r"of the template's shape, \(1, 3, 224, 224\)"),
    ],
)
def test_what_a_defence_gives_is_named_where_nobody_can_use_it(
    defence: Any, said: str, pages: list[docleak.Page], tmp_path: Path
) -> None:
    with pytest.raises(DefenseError, match=said):
        docleak.audit(MODEL, pages[:1], attacks="dlg", defense=defence, budget=1, out=tmp_path / "run")
