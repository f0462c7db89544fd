"""The command line: what it prints, and that its exit code is 0 only if the work was done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from docleak.attacks.asking import blamed
from docleak.attacks.registries import ANSWERS, ATTACKS, PAIRS, WEIGHTS
from docleak.cli import main
from docleak.cli.app import command_line
from docleak.cli.attack import PANELS, PARTS
from docleak.cli.doctor import Check
from docleak.cli.guard import commands_of
from docleak.cli.output import Progress, _left, counter
from docleak.cli.studies import default_workers
from docleak.documents import LOADERS, Page, Question, blank_template, load_pages
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError, DocleakError
from docleak.models import SHIPPED
from docleak.models.device import pick_device
from docleak.models.shipped import SHIPPED_ALIGNERS, SHIPPED_ENCODERS, SHIPPED_FOR_PAIRS, SHIPPED_GENERATOR
from docleak.models.tiny import donut_start
from docleak.options import options_of
from docleak.spec import items
from docleak.studies.gradient.config import GradientConfig


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as one JSON value."""
        return json.loads(self.out)


Docleak = Callable[..., Result]


@pytest.fixture
def docleak(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Docleak:
    """Run a command in this process, in an empty folder, as the installed script does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["docleak", *map(str, words)])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
        return Result(code, *capsys.readouterr())

    return run


def test_a_command_leaves_no_handler_and_works_in_any_thread(docleak: Docleak) -> None:
    """A program that calls main was no more ended by SIGTERM as it had asked, and in a thread it was a ValueError."""
    before = signal.getsignal(signal.SIGTERM)
    assert docleak("--version").code == 0
    assert signal.getsignal(signal.SIGTERM) is before
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(docleak, "--version").result().code == 0


def failed(result: Result, *said: str) -> None:
    """Exit code 1 and one message on stderr, no traceback."""
    assert result.code == 1, result
    assert result.err.startswith("docleak: ") or "\ndocleak: " in result.err
    assert "Traceback" not in result.err
    for part in said:
        assert part in result.err, result.err


#: Every command: its words, and what the command line has of it.
COMMANDS = {tuple(path.split()): command for path, command in commands_of(command_line())}


def test_these_are_the_commands() -> None:
    wanted = (
        "audit, audit gradient, audit updates, audit weights, audit answers, audit pairs, audit canaries, "
        "attack gi-dqa, attack cdmi, attack mmgia, attack membership, attack canaries, defend, report, reproduce, "
        "train federated, budget, doctor, data list, data make, data convert, data inspect, models list, "
        "models pretrain"
    )
    assert {" ".join(words) for words in COMMANDS} >= set(wanted.split(", "))


#: They run until they are stopped, and have no result to print.
SERVICES = (("deploy", "node"), ("deploy", "superlink"))


def test_a_log_says_how_long_the_rest_takes(capsys: pytest.CaptureFixture[str]) -> None:
    """By the units that were finished since the first: what was there before took no time."""
    an_hour_ago = [(time.monotonic() - 3600, 5)]
    assert _left(an_hour_ago, 6, 8) == ", about 120 min left" and _left(an_hour_ago, 7, 8) == ", about 30 min left"
    assert _left([(time.monotonic() - 30, 0)], 1, 3) == ", about 60 s left"
    assert _left([], 5, 8) == _left(an_hour_ago, 5, 8) == _left(an_hour_ago, 8, 8) == ""
    with counter() as on_unit:
        on_unit(1, 3, "row")
        on_unit(2, 3, "row")
    lines = [line for line in capsys.readouterr().err.splitlines() if "units" in line]
    assert lines == ["row: 1 of 3 units", "row: 2 of 3 units, about 0 s left"]


def test_version(docleak: Docleak) -> None:
    import docleak as package

    result = docleak("--version")
    assert (result.code, result.out) == (0, f"docleak {package.__version__}\n")
    run = subprocess.run([sys.executable, "-m", "docleak", "--version"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, result.out)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_json(words: tuple[str, ...], docleak: Docleak) -> None:
    result = docleak(*words, "--help")
    assert result.code == 0
    assert ("--json" in result.out) != (words in SERVICES)
    command = COMMANDS[words]
    assert command.help and command.help.splitlines()[0] in result.out
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{parameter.name} has no help"


@pytest.mark.parametrize("words", [(), ("data",), ("models",), ("attack",)])
def test_no_command_shows_what_there_is(words: tuple[str, ...], docleak: Docleak) -> None:
    result = docleak(*words)
    shown = result.out + result.err
    assert all(name[len(words)] in shown for name in COMMANDS if name[: len(words)] == words)


def in_a_process(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    source = Path(__file__).parents[2] / "src"
    environment = {**os.environ, "PYTHONPATH": str(source)}
    code = "from docleak.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    wrong = in_a_process("attack", "gi-dqua", "--json", cwd=tmp_path)
    assert wrong.returncode == 1
    assert set(json.loads(wrong.stdout)) == {"error"}
    assert wrong.stderr.startswith("docleak: unknown attack 'gi-dqua'") and "Traceback" not in wrong.stderr
    assert not list(tmp_path.iterdir())


# -- attacks and audits ------------------------------------------------------------------------------------------------


def test_attack_list(docleak: Docleak) -> None:
    known = [*ATTACKS, *PAIRS, *WEIGHTS, *ANSWERS, *PARTS]
    assert list(docleak("attack", "--list", "--json").json()) == known
    lines = docleak("attack", "--list").out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == known
    assert [line for line in lines if line and not line.startswith("  ")] == [f"{panel}:" for panel in PANELS.values()]


@pytest.mark.parametrize("words", [("attack", "gi-dqua"), ("audit", "--attacks", "random,gi-dqua")])
def test_an_unknown_attack_lists_the_known_ones(words: tuple[str, ...], docleak: Docleak, tmp_path: Path) -> None:
    failed(docleak(*words), "unknown attack", *ATTACKS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("attack", "random", "--model", "donut-strat"), "Did you mean 'donut-start'"),
        (("audit", "--model", "/no/such/model"), "there is no model '/no/such/model'"),
        (("attack", "random", "--documents", "no/such/pages"), "neither a format nor an existing path"),
        (("attack", "random", "--stages", "vision,middle"), "unknown stage middle; expected some of vision, text"),
        (("attack", "random", "--device", "abacus"), "device 'abacus' cannot be used here"),
        (("attack", "random", "--ocr", "eyes"), "unknown OCR engine 'eyes'"),
        (("attack", "random", "--pages", "0"), "--pages is 0; expected 1 to"),
        (("audit", "gradient", "--attacks", ""), "no attack is named; expected a name or an object, or several"),
        (("audit", "pairs", "--attacks", ""), "is named; expected a name or an object, or several"),
        (("attack", "random", "--budget", "-5"), "--budget is -5; expected 1 to"),
        (("attack", "random", "--gradient", "no.safetensors"), "there is no gradient file 'no.safetensors'"),
        (("attack", "random", "--seed", "-1"), "seed is -1"),
        (("audit", "--image-size", "big"), "image size 'big' is not WIDTHxHEIGHT"),
        (("audit", "--compare-defenses", "--recover-text"), "or use docleak defend"),
        (("audit", "--image-size", "100"), "image size '100' is not WIDTHxHEIGHT"),
        (("attack", "random", "--image-size", "0x5"), "image size '0x5' is not WIDTHxHEIGHT"),
        (("attack", "random", "--image-size", "320x99999"), "image size '320x99999' has 31,999,680 pixels"),
        (("attack", "random", "--image-size", "9x9"), "9 x 9 pixels are too small for model 'donut-start'"),
        (("audit", "--image-size", "320x608"), "only takes pages of 224 x 224 pixels, not 320 x 608"),
        (("attack", "random", "--model", "donut-start@v2"), "only models of the hub have revisions"),
    ],
)
def test_what_cannot_be_done_is_said_plainly_and_as_json(
    words: tuple[str, ...], said: str, docleak: Docleak, tmp_path: Path
) -> None:
    failed(docleak(*words), said)
    result = docleak(*words, "--json", "--out", tmp_path / "other")
    assert result.code == 1
    assert said in result.json()["error"]
    assert not list(tmp_path.iterdir()), "the corrected command can use the same directory"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("audit", "--pages", "many"), "Invalid value for '--pages'"),
        (("audit", "--no-such-option"), "--no-such-option"),
        (("audti",), "No such command 'audti'"),
        (("report",), "Missing argument"),
    ],
)
def test_usage_errors_have_another_exit_code(words: tuple[str, ...], said: str, docleak: Docleak) -> None:
    plain = docleak(*words)
    assert (plain.code, plain.out) == (2, "") and said in plain.err
    result = docleak(*words, "--json")
    assert result.code == 2 and "Traceback" not in result.err
    assert set(result.json()) == {"error"} and said in result.json()["error"]


def test_a_path_that_cannot_be_read_is_one_json_object_too(docleak: Docleak, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for words in (("attack", "random", "--out", "file"), ("data", "make", "file/pages", "--count", "1")):
        result = docleak(*words, "--json")
        assert result.code == 1 and set(result.json()) == {"error"}


def test_an_out_that_is_a_file(docleak: Docleak, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    failed(docleak("attack", "random", "--out", "taken"), "there is a file in the way", "another path")
    assert (tmp_path / "taken").read_text() == "mine"


def test_an_out_that_is_somebody_elses_folder(docleak: Docleak, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_text("meow")
    failed(docleak("attack", "random", "--out", "photos"), "no docleak run", "cat.jpg")


def small_pages(directory: Path) -> None:
    """Pages of 192 x 224 with the question cut short, for the few positions of a tiny model."""
    pages = []
    for page in make_pages(2, seed=0, size=(192, 224)):
        question = page.questions[0]
        pages.append(Page(page.name, page.image, page.words, page.fields, (Question("Q?", question.answers),)))
    save(pages, directory)


def test_attack_and_report(docleak: Docleak, tmp_path: Path) -> None:
    donut_start(seed=0, size=(96, 112)).save(str(tmp_path / "model"))
    small_pages(tmp_path / "pages")
    words = ("attack", "random", "--model", "model", "--documents", "pages", "--out", "run", "--workers", "1")
    result = docleak(*words, "--json")
    assert result.code == 0, result.err
    done = result.json()
    assert Path(done["report"]).is_file()
    assert json.loads(Path(done["results"]).read_text())
    (unit,) = (tmp_path / "run" / "units").iterdir()
    assert {"unit.json", "truth.png", "template.png", "reconstruction.png"} <= {file.name for file in unit.iterdir()}
    page = Path(done["report"]).read_text()
    assert "random" in page and "docleak attack random" in page

    Path(done["report"]).unlink()
    again = docleak("report", "run", "--json")
    assert again.code == 0 and Path(again.json()["report"]).is_file()

    resumed = docleak(*words)
    assert resumed.code == 0 and "Report:" in resumed.out
    assert "1 unit, 1 done already; what is finished" in resumed.err
    failed(docleak(*words, "--seed", "77"), "another config", "seed")


def test_fewer_pages_than_asked_for_are_told(docleak: Docleak, tmp_path: Path) -> None:
    donut_start(seed=0, size=(96, 112)).save(str(tmp_path / "model"))
    small_pages(tmp_path / "pages")
    words = ("attack", "random", "--model", "model", "--documents", "pages", "--workers", "1", "--pages", "10")
    said = "Asked for 10 pages; pages has 2 with private fields, so 2 are audited."
    result = docleak(*words, "--out", "run")
    assert result.code == 0
    assert said in result.err and "2 units; what is finished appears in" in result.err and said in result.out
    again = docleak(*words, "--out", "run", "--json")
    assert again.code == 0 and said in again.err
    assert again.json()["shortage"] == [said] and len(list((tmp_path / "run" / "units").iterdir())) == 2


def test_an_attack_on_pages_of_another_size(docleak: Docleak, tmp_path: Path) -> None:
    donut_start(seed=0, size=(96, 112)).save(str(tmp_path / "model"))
    small_pages(tmp_path / "pages")
    words = ("attack", "random", "--model", "model", "--documents", "pages", "--workers", "1", "--out", "run")
    result = docleak(*words, "--image-size", "131x150", "--json")
    assert result.code == 0, result.err
    (unit,) = (tmp_path / "run" / "units").iterdir()
    assert PIL.Image.open(unit / "truth.png").size == (131, 150)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["image_size"] == [131, 150]
    failed(docleak(*words), "another config", "image_size: [131, 150] there, null asked for")


FULL = """
import os, resource, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
from docleak.cli import main
main()
"""


def on_a_full_disk(limit: int, *words: str, workers: int, docleak: Docleak, cwd: Path) -> Result:
    """A command that can write no file beyond ``limit`` bytes: with workers in a process of its own, which they are
    started by; else in this one."""
    words = (*words, "--workers", str(workers))
    if workers > 1:
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        full = subprocess.run(
            [sys.executable, "-c", FULL, str(limit), *words],
            capture_output=True, text=True, check=False, cwd=cwd, env=environment,
        )  # fmt: skip
        return Result(full.returncode, full.stdout, full.stderr)
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        return docleak(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "workers", "more"), [(4_000, 2, ("--json",)), (12_000, 1, ())], ids=["in a worker", "for the report"]
)
def test_a_full_disk_stops_the_audit_and_a_rerun_goes_on(
    limit: int, workers: int, more: tuple[str, ...], docleak: Docleak, tmp_path: Path
) -> None:
    """The operating system really refuses here: for a picture in a worker process, or only for the report."""
    donut_start(seed=0, size=(96, 112)).save(str(tmp_path / "model"))
    small_pages(tmp_path / "pages")
    unfinished = workers > 1
    words = ("audit", "--attacks", "random", "--model", "model", "--documents", "pages", "--pages", "2", "--out", "run")
    full = on_a_full_disk(limit, *words, *more, workers=workers, docleak=docleak, cwd=tmp_path)
    assert full.code == 1, full.err
    assert "docleak: cannot write" in full.err and "a limit on the size of files was reached" in full.err
    assert "run the same command again" in full.err and "Traceback" not in full.err
    if "--json" in more:
        assert set(full.json()) == {"error"}
    left = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert not [file for file in left if file.name.startswith(".docleak")], "half a file was left"
    assert not (tmp_path / "run" / "report.html").exists()
    for file in left:
        if file.suffix == ".json":
            json.loads(file.read_text())
        else:
            PIL.Image.open(file).load()
    assert len([file for file in left if file.name == "unit.json"]) == (0 if unfinished else 2)
    done = docleak(*words, "--workers", "1")
    assert done.code == 0, done.err
    assert ("2 units;" if unfinished else "2 units, 2 done already;") in done.err
    assert (tmp_path / "run" / "report.html").is_file()


def test_progress_is_not_on_standard_output(docleak: Docleak, tmp_path: Path) -> None:
    donut_start(seed=0, size=(96, 112)).save(str(tmp_path / "model"))
    small_pages(tmp_path / "pages")
    words = ("attack", "random", "--model", "model", "--documents", "pages", "--workers", "1")
    result = docleak(*words, "--pages", "2", "--out", "run")
    assert result.code == 0
    assert "units; what is finished appears in" in result.err and "units; what" not in result.out
    finished = [line.split(": ")[1] for line in result.err.splitlines() if " of 2 units" in line]
    assert [line.partition(",")[0] for line in finished] == ["1 of 2 units", "2 of 2 units"]
    assert "evaluations" not in result.err, "the random guess makes none"


def test_every_finished_unit_has_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with Progress() as watcher:
        watcher.began({"a": 10, "b": 10}, set())
        for number in (3, 10, 10):
            watcher.reached("a", number, 10)
        watcher.reached("b", 10, 10)
    lines = [line.strip() for line in capsys.readouterr().err.splitlines() if "of 2" in line]
    assert [line.partition(",")[0] for line in lines] == ["a: 1 of 2 units", "b: 2 of 2 units"]
    with Progress() as watcher:
        watcher.began({"a": 10, "b": 10}, {"a"})
        watcher.reached("b", 10, 10)
    lines = [line.strip() for line in capsys.readouterr().err.splitlines() if "of 2" in line]
    assert lines == ["b: 2 of 2 units"], "what was done before counts"
    with Progress() as watcher:
        watcher._first = [(time.monotonic() - 3600, 0)]
        watcher.began({"a": 10, "b": 10}, set())
        watcher.reached("a", 10, 10)
    assert "a: 1 of 2 units\n" in capsys.readouterr().err, "a study is not measured by the one before it"
    monkeypatch.setattr(sys, "argv", ["docleak", "--json"])
    with Progress() as watcher:
        watcher.began({"a": 10}, set())
        watcher.reached("a", 10, 10)
    assert capsys.readouterr() == ("", "")


def test_a_resumed_bar_begins_at_what_is_done_and_its_eta_is_about_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    import rich.progress

    made: list[Any] = []

    class Watched(rich.progress.Progress):
        def __init__(self, *columns: Any, **options: Any) -> None:
            self.now = 0.0
            super().__init__(*columns, **options, get_time=lambda: self.now)
            made.append(self)

    monkeypatch.setattr(rich.progress, "Progress", Watched)
    with Progress() as watcher:
        (bar,) = made
        watcher.began(dict.fromkeys(("a", "b", "c", "d"), 100), {"a", "b", "c"})
        assert bar.tasks[0].percentage == 75
        for number in (10, 20):
            bar.now += 10.0  # one evaluation a second
            watcher.reached("d", number, 100)
        assert bar.tasks[0].time_remaining == pytest.approx(80)


def test_a_report_of_what_is_no_run(docleak: Docleak, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    failed(docleak("report", "empty"), "no docleak run", "run.json")
    failed(docleak("report", "no/such/run"), "no docleak run")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text("{")
    failed(docleak("report", "damaged"), "run.json cannot be read")
    assert "no docleak run" in docleak("report", "empty", "--json").json()["error"]


# -- pages -------------------------------------------------------------------------------------------------------------


def test_data_list(docleak: Docleak) -> None:
    rows = docleak("data", "list", "--json").json()
    assert set(rows) == set(LOADERS)
    assert all(len(text) > 20 for text in rows.values())
    plain = docleak("data", "list")
    assert plain.code == 0 and all(text in plain.out for text in rows.values())


def test_data_make_is_what_the_library_makes(docleak: Docleak, tmp_path: Path) -> None:
    result = docleak("data", "make", "new/pages", "--count", 2, "--seed", 5, "--json")
    assert result.code == 0
    assert result.json() == {"pages": 2, "out": "new/pages"}
    made, expected = load_pages(str(tmp_path / "new/pages"), seed=0), make_pages(2, seed=5)
    assert [page.name for page in made] == [page.name for page in expected]
    assert (made[1].image == expected[1].image).all()
    failed(docleak("data", "make", "new/pages"), "pages are only written to a new folder")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--count", "0"), "--count is 0; expected 1 to"),
        (("--count", "-1"), "count is -1"),
        (("--width", "50"), "--width is 50; expected 192 to"),
        (("--seed", "-1"), "seed is -1"),
    ],
)
def test_data_make_refuses(words: tuple[str, ...], said: str, docleak: Docleak, tmp_path: Path) -> None:
    failed(docleak("data", "make", "pages", *words), said)
    assert not list(tmp_path.iterdir())


def test_data_make_below_a_file(docleak: Docleak, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    failed(docleak("data", "make", "file/pages", "--count", "1"), "file")


def test_data_convert(docleak: Docleak, tmp_path: Path) -> None:
    save(make_pages(3, seed=1), tmp_path / "pages")
    result = docleak("data", "convert", "folder:pages", "copy", "--count", 2)
    assert result.code == 0 and "2 pages written to copy" in result.out
    old, new = load_pages("folder:pages", seed=0), load_pages("copy", seed=0)
    assert len(new) == 2
    assert all((a.image == b.image).all() and a.fields == b.fields for a, b in zip(old, new, strict=False))
    failed(docleak("data", "convert", "nowhere", "other"), "'nowhere' is neither a format nor an existing path")
    failed(docleak("data", "convert", "synthetc", "other"), "Did you mean 'synthetic'?")
    failed(docleak("data", "convert", "pages", "copy"), "only written to a new folder")


def test_data_inspect(docleak: Docleak, tmp_path: Path) -> None:
    page = make_pages(2, seed=3)[1]
    result = docleak("data", "inspect", "--seed", 3, "--page", 1, "--out", "one.png", "--json")
    assert result.code == 0
    assert result.json() == {
        "name": page.name, "fields": {f.key: f.value for f in page.fields}, "picture": "one.png",
    }  # fmt: skip
    drawn = np.asarray(PIL.Image.open(tmp_path / "one.png"))
    factor = drawn.shape[0] // page.height
    assert factor >= 2 and drawn.shape[1] > factor * page.width
    plain = docleak("data", "inspect", "--seed", 3, "--page", 1, "--template", "--out", "blank.png")
    assert page.name in plain.out and page.fields[0].value in plain.out
    blank = np.asarray(PIL.Image.open(tmp_path / "blank.png"))
    inside = slice(None, factor * page.height, factor), slice(None, factor * page.width, factor)
    assert (blank[inside] == blank_template(page)).mean() > (drawn[inside] == blank_template(page)).mean()


@pytest.mark.parametrize(("number", "said"), [(2, "has 2 pages"), (99, "has 2 pages")])
def test_data_inspect_of_a_page_that_does_not_exist(number: int, said: str, docleak: Docleak, tmp_path: Path) -> None:
    save(make_pages(2, seed=0), tmp_path / "pages")
    failed(docleak("data", "inspect", "pages", "--page", number), f"page {number} does not exist", said)


def test_data_inspect_draws_over_nothing_of_the_data(docleak: Docleak, tmp_path: Path) -> None:
    docleak("data", "make", "pages", "--count", 1)
    before = {file: file.read_bytes() for file in (tmp_path / "pages").iterdir()}
    picture = next(file for file in before if file.suffix == ".png")
    failed(docleak("data", "inspect", "pages", "--out", picture), "it would take its place")
    failed(docleak("data", "inspect", "pages", "--out", "pages/pages.jsonl"), "expected a file that ends in .png")
    assert {file: file.read_bytes() for file in (tmp_path / "pages").iterdir()} == before


def test_data_inspect_of_a_corrupt_image(docleak: Docleak, tmp_path: Path) -> None:
    save(make_pages(1, seed=0), tmp_path / "pages")
    (image,) = (tmp_path / "pages").glob("*.png")
    image.write_bytes(image.read_bytes()[:200])
    failed(docleak("data", "inspect", "pages"), "cannot be decoded as an image", image.name)
    assert not (tmp_path / "page.png").exists()


def test_data_inspect_to_a_place_that_cannot_be_written(docleak: Docleak, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    failed(docleak("data", "inspect", "--out", "folder"), "folder")
    failed(docleak("data", "inspect", "--out", "file/page.png"), "file")


# -- models and doctor -------------------------------------------------------------------------------------------------


def test_models_list(docleak: Docleak) -> None:
    rows = docleak("models", "list", "--json").json()
    assert {name: row["title"] for name, row in rows.items()} == {**SHIPPED, **SHIPPED_ENCODERS, **SHIPPED_FOR_PAIRS}
    plain = docleak("models", "list")
    assert plain.code == 0 and all(name in plain.out for name in (*SHIPPED, *SHIPPED_ALIGNERS, SHIPPED_GENERATOR))
    assert "finds the text of an unseen scene among twenty in 99.7%" in plain.out and " 0 parameters" not in plain.out


def test_models_pretrain_of_an_unknown_architecture(docleak: Docleak, tmp_path: Path) -> None:
    failed(docleak("models", "pretrain", "gpt", "new"), "unknown architecture 'gpt'", "donut, layoutlmv3")
    assert not list(tmp_path.iterdir())


def test_doctor(docleak: Docleak) -> None:
    result = docleak("doctor", "--json")
    assert result.code == 0, result.out
    rows = result.json()
    assert {"torch", "checkpoints", "ocr", "double backward", "fonts", "gpu"} <= set(rows)
    assert all(rows[name]["passed"] for name in ("torch", "checkpoints", "ocr", "double backward", "fonts"))
    assert all(name in rows["checkpoints"]["detail"] for name in SHIPPED)


def test_a_doctor_who_finds_something(docleak: Docleak, monkeypatch: pytest.MonkeyPatch) -> None:
    def checks(*, optional: bool) -> list[Check]:
        return [Check("torch", True, "fine"), Check("fonts", False, "RuntimeError: no fonts", optional)]

    monkeypatch.setattr("docleak.cli.doctor.checks", lambda: checks(optional=False))
    plain = docleak("doctor")
    failed(plain, "cannot do its work")
    assert "NO  fonts  RuntimeError: no fonts" in plain.out
    result = docleak("doctor", "--json")
    assert result.code == 1
    assert result.json()["fonts"] == {"passed": False, "detail": "RuntimeError: no fonts", "optional": False}
    monkeypatch.setattr("docleak.cli.doctor.checks", lambda: checks(optional=True))
    result = docleak("doctor")
    assert result.code == 0 and "NO" not in result.out and "-   fonts  optional: RuntimeError: no fonts" in result.out


def test_a_broken_check_is_reported_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    from docleak.cli import doctor

    def broken() -> str:
        raise ValueError("no such font")

    monkeypatch.setattr(doctor, "_fonts", broken)
    monkeypatch.setattr(doctor, "_ocr", lambda: "reads")
    monkeypatch.setattr(doctor, "_double_backward", lambda: "finite")
    (fonts,) = [check for check in doctor.checks() if check.name == "fonts"]
    assert not fonts.passed and fonts.detail == "ValueError: no such font" and not fonts.optional


# -- option values -----------------------------------------------------------------------------------------------------


def test_values_are_parsed_at_the_edge() -> None:
    assert items(" a, b ,,c ") == ("a", "b", "c")
    assert items("") == ()
    assert options_of(GradientConfig)["exposure.stages"].value("vision, output") == ("vision", "output")
    with pytest.raises(AttackError, match="unknown stage Vision; expected some of vision, text"):
        options_of(GradientConfig)["exposure.stages"].value("Vision,head,text")
    assert pick_device("cpu") == "cpu"
    assert pick_device("auto") in ("cpu", "cuda")
    with pytest.raises(DocleakError, match="Try auto or cpu"):
        pick_device("cuda:99")
    assert 1 <= default_workers() <= (os.cpu_count() or 1)
    assert default_workers("cuda") == default_workers("cuda:1") == default_workers("mps") == 1


@pytest.mark.parametrize("command", ["audit pairs", "reproduce gi-dqa/table1"])
def test_a_gpu_has_one_worker_unless_more_are_asked_for(
    command: str, docleak: Docleak, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def noted(*given: object, workers: int, **how: object) -> None:
        seen.append(workers)
        raise DocleakError("that was all")

    monkeypatch.setattr("os.sched_getaffinity", lambda process: {*range(8)})
    monkeypatch.setattr("docleak.recipes.rows.reproduce", noted)
    monkeypatch.setattr("docleak.studies.engine.carry_out", noted)
    for device, more, expected in (("cuda", "", 1), ("cuda", "--workers 3", 3), ("cpu", "", 8)):
        for place in ("studies", "reproduce"):
            monkeypatch.setattr(f"docleak.cli.{place}.pick_device", lambda name, device=device: device)
        told = docleak(*command.split(), *more.split(), "--out", "out")
        assert "that was all" in told.err and seen.pop() == expected and not seen


# -- recipes -----------------------------------------------------------------------------------------------------------

RECIPE = """
title = "Guessing"
models = ["mine"]

[scales.tiny]
models = { mine = "layoutlmv3-start" }
attack = "random"
pages = 1
budget = 1

[[rows]]
name = "once"
"""


def test_a_recipe_of_ones_own(docleak: Docleak, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(RECIPE)
    done = docleak("reproduce", "mine.toml", "--workers", "1", "--out", "run", "--json")
    assert done.code == 0, done.err
    assert done.json()["units"] == 1 and not done.json()["failed"] and (tmp_path / "run" / "table.html").is_file()
    again = docleak("reproduce", "mine.toml", "--workers", "1", "--out", "run")
    assert again.out.rstrip().endswith("Table: run/table.html"), "it says where the table is"
    failed(docleak("reproduce", "mine.toml", "--model", "yours=x"), "one of the recipe's models (mine)")
    failed(docleak("reproduce", "mine.toml", "--image-size", "mine=big"), "image size 'big' is not WIDTHxHEIGHT")
    sized = docleak("reproduce", "mine.toml", "--image-size", "mine=320x640", "--out", "sized")
    failed(sized, "only takes pages of 224 x 224 pixels")


def test_an_error_of_code_of_ones_own_is_told_with_whose_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A FileNotFoundError of an attack was "Check the path" of nobody."""

    def command(**how: bool) -> None:
        fault = FileNotFoundError(2, "No such file", "words.txt")
        fault.add_note("In the worker process:\nTraceback")
        with blamed("attack 'mine'", object()):
            raise fault

    monkeypatch.setattr("docleak.cli.app.command_line", lambda: command)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 1 and "words.txt" in said and "attack 'mine' raised this" in said
    assert "Traceback" not in said
