from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import docleak
from docleak import files
from docleak.documents import Image
from docleak.errors import RunError
from docleak.runs.run import Run, _folder_name, _in_order

CONFIG: dict[str, object] = {"seed": 0, "attacks": ("gi-dqa", "dlg"), "budget": 200}


def picture(value: int = 7) -> Image:
    return np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3) + np.uint8(value)


def write(run: Run, unit: str, value: int = 0) -> None:
    run.write_unit(unit, {"value": value}, {"truth": picture(value), "template": picture()})


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "out", CONFIG)
    name = run.write_snapshot("donut--p0--gi-dqa", 50, picture(1))
    run.write_unit("donut--p0--gi-dqa", {"loss": float("nan"), "n": np.float32(0.5)}, {"truth.png": picture(2)})
    run.write_info("command", "docleak audit")
    run.write_image("pages/overview.png", picture(3))
    loaded = Run.load(tmp_path / "out")
    assert loaded == run
    assert loaded.config == {"seed": 0, "attacks": ["gi-dqa", "dlg"], "budget": 200}
    assert loaded.info == {"command": "docleak audit"}
    manifest = loaded.manifest()
    assert manifest["docleak"] == docleak.__version__
    assert manifest["created"] and {"python", "platform", "cpu_count", "torch", "numpy"} <= set(manifest["environment"])
    (record,) = loaded.units()
    assert record == {
        "images": {"truth": "truth.png"},
        "snapshots": [[50, name]],
        "loss": None,
        "n": 0.5,
        "unit": "donut--p0--gi-dqa",
    }
    assert (loaded.read_image(record["unit"], "truth.png") == picture(2)).all()
    assert (loaded.read_image(record["unit"], name) == picture(1)).all()
    assert (tmp_path / "out/pages/overview.png").is_file()


def test_units_beyond_a_thousand_pages_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Folders keep their names, of which "1000" sorts before "101"; other ids come as their texts sort."""
    run, after = Run.open(tmp_path, CONFIG), ("dlg", "gi-dqa")
    ids = [f"donut--{page}--{name}" for page in ("099", "101", "999", "1000", "1010", "10000") for name in after]
    ids += ["layoutlmv3--001--dlg", "page-101", "page-1000", "silo-10", "silo-2", "silo-2016", "silo-9"]
    for unit in reversed(ids):
        write(run, unit)
    assert [record["unit"] for record in run.units()] == ids
    assert (tmp_path / "units" / "donut--1000--dlg" / "unit.json").is_file()


@given(st.sets(st.text("ab019-+._", min_size=1, max_size=12)))
def test_numbers_of_up_to_three_digits_leave_the_order_of_texts(ids: set[str]) -> None:
    """So no run of fewer pages gives other intervals than before."""
    short = [one for one in ids if not re.search(r"\d{4}", one)]
    assert sorted(short, key=_in_order) == sorted(short)


def test_the_same_config_resumes_and_keeps_everything(tmp_path: Path) -> None:
    run = Run.open(tmp_path, CONFIG)
    write(run, "a")
    run.write_info("note", 1)
    before = (tmp_path / "run.json").read_bytes()
    again = Run.open(tmp_path, {**CONFIG, "attacks": ["gi-dqa", "dlg"]})
    assert again.has("a") and not again.has("b")
    assert (tmp_path / "run.json").read_bytes() == before


def test_another_config_is_refused_and_the_differing_keys_are_named(tmp_path: Path) -> None:
    write(Run.open(tmp_path, CONFIG), "a")
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(RunError) as refused:
        Run.open(tmp_path, {"seed": 1, "attacks": ("gi-dqa", "dlg"), "device": "cpu"})
    message = str(refused.value)
    assert "seed: 0 there, 1 asked for" in message and "device: nothing there" in message and "budget: 200" in message
    assert "attacks" not in message and "another folder (out)" in message and "delete" in message
    assert (tmp_path / "run.json").read_bytes() == before


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(Run.open(tmp_path, CONFIG), "a")
    monkeypatch.setattr(docleak, "__version__", "99.0")
    with pytest.raises(RunError, match=r"begun by .*99\.0.* goes on with it, and docleak report reads it; with"):
        Run.open(tmp_path, CONFIG)
    assert Run.load(tmp_path).config["seed"] == 0, "as is said"
    monkeypatch.setattr("docleak.runs.identity.SCHEMA", 98)
    monkeypatch.setattr("docleak.runs.run.SCHEMA", 98)
    for read in (lambda: Run.open(tmp_path, CONFIG), lambda: Run.load(tmp_path)):
        with pytest.raises(RunError, match=r"\(schema 98\).* Docleak [0-9.]+ reads it; with this one"):
            read()


def test_other_weights_or_pages_under_the_same_names_are_refused(tmp_path: Path) -> None:
    """An audit that was interrupted, a model retrained into the same folder: two models in one table."""
    model, out = tmp_path / "model", tmp_path / "out"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"first")
    config = {**CONFIG, "target": str(model)}
    write(Run.open(out, config), "a")
    Run.open(out, config)
    (model / "model.safetensors").write_bytes(b"again")
    with pytest.raises(RunError) as refused:
        Run.open(out, config)
    assert "results of other weights" in str(refused.value) and f"{model}: its files have the hash" in str(
        refused.value
    )
    (out / "units" / "a" / "unit.json").unlink()
    assert Run.open(out, config).manifest()["sources"][str(model)], "nothing finished, nothing mixed"


def test_a_run_without_results_takes_a_corrected_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after an error or Ctrl-C in the first unit; its pictures are not mixed into the new run's."""
    run = Run.open(tmp_path, CONFIG)
    run.write_info("command", "docleak audit --seed 0")
    run.write_snapshot("a", 50, picture())
    again = Run.open(tmp_path, {**CONFIG, "seed": 1})
    assert again.config["seed"] == 1 and again.info == {}
    write(again, "a")
    (unit,) = again.units()
    assert unit["snapshots"] == []
    (again.folder("a") / "unit.json").unlink()
    monkeypatch.setattr(docleak, "__version__", "99.0")
    assert Run.open(tmp_path, CONFIG).manifest()["docleak"] == "99.0"


