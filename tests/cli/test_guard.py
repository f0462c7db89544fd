"""What is checked of every command line before its command runs: ranges, options that do nothing, folders, sources."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import MISSING
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from PIL import Image

from docleak.cli import audit, studies
from docleak.cli.app import command_line
from docleak.cli.command import Line
from docleak.cli.folders import MARKS, OWN
from docleak.cli.guard import Bounded, Text, commands_of
from docleak.cli.modes import MODES, mode_of
from docleak.cli.output import as_json
from docleak.cli.studies import Late
from docleak.documents.folder import save
from docleak.documents.loaders import load_pages
from docleak.documents.synthetic import make_pages
from docleak.options import configured
from docleak.studies.study import Study

Command = Callable[..., tuple[Any, str, str]]
COMMANDS = dict(commands_of(command_line()))  # type: ignore[arg-type]
OPTIONS = [(name, parameter) for name, command in COMMANDS.items() for parameter in command.params]


def refused(result: tuple[Any, str, str], *said: str) -> None:
    """Exit code 1, nothing on stdout, and one message that says all of it."""
    code, out, err = result
    assert (code, out) == (1, ""), err
    assert err.startswith("docleak: ") and "Traceback" not in err
    for words in said:
        assert words in err, err


@pytest.mark.parametrize(("name", "parameter"), OPTIONS, ids=lambda value: getattr(value, "name", value))
def test_every_number_has_a_range_and_every_text_is_looked_at(name: str, parameter: click.Parameter) -> None:
    kind = parameter.type
    assert not isinstance(kind, click.types.IntParamType | click.types.FloatParamType), "give it a range"
    assert isinstance(kind, Bounded | Text | click.types.BoolParamType), kind


def test_a_path_behind_an_equals_sign_begins_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells leave --out=~/run as it is, and a folder called ~ was made."""
    monkeypatch.setenv("HOME", str(tmp_path))
    out = next(parameter for name, parameter in OPTIONS if name == "audit" and parameter.opts[0] == "--out")
    assert Path(out.type.convert("~/run", out, None)) == tmp_path / "run"


@pytest.mark.parametrize("option", [(name, key) for name in MODES for mode in MODES[name] for key in mode.options])
def test_the_tables_name_options_that_there_are(option: tuple[str, str]) -> None:
    name, key = option
    assert key in {parameter.opts[0] for parameter in COMMANDS[name].params}


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if isinstance(command, Line)])
def test_what_an_option_needs_can_be_told_of_its_command(name: str) -> None:
    line = COMMANDS[name]
    assert isinstance(line, Line)
    bare = configured(line.kind, {one.path: "x" for one in line.asked.values() if one.default is MISSING})
    needs = [one.option.need for one in line.asked.values() if one.option.need and "." not in one.path]
    assert all(isinstance(need.met(bare), bool) for need in needs)


@pytest.mark.parametrize("name", MODES)
def test_every_option_belongs_to_a_mode(name: str) -> None:
    known = frozenset().union(*(mode.options for mode in MODES[name]))
    assert {parameter.opts[0] for parameter in COMMANDS[name].params} == known


def test_every_command_that_writes_a_folder_says_which_it_goes_on_in() -> None:
    writing = {name for name, parameter in OPTIONS if parameter.opts[0] in ("--out", "out")}
    studies = {name for name, command in COMMANDS.items() if isinstance(command, Late)}
    assert writing - studies - {"data inspect", "models attention"} == set(OWN)
    assert {mark for marks in OWN.values() for mark in marks} <= set(MARKS)


