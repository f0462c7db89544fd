"""What is checked of every command line before its command runs: ranges, options that do nothing, folders, sources."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from PIL import Image

from docleak.cli import app as commands
from docleak.cli import attacks
from docleak.cli.app import command_line
from docleak.cli.folders import MARKS, OWN
from docleak.cli.guard import Bounded, Text, commands_of
from docleak.cli.modes import MODES, NEEDS, mode_of
from docleak.documents.folder import save
from docleak.documents.synthetic import make_pages

Command = Callable[..., tuple[Any, str, str]]
COMMANDS = dict(commands_of(command_line()))  # type: ignore[arg-type]
OPTIONS = [(name, parameter) for name, found in COMMANDS.items() for parameter in found.params]


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
    assert not isinstance(kind, click.types.IntParamType | click.types.FloatParamType), "give it a line in ranges.py"
    assert isinstance(kind, Bounded | Text | click.types.BoolParamType), kind


@pytest.mark.parametrize(
    "option", [*NEEDS, *((name, key) for name in MODES for mode in MODES[name] for key in mode.options)]
)
def test_the_tables_name_options_that_there_are(option: tuple[str, str]) -> None:
    name, key = option
    assert key in {parameter.opts[0] for parameter in COMMANDS[name].params}


@pytest.mark.parametrize("name", MODES)
def test_every_option_belongs_to_a_mode(name: str) -> None:
    known = frozenset().union(*(mode.options for mode in MODES[name]))
    assert {parameter.opts[0] for parameter in COMMANDS[name].params} == known


def test_every_command_that_writes_a_folder_says_which_it_goes_on_in() -> None:
    writing = {name for name, parameter in OPTIONS if parameter.opts[0] in ("--out", "out")}
    pairs = {f"attack {name}" for name in attacks.PAIRS.entries}
    assert writing - pairs - {"data inspect", "models attention"} == set(OWN)
    assert {mark for marks in OWN.values() for mark in marks} <= set(MARKS)


#: (command, mode) -> words that choose it.
CHOSEN: dict[tuple[str, str], str] = {
    ("audit", "--extraction"): "--extraction layoutlm-tiny",
    ("audit", "--blue-red"): "--blue-red pages --model vt5-start",
    ("audit", "--updates"): "--updates pages",
    ("audit", "an audit of one gradient"): "",
    ("attack by-name", "--list"): "--list",
    ("attack by-name", "--gradient"): "random --gradient g",
    ("attack by-name", "an attack on a gradient"): "random",
    ("attack cdmi", "--target"): "--target t --public-documents pages",
    ("attack cdmi", "a target that is trained here"): "",
    ("defend", "--list"): "--list",
    ("defend", "a comparison"): "",
    ("reproduce", "the list of recipes"): "--list",
    ("reproduce", "--cluster"): "gi-dqa/table1 --cluster c",
    ("reproduce", "a recipe"): "gi-dqa/table1",
    ("data make", "--blue-red with --documents"): "out --blue-red --documents pages",
    ("data make", "--blue-red"): "out --blue-red",
    ("data make", "--partition"): "out --partition 2",
    ("data make", "pages without --partition"): "out",
}
#: Values that differ from the defaults; of others a number below the default's range is never needed.
VALUES = {
    "--model": "donut-trained", "--documents": "folder:pages", "--budget": "60", "--pages": "3", "--rounds": "2",
    "--seed": "8",
    "--image-size": "96x112", "--batch-size": "2", "--stages": "vision", "--defense": "noise:sigma=0.001",
    "--ocr": "tesseract", "--device": "meta", "--workers": "5", "--attacks": "random", "--local": "optimiser=sgd",
    "--round": "1", "--client": "a", "--public-documents": "folder:pages", "--public": "vt5-public", "--release": "a=b",
    "--gradient": "other", "--task": "ee-bio", "--criterion": "loss", "--variant": "strong", "--fields": "3",
    "--attempts": "3", "--candidates": "9", "--weight": "0.1", "--top-p": "0.3", "--mean": "arithmetic",
    "--metric": "max-gap", "--epochs": "4", "--learning-rate": "0.5", "--target": "other", "--extraction": "bros-tiny",
    "--blue-red": "elsewhere", "--updates": "elsewhere",
}  # fmt: skip


def given(command: str, option: str) -> list[str]:
    """The option with a value of its own."""
    parameter = next(p for p in COMMANDS[command].params if p.opts[0] == option)
    if not option.startswith("-"):
        return []
    if parameter.default is True:
        return list(parameter.secondary_opts[:1])
    return [option] if getattr(parameter, "is_flag", False) else [option, VALUES.get(option, "3")]


def idle() -> Iterator[tuple[str, str, str]]:
    for name, modes in MODES.items():
        for mode in modes:
            everything = {p.opts[0] for p in COMMANDS[name].params if p.opts[0].startswith("-")}
            choosing = {other.named for other in modes[: modes.index(mode)]} | {"--cluster", "--gradient", "--target"}
            yield from ((name, mode.named, option) for option in sorted(everything - mode.options - choosing))


@pytest.mark.parametrize(("name", "mode", "option"), list(idle()))
def test_an_option_that_does_nothing_is_refused(
    name: str, mode: str, option: str, command: Command, tmp_path: Path
) -> None:
    chooses = {("data make", "--blue-red"), ("data make", "--documents"), ("reproduce", "--list")}
    if option in CHOSEN[name, mode].split() or (name, option) in chooses:
        pytest.skip("it would choose another mode")
    words = [*name.replace(" by-name", "").split(), *CHOSEN[name, mode].split(), *given(name, option)]
    refused(command(*words), option)
    assert not list(tmp_path.iterdir())


def used() -> Iterator[tuple[str, str, str]]:
    for name in ("audit", "attack by-name", "attack cdmi"):
        for mode in MODES[name]:
            if mode.named != "--list":
                yield from ((name, mode.named, option) for option in sorted(mode.options) if option.startswith("-"))


@pytest.mark.parametrize(("name", "mode", "option"), list(used()))
def test_an_option_that_belongs_to_a_mode_reaches_its_work(
    name: str, mode: str, option: str, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the work is called with differs from what it is called with without the option."""
    save(make_pages(1, seed=0), tmp_path / "pages")
    calls: list[str] = []

    def record(*asked: object, **named: object) -> None:
        calls.append(repr((asked, named)))

    for module, work in ((commands, "_audit"), (commands, "run_and_report"), (commands, "audit_releases"),
                         (commands, "audit_extraction"), (attacks, "play_and_report")):  # fmt: skip
        monkeypatch.setattr(module, work, record)
    monkeypatch.setattr("docleak.metrics.load_engine", record)
    start = [*name.replace(" by-name", "").split(), *CHOSEN[name, mode].split()]
    if (mode, option) == ("--blue-red", "--model"):
        assert command(*start)[0] == command(*start[:-1], "vt5-public")[0] == 0
    elif option == "--release":
        start = [word for word in start if word not in ("--model", "vt5-start")]
        assert command(*start, "--release", "a=b")[0] == command(*start, "--release", "a=c")[0] == 0
    elif option == "--compare-defenses":
        assert command(*start)[0] == command(*start, "--no-compare-defenses")[0] == 0
    else:
        extra = {"--clean-template": ["--defense", "safe-template"], "--out": ["--out", "run-3"]}.get(option, [])
        assert command(*start)[0] == command(*start, *extra, *given(name, option))[0] == 0
    assert len(set(calls)) >= 2 or (option == "--ocr" and len(calls) == 3)


def test_the_first_mode_that_is_chosen_counts() -> None:
    values = {"--list": True, "--gradient": "x", "name": ""}
    assert (mode := mode_of("attack by-name", values)) is not None and mode.named == "--list"
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
    ],
)
def test_one_sentence_before_anything_is_written(
    words: tuple[object, ...], said: str, command: Command, tmp_path: Path
) -> None:
    result = command(*words)
    refused(result, said)
    assert "\x1b" not in result[2] and "\u202e" not in result[2]
    assert not list(tmp_path.iterdir())


WRITING = (
    *("attack gi-dqa", "attack canaries", "attack membership", "attack mmgia", "attack cdmi", "defend"),
    *("reproduce gi-dqa/table1", "train federated", "train central"),
)


@pytest.mark.parametrize("name", WRITING)
@pytest.mark.parametrize("mark", ["run.json", "recipe.json", "pages.jsonl", "config.json"])
def test_a_folder_of_another_kind_of_run_is_left_alone(name: str, mark: str, command: Command, tmp_path: Path) -> None:
    known = OWN.get(name.replace("gi-dqa/table1", "").strip().replace("attack gi-dqa", "attack by-name"), ("run.json",))
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
    assert code == 0 and "by-name" not in out