def test_a_key_that_an_older_run_does_not_have_counts_as_none(tmp_path: Path) -> None:
    write(Run.open(tmp_path, CONFIG), "a")
    assert Run.open(tmp_path, {**CONFIG, "image_size": None}).has("a")
    with pytest.raises(RunError, match=r"image_size: nothing there, \[3, 4\] asked for"):
        Run.open(tmp_path, {**CONFIG, "image_size": (3, 4)})


CLAIM = """
import sys
from pathlib import Path
from docleak.runs.run import Run
with Run.load(Path(sys.argv[1])).claimed():
    print("claimed", flush=True)
    sys.stdin.readline()
"""


def test_a_run_that_another_process_is_computing_is_left_alone(tmp_path: Path) -> None:
    run = Run.open(tmp_path, CONFIG)
    other = subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdout.readline() == "claimed\n"
    try:
        with pytest.raises(RunError, match="another docleak is at work"), run.claimed():
            pass
        with pytest.raises(RunError, match="another docleak is at work"):
            Run.open(tmp_path, {**CONFIG, "seed": 1})
        assert run.config["seed"] == 0
    finally:
        other.kill()
        other.wait(30)
    with run.claimed():  # a killed process leaves no claim behind
        pass


def test_foreign_directories_and_files_are_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"x")
    with pytest.raises(RunError, match=r"holiday\.jpg"):
        Run.open(tmp_path, CONFIG)
    assert [item.name for item in tmp_path.iterdir()] == ["holiday.jpg"]
    for path in (tmp_path / "holiday.jpg", tmp_path / "holiday.jpg" / "out"):
        with pytest.raises(RunError, match="file in the way"):
            Run.open(path, CONFIG)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="may write"):
        Run.open(tmp_path / "out", CONFIG)


def test_a_folder_that_is_no_run_says_what_it_is(tmp_path: Path) -> None:
    """ "It has no run.json" was said of what is not there, and of a folder of runs."""
    with pytest.raises(RunError, match=r"none is no docleak run: there is no such folder\."):
        Run.load(tmp_path / "none")
    for name in ("b", "a"):
        Run.open(tmp_path / name, CONFIG)
    with pytest.raises(RunError, match=r"it has no run\.json, but its folders a, b have one: name these\."):
        Run.load(tmp_path)
    with pytest.raises(RunError, match=r"it is a file\. Give the folder of a run\."):
        Run.load(tmp_path / "a" / "run.json")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"config": {}}', '{"docleak": 1}'])
def test_a_damaged_or_missing_manifest_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(RunError, match="no docleak run"):
        Run.load(tmp_path)
    (tmp_path / "run.json").write_text(content)
    advised = "Delete the folder" if len(content) < 3 else "run.json lacks"
    with pytest.raises(RunError, match=advised):
        Run.load(tmp_path)
    with pytest.raises(RunError, match=advised):
        Run.open(tmp_path, CONFIG)