#: (command, mode) -> words that choose it.
CHOSEN: dict[tuple[str, str], str] = {
    ("reproduce", "the list of recipes"): "--list",
    ("reproduce", "--rehearse"): "gi-dqa/table1 --rehearse",
    ("reproduce", "--cluster"): "gi-dqa/table1 --cluster c",
    ("reproduce", "a recipe"): "gi-dqa/table1",
    ("models make", "the list of checkpoints"): "--list",
    ("models make", "a checkpoint"): "donut-base out",
    ("data convert", "pdf:FOLDER"): "pdf:pages out",
    ("data convert", "another format"): "synthetic out",
    ("data make", "--pdf"): "out --pdf",
    ("data make", "--blue-red with --documents"): "out --blue-red --documents pages",
    ("data make", "--blue-red"): "out --blue-red",
    ("data make", "--partition"): "out --partition 2",
    ("data make", "pages without --partition"): "out",
}
#: Values that differ from the defaults; of others a number below the default's range is never needed.
VALUES = {
    "--model": "donut-trained", "--documents": "folder:pages", "--budget": "160", "--pages": "3", "--rounds": "2",
    "--seed": "8", "--image-size": "96x112", "--batch-size": "2", "--stages": "vision",
    "--defense": "noise:sigma=0.001",
    "--ocr": "tesseract", "--device": "meta", "--workers": "5", "--local": "optimiser=sgd", "--client": "a",
    "--public-documents": "folder:pages", "--public": "5", "--gradient": "other", "--task": "ee-bio",
    "--criterion": "loss", "--metric": "max-gap", "--learning-rate": "0.5", "--target": "other", "--out": "run-3",
    "--minimum": "7", "--keys": "other", "--delta": "0.5", "--confidence": "0.6", "--unit-rate": "1/2",
    "--guesses": "8", "--canary": "dirac",
    "--image-attack": "gifd", "--text-attack": "tag", "--noise": "0.5", "--threshold": "0.5", "--attack": "random",
    "--text": "other", "--pairs": "nlvr:DIR", "--steps": "3,5", "--batch-sizes": "3,5", "--epsilon": "0.5",
    "--ipf-epsilon": "0.02", "--server": "imprint", "--cluster": "tcp://127.0.0.1:1",
}  # fmt: skip
#: (command, option) -> another value, of the attacks that the study makes.
OTHERWISE = {
    ("audit", "--attacks"): "random", ("audit gradient", "--attacks"): "random",
    ("audit pairs", "--attacks"): "mmgia-d", ("audit answers", "--attacks"): "AZK",
    ("attack membership", "--attacks"): "AZK", ("audit weights", "--attack"): "cdmi-strong",
    ("audit weights", "--model"): "bros-tiny", ("audit answers", "--release"): "a=b",
    ("audit presence", "--pages"): "8", ("audit presence", "--batch-size"): "4",
    ("audit presence", "--optimiser"): "adamw", ("audit presence", "--precision"): "bfloat16",
    ("audit presence", "--per-provider"): "2", ("audit presence", "--others"): "folder:pages",
}  # fmt: skip
#: What an option needs beside it.
BESIDE = {
    "--public-documents": "--target t", "--target": "--public-documents pages", "--generator": "--image-attack gifd",
    "--division": "--release r", "--release": "--division d", "--count": "--batch-size 1",
    "--members": "--release r --non-members d", "--non-members": "--release r --members d",
    "--references": "--release r --members d --non-members e",
    "--resnet": "--bimodal", "--image-size": "--bimodal", "--gradient": "--model donut-start",
}  # fmt: skip


def given(command: str, option: str) -> list[str]:
    """The option with a value of its own."""
    parameter = next(p for p in COMMANDS[command].params if p.opts[0] == option)
    if not option.startswith("-"):
        return []
    if parameter.default is True:
        return list(parameter.secondary_opts[:1])
    value = OTHERWISE.get((command, option), VALUES.get(option, "3"))
    return [option] if getattr(parameter, "is_flag", False) else [option, value]


def idle() -> Iterator[tuple[str, str, str]]:
    for name, modes in MODES.items():
        for mode in modes:
            everything = {p.opts[0] for p in COMMANDS[name].params if p.opts[0].startswith("-")}
            choosing = {other.named for other in modes[: modes.index(mode)]} | {"--cluster"}
            yield from ((name, mode.named, option) for option in sorted(everything - mode.options - choosing))