@pytest.mark.parametrize(("key", "wrong"), [("identity", []), ("sources", None), ("command", 3), ("config", "x")])
def test_a_manifest_of_another_shape_is_refused(tmp_path: Path, key: str, wrong: object) -> None:
    run = Run.open(tmp_path / "run", CONFIG)
    (run.path / "run.json").write_text(json.dumps({**run.manifest(), key: wrong}))
    with pytest.raises(RunError, match=f"lacks {key}"):
        Run.load(run.path)
    with pytest.raises(RunError, match=f"lacks {key}"):
        Run.open(run.path, CONFIG)


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "disk is full"), (errno.EFBIG, "a limit on the size of files")],
)
def test_a_full_disk_is_reported_and_leaves_no_half_file(
    number: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.open(tmp_path, CONFIG)

    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(RunError, match=f"{said}.*run the same command again"):
        write(run, "a")
    assert not run.has("a") and not [file for file in tmp_path.rglob("*") if file.name.startswith(".docleak")]


def test_a_unit_killed_between_its_pictures_and_its_record_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.open(tmp_path, CONFIG)
    write(run, "done")
    real = files.write_atomically

    def killed(file: Path, content: bytes) -> None:
        if file.name == "unit.json":
            raise KeyboardInterrupt
        real(file, content)

    monkeypatch.setattr(files, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        write(run, "half")
    assert (run.folder("half") / "truth.png").is_file()
    assert not run.has("half") and [unit["unit"] for unit in run.units()] == ["done"]
    monkeypatch.undo()
    write(Run.open(tmp_path, CONFIG), "half", 5)
    assert [unit["value"] for unit in run.units()] == [0, 5]


WORKER = """
import sys, numpy as np
from pathlib import Path
from docleak.runs.run import Run
run, worker = Run.load(Path(sys.argv[1])), int(sys.argv[2])
for index in range(5):
    picture = np.full((4, 5, 3), index, np.uint8)
    run.write_snapshot(f"w{worker}--{index}", 10, picture)
    run.write_unit(f"w{worker}--{index}", {"value": worker * 10 + index}, {"truth.png": picture})
"""


def test_workers_write_different_units_at_the_same_time(tmp_path: Path) -> None:
    run = Run.open(tmp_path, CONFIG)
    started = [subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path), str(worker)]) for worker in (0, 1)]
    assert [process.wait(60) for process in started] == [0, 0]
    assert [unit["value"] for unit in run.units()] == [*range(5), *range(10, 15)]
    assert all(len(unit["snapshots"]) == 1 for unit in run.units())


@given(st.lists(st.text(max_size=200), unique=True, max_size=6))
def test_folders_are_safe_and_never_shared(ids: list[str]) -> None:
    names = [_folder_name(unit) for unit in ids]
    assert len({name.lower() for name in names}) == len(ids)
    for name in names:
        assert name and not {*name} & {*'/\\:*?"<>|\0'} and not name.startswith(".") and len(name) < 120


def test_hostile_unit_ids_stay_inside(tmp_path: Path) -> None:
    run = Run.open(tmp_path / "out", CONFIG)
    for unit in ("../../evil", "/etc/passwd", "A b", "a B", "", "ünit", "x" * 300):
        write(run, unit)
        assert run.folder(unit).parent == tmp_path / "out" / "units" and run.has(unit)
    assert len(run.units()) == 7
    assert {item.name for item in tmp_path.iterdir()} == {"out"}


@pytest.mark.parametrize("relative", ["../x.png", "/x.png", "a/../../x.png", "", "a\\..\\x.png"])
def test_pictures_stay_inside(tmp_path: Path, relative: str) -> None:
    run = Run.open(tmp_path / "out", CONFIG)
    with pytest.raises(RunError, match="not the name of a file inside"):
        run.write_image(relative, picture())
    with pytest.raises(RunError, match="not the name of a file inside"):
        run.read_image("a", relative)


def test_bad_pictures_and_records_are_refused(tmp_path: Path) -> None:
    run = Run.open(tmp_path, CONFIG)
    with pytest.raises(RunError, match="float64"):
        run.write_unit("a", {}, {"truth": np.zeros((2, 2, 3))})  # type: ignore[dict-item]
    with pytest.raises(RunError, match="set"):
        run.write_unit("a", {"x": {1}}, {})
    with pytest.raises(RunError, match="cannot be read"):
        run.read_image("a", "truth.png")
    write(run, "b")
    (run.folder("b") / "unit.json").write_text("{")
    with pytest.raises(RunError, match=r"unit\.json"):
        run.units()


def test_a_picture_that_one_may_not_read_is_not_to_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "truth.png")

    run = Run.open(tmp_path, CONFIG)
    write(run, "a")
    monkeypatch.setattr("PIL.Image.open", refused)
    with pytest.raises(RunError, match=r"may not be read .*the right to read it"):
        run.read_image("a", "truth.png")


def test_files_are_plain_json(tmp_path: Path) -> None:
    run = Run.open(tmp_path, CONFIG)
    write(run, "é \ud800")
    assert json.loads((run.folder("é \ud800") / "unit.json").read_text("utf-8"))["unit"] == "é \ud800"


def test_of_settings_within_settings_the_one_that_differs_is_named(tmp_path: Path) -> None:
    attack = {"object": "mine:Attack", "fields": {"rate": 1, "steps": 5}}
    run = Run.open(tmp_path / "run", {"objects": {"mine": attack}, "seed": 0}, kind="gradient", identity={})
    run.write_unit("one", {"unit": "one"}, {})
    other = {"objects": {"mine": {**attack, "fields": {"rate": 2, "steps": 5}}}, "seed": 0}
    with pytest.raises(RunError) as refused:
        Run.open(tmp_path / "run", other, kind="gradient", identity={})
    assert "\n  - objects.mine.fields.rate: 1 there, 2 asked for\nGive another folder (out)" in str(refused.value)