@pytest.mark.parametrize(("name", "mode", "option"), list(idle()))
def test_an_option_that_does_nothing_is_refused(
    name: str, mode: str, option: str, command: Command, tmp_path: Path
) -> None:
    chooses = {
        ("data make", "--blue-red"),
        ("data make", "--documents"),
        ("data make", "--pdf"),
        ("reproduce", "--list"),
        ("models make", "--list"),
    }
    if option in CHOSEN[name, mode].split() or (name, option) in chooses:
        pytest.skip("it would choose another mode")
    words = [*name.split(), *CHOSEN[name, mode].split(), *given(name, option)]
    refused(command(*words), option)
    assert not list(tmp_path.iterdir())


STUDIES = {name: command for name, command in COMMANDS.items() if isinstance(command, Late)}
#: One of each: commands of attacks on the same view differ in nothing but the attack.
SHOWN = ("attack random", "attack mmgia", "attack cdmi", "attack membership", "attack memorisation", "attack canaries")
WORDS = {"audit updates": ("capture",)}
#: Options of recorded updates alone.
RECORDED = ("--others", "--round", "--client", "--local")


def used() -> Iterator[tuple[str, str]]:
    for name, study in STUDIES.items():
        if not name.startswith("attack ") or name in SHOWN:
            yield from ((name, p.opts[0]) for p in study.params if p.opts[0].startswith("--") and p.opts[0] != "--list")


@pytest.mark.parametrize(("name", "option"), list(used()))
def test_an_option_of_a_study_reaches_its_work(
    name: str, option: str, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the work is called with differs from what it is called with without the option."""
    save(make_pages(1, seed=0), tmp_path / "pages")
    calls: list[str] = []

    def record(study: Study[Any], *asked: object) -> None:
        calls.append(repr((study.config, study.device, asked, as_json())))

    def whole(context: click.Context) -> None:
        options = {key: context.params[key] for key in ("out", "workers", "cluster", "json_output", "compare_defenses")}
        record(audit.EVERYTHING.asked(context), options)

    monkeypatch.setattr(studies, "run_and_report", record)
    monkeypatch.setattr(audit, "audit_everything", whole)
    monkeypatch.setattr("docleak.metrics.load_engine", lambda *asked: None)
    monkeypatch.setattr("docleak.runs.pool.cluster_at", lambda address: nullcontext())
    import_module("docleak.studies.updates.study")  # whoever imports it under the patch would keep what is patched
    monkeypatch.setattr("docleak.training.federated.capture.read_updates", lambda path: [SimpleNamespace(ours={})])
    words_of = ("--before", "a", "--after", "b") if option in ("--before", "--after") else WORDS.get(name, ())
    if name == "audit presence" and option in RECORDED:
        words_of = ("capture",)
    start, beside = [*name.split(), *words_of], BESIDE.get(option, "").split()
    beside = beside if not beside or beside[0] in {p.opts[0] for p in COMMANDS[name].params} else []
    again = [word for place, word in enumerate(start) if option not in (word, start[place - 1])]
    for words in ([*start, *beside], [*again, *beside, *given(name, option)]):
        code, _, err = command(*words)
        if option not in words and option in (
            "--division",
            "--release",
            "--public-documents",
            "--members",
            "--non-members",
        ):
            assert code == 1 and option in err.replace("public pages", "--public-documents")
            calls.append("refused")
            continue
        assert code == 0, err
    assert len(set(calls)) == 2


def test_options_do_not_stand_before_the_name_of_a_study(command: Command) -> None:
    refused(command("audit", "--pages", 3, "gradient"), "--pages stands before the study's name")


def test_the_first_mode_that_is_chosen_counts() -> None:
    values = {"--list": True, "--cluster": "x", "name": ""}
    assert (mode := mode_of("reproduce", values)) is not None and mode.named == "the list of recipes"
    assert mode_of("doctor", {}) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("audit", "--seed", 10**40), "; expected 0 to 4,294,967,295"),
        (("audit", "--seed", 2**64), "--seed is 18446744073709551616"),
        (("audit", "--seed", -1), "--seed is -1"),
        (("audit", "--seed", "9" * 6000), "--seed has 6000 digits"),
        (("train", "federated", "--seed", 10**30), "expected 0 to 4,294,967,295"),
        (("audit", "--workers", -1), "--workers is -1; expected 0 to 512"),
        (("audit", "--workers", -3), "--workers is -3"),
        (("train", "federated", "--evaluate-every", -1), "--evaluate-every is -1"),
        (("train", "federated", "--learning-rate", "1e30"), "--learning-rate is 1e+30; expected 0 to 1,000"),
        (("train", "federated", "--learning-rate", "inf"), "--learning-rate is inf"),
        (("models", "pretrain", "donut", "out", "--steps", -4), "--steps is -4"),
        (("audit", "--out", ""), "--out is empty"),
        (("audit", "--documents", "a\0b"), "--documents holds a NUL"),
        (("audit", "--out", "x" * 5000), "--out: no such path can be used"),
        (("data", "make", "out", "--width", 10**6, "--height", 10**6), "--width is 1000000"),
        (("data", "make", "out", "--width", 20_000, "--height", 20_000), "at most 40,000,000 pixels"),
        (("data", "make", "out", "--blue-red", "--per-issuer", "nan"), "--per-issuer is nan; expected 3 to 1,000"),
        (("deploy", "init", "out", "--silos", 2, "--days", 9_999_999), "--days is 9999999; expected 1 to 36,500"),
        (("attack", "random", "--image-size", "9999x9999"), "expected at most 16,000,000"),
        (("attack", "mmgia", "--generator", "x"), "--generator belongs to GIFD"),
        (("train", "federated", "--beta1", 0.5, "--beta2", 0.5), "--beta1 belongs to --server fedavgm or fedadam"),
        (("train", "federated", "--silos", "x", "--clients", 3), "--clients belongs to silos made here"),
        (("attack", "random", "--ocr", "magic"), "unknown OCR engine 'magic'"),
        (("attack", "cdmi", "--documents", "nowhere"), "'nowhere' is neither a format nor an existing path"),
        (("train", "federated", "--silos", "nowhere"), "nowhere"),
        (("attack", "\x1b[31mred\u202e"), "unknown attack"),
        (("guard", "layoutlmv3-trained", "--pages", 100_000), "--pages is 100000; expected 1 to 100."),
        (("plan", "--model", "--help"), "--model is followed by --help; expected its value"),
        (("plan", "--model", "--words", 3), "--model is followed by --words; expected its value"),
        (("audit", "gradient", "--pages", "--workers", 1), "--pages is followed by --workers; expected its value"),
        (("audit", "--out", "--compare-defenses"), "--out is followed by --compare-defenses; expected its value"),
        (("train", "federated", "--out", "--guard"), "Where '--guard' is the value, write --out=--guard."),
        (("report", "run", "--study", "--", "x"), "--study is followed by --; expected its value"),
    ],
)
def test_one_sentence_before_anything_is_written(
    words: tuple[object, ...], said: str, command: Command, tmp_path: Path
) -> None:
    result = command(*words)
    refused(result, said)
    assert "\x1b" not in result[2] and "\u202e" not in result[2]
    assert not list(tmp_path.iterdir())


def test_a_value_may_look_like_an_option_where_it_is_said_to_be_the_value(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("data", "inspect", "--out", "--json")
    assert code == 1 and json.loads(out)["error"].startswith("--out is followed by --json;")
    assert command("data", "inspect", "--out=--page.png")[0] == 0 and (tmp_path / "--page.png").is_file()
    assert command("data", "make", "--count", "1", "--", "--pages")[0] == 0 and (tmp_path / "--pages").is_dir()


WRITING = (
    *("attack gi-dqa", "attack canaries", "attack membership", "attack mmgia", "attack cdmi", "defend"),
    *("reproduce gi-dqa/table1", "train federated", "train central"),
)


@pytest.mark.parametrize("name", WRITING)
@pytest.mark.parametrize("mark", ["run.json", "recipe.json", "pages.jsonl", "config.json"])
def test_a_folder_of_another_kind_of_run_is_left_alone(name: str, mark: str, command: Command, tmp_path: Path) -> None:
    known = OWN.get(name.replace("gi-dqa/table1", "").strip(), ("run.json",))
    if mark in known:
        pytest.skip("its own kind")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / mark).write_text("mine")
    refused(command(*name.split(), "--out", "taken"), f"taken was written by {MARKS[mark]}", "Pass another --out")
    assert [file.name for file in (tmp_path / "taken").iterdir()] == [mark]


def test_what_is_written_is_for_its_owner_only(command: Command, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert command("data", "make", "deep/pages", "--count", "1")[0] == 0
        assert command("data", "make", "silos", "--partition", "1", "--count", "2")[0] == 0
        assert command("data", "inspect", "deep/pages", "--out", "picture.png")[0] == 0
        assert os.umask(0) == 0, "the command puts the umask back"
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_doubts_about_boxes_are_told_before_the_work(command: Command, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    Image.new("L", (1654, 2339), 255).save(tmp_path / "pages" / "a.png")
    words = [{"text": "low", "box": [100, 940, 200, 960]}]
    (tmp_path / "pages" / "pages.jsonl").write_text(json.dumps({"image": "a.png", "words": words}))
    code, _, err = command("data", "inspect", "pages")
    assert code == 0 and "no box goes beyond 1000" in err and "hold no ink" in err


def test_attack_alone_shows_its_help_and_a_typing_error_is_suggested_once(command: Command) -> None:
    code, out, err = command("attack")
    assert code in (0, 2) and "cdmi" in out + err and "unknown attack ''" not in out + err
    code, _, err = command("audti")
    assert code == 2 and err.count("Did you mean") == 1 and "audit" in err
    code, out, _ = command("attack", "gi-dqa", "--help")
    assert code == 0 and "docleak attack gi-dqa [OPTIONS]" in out.replace("-c ", "docleak ")


@pytest.mark.parametrize("again", [("--count", "1"), ("--count=1",)])
def test_an_option_of_one_value_given_twice_is_not_ignored_in_silence(again: tuple[str, ...], command: Command) -> None:
    code, _, err = command("data", "make", "new", "--count", "2", *again)
    assert code == 0 and "--count is given 2 times, and takes one value: the last one counts." in err
    assert len(load_pages("folder:new", seed=0)) == 1
    code, _, err = command("data", "make", "newer", "--count", "2")
    assert code == 0 and "times" not in err


def test_options_that_collect_may_be_given_twice(command: Command) -> None:
    code, _, err = command("report", "none", "--study", "a", "--study", "b")
    assert code == 1 and "there is no study 'a'" in err and "times" not in err


def test_what_one_option_of_several_commands_may_be_is_written_once() -> None:
    """By the flag and the sentence: the same range is the same object, and a device is described once."""
    ranges: dict[tuple[str, str], set[int]] = {}
    devices = set()
    for path, line in commands_of(command_line()):
        for one in line.params:
            if isinstance(one.type, Bounded):
                ranges.setdefault((one.opts[0], str(one.type.allowed)), set()).add(id(one.type.allowed))
            if one.opts[0] == "--device" and path != "attack":
                devices.add(id(getattr(one, "help", None)))
    assert len(ranges) > 50 and [key for key, objects in ranges.items() if len(objects) > 1] == []
    assert len(devices) == 1
