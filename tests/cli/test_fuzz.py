"""Made-up command lines and files: no traceback, nothing written outside of --out, no memory beyond 4 GB.

Derandomised: the same cases every time. Commands end early here, by what is refused, --dry-run or --list, or read a
file that is none.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save_file

from docleak.cli import guard, main
from docleak.cli.app import command_line
from docleak.cli.guard import commands_of
from docleak.documents import folder
from docleak.documents.loaders import load_pages
from docleak.errors import DocleakError
from docleak.recipes.recipe import read_recipe

MOST_MEMORY = 4 * 2**30
COMMANDS = dict(commands_of(command_line()))
#: Words that end every command before it works: a range, or a mode, that refuses.
ENDED = ("--seed=-5", "--workers=-1", "--evaluate-every=-1", "--rounds=-1", "--delta=nan", "--page=-1", "--port=0")


def made(cases: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """So many cases, the same ones every time, without shrinking."""
    return settings(
        max_examples=cases, derandomize=True, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def files_of(root: Path) -> dict[str, int]:
    """What lies below ``root``, with sizes."""
    return {str(path.relative_to(root)): path.lstat().st_size for path in root.rglob("*")}


def run(words: list[str]) -> int:
    """The exit code of a command line in this process; any exception but SystemExit is the test's."""
    before = sys.argv
    sys.argv = ["docleak", *words]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = before
    return 0


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to stand in: pages and a file, and ``out``, the only place to write to."""
    root = tmp_path_factory.mktemp("fuzz")
    inner = root / "inside"
    (inner / "pages").mkdir(parents=True)
    Image.new("RGB", (30, 20), "white").save(inner / "pages" / "a.png")
    (inner / "pages" / folder.INDEX).write_text('{"image": "a.png"}\n')
    (inner / "file").write_text("mine")
    before = Path.cwd()
    os.chdir(inner)
    yield inner
    os.chdir(before)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < MOST_MEMORY


odd = st.one_of(
    st.sampled_from(
        ["", "-1", "0", "nan", "inf", "1e400", "²", "x", "9" * 5000, "none", "file", "pages", "../up", "/", "."]
    ),
    st.integers().map(str),
    st.floats().map(str),
    st.text(max_size=20),
)


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command with odd values for some of its options; it ends early, for one of them is refused whatever it does."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    command = COMMANDS[name]
    ends = [word for word in ENDED if word.partition("=")[0] in {p.opts[0] for p in command.params}]
    options = draw(st.lists(st.sampled_from([p for p in command.params if p.opts[0] != "--help"]), max_size=4))
    words = name.split()
    for parameter in options:
        value = draw(odd)
        if not parameter.opts[0].startswith("-"):
            words.append(value)
        elif getattr(parameter, "is_flag", False):
            words.append(parameter.opts[0])
        else:
            words.append(f"{parameter.opts[0]}={value}")
    if ends:
        words.append(ends[0])
    elif name.startswith(("models", "data", "deploy", "report", "doctor", "schema")):
        words.append("--no-such-option")
    return words


def give_lines(cases: int, ground: Path) -> None:
    """So many made-up command lines, each refused, none of which writes anything."""
    before = files_of(ground.parent)

    @made(cases)
    @given(lines())
    def check(words: list[str]) -> None:
        assert run(words) in (1, 2), words

    check()
    assert files_of(ground.parent) == before


def test_command_lines(ground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    give_lines(400, ground)
    said = capsys.readouterr()
    assert "Traceback" not in said.err + said.out
    assert not any(ord(letter) < 32 and letter not in "\n\t" for letter in said.err)


def test_a_traceback_and_a_file_beside_out_would_be_noticed(ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(*asked: object) -> None:
        raise KeyError("planted")

    def leave_a_file(*asked: object) -> None:
        (ground.parent / "planted").write_text("x")
        raise DocleakError("refused, but late.")

    with monkeypatch.context() as planted:
        planted.setattr(guard, "refuse_unused", stumble)
        planted.setattr(guard, "check_range", lambda *asked: None)
        with pytest.raises(KeyError, match="planted"):
            give_lines(60, ground)
    with monkeypatch.context() as planted:
        planted.setattr(guard, "refuse_unused", leave_a_file)
        planted.setattr(guard, "check_range", lambda *asked: None)
        with pytest.raises(AssertionError):
            give_lines(60, ground)
    (ground.parent / "planted").unlink()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
page_keys = st.sampled_from([*folder.PAGE_KEYS, "other"])
items = st.dictionaries(st.sampled_from(["text", "box", "key", "value", "words", "private", "answers", "label"]),
                        json_values | st.lists(st.integers(-5, 50), min_size=4, max_size=4), max_size=4)  # fmt: skip
pages = st.dictionaries(page_keys, json_values | st.lists(items, max_size=3), max_size=5)


def test_pages(ground: Path) -> None:
    index = ground / "pages" / folder.INDEX
    kept = index.read_bytes()

    @made(300)
    @given(st.one_of(st.lists(pages.map(lambda page: {"image": "a.png", **page}), max_size=3), st.binary(max_size=60)))
    def check(content: Any) -> None:
        if isinstance(content, list):
            content = "".join(json.dumps(page) + "\n" for page in content).encode()
        index.write_bytes(content)
        with suppress(DocleakError):
            for page in load_pages("folder:pages", seed=0):
                page.name.encode()

    check()
    index.write_bytes(kept)


toml_values = st.one_of(
    st.integers(-(2**70), 2**70).map(str), st.floats().map(str),
    st.sampled_from(['"x"', '""', "true", "[]", "[1, 2]", '["x"]', "{}", '{x = 1}', "2020-01-01", '"1"', "nan"]),
)  # fmt: skip
recipe_keys = st.sampled_from(
    ["pages", "budget", "seed", "attack", "defense", "documents", "stages", "image_size", "rounds", "kind", "title",
     "models", "batch_size", "train_mode", "count", "measure", "data", "preset", "task", "fields", "server", "printed"]
)  # fmt: skip


def test_recipes(ground: Path) -> None:
    file = ground.parent / "inside" / "made.toml"
    kinds = st.sampled_from(["gradient", "trainings", "pairs", "answers", "weights"])
    settings_of = st.dictionaries(recipe_keys, toml_values, max_size=4)

    @made(200)
    @given(kinds, settings_of, settings_of, st.booleans())
    def check(kind: str, top: dict[str, str], row: dict[str, str], twice: bool) -> None:
        rows = ['[[rows]]\nname = "r"', *(f"{key} = {value}" for key, value in row.items() if key != "title")]
        head = {
            "title": '"t"',
            "kind": f'"{kind}"',
            **{key: top[key] for key in top if key in ("title", "kind", "models")},
        }
        text = "\n".join([*(f"{key} = {value}" for key, value in head.items()), *rows * (1 + twice)])
        file.write_text(text, encoding="utf-8")
        try:
            read_recipe(file, "made")
        except DocleakError:
            return
        run(["reproduce", str(file), "--dry-run"])

    check()
    file.unlink()


def test_runs(ground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``docleak report`` of a run.json and a unit.json of any content."""
    run_folder = ground / "out"
    unit = run_folder / "units" / "one"
    unit.mkdir(parents=True)
    manifest = {"docleak": "0.1.0", "config": {}, "environment": {}, "created": "x", "info": {}}
    record_keys = st.sampled_from(
        ["unit", "model", "attack", "page", "images", "snapshots", "score", "seconds", "fields"]
    )

    @made(120)
    @given(st.dictionaries(st.sampled_from(["config", "info", "docleak", "x"]), json_values, max_size=2),
           st.dictionaries(st.sampled_from(["kind", "updates", "seed", "models", "pages"]), json_values, max_size=3),
           st.dictionaries(record_keys, json_values, max_size=6))  # fmt: skip
    def check(changed: dict[str, Any], config: dict[str, Any], record: dict[str, Any]) -> None:
        (run_folder / "run.json").write_text(json.dumps({**manifest, "config": config, **changed}))
        (unit / "unit.json").write_text(json.dumps(record))
        outside = {name for name in files_of(ground.parent) if not name.startswith("inside/out")}
        assert run(["report", "out"]) in (0, 1)
        assert "Traceback" not in capsys.readouterr().err
        assert {name for name in files_of(ground.parent) if not name.startswith("inside/out")} == outside

    check()


def test_tensors(ground: Path) -> None:
    """A recorded gradient, and the state of a federated training, of any content."""
    from docleak.studies.gradient.case import read_gradient
    from docleak.training.federated.federation import Federation
    from docleak.training.federated.record import FederatedRun

    training = FederatedRun.open(ground / "training", Federation())
    state = training.run.folder("round-0001") / "state.safetensors"
    training.run.write_unit("round-0001", {}, {})
    arrays = st.dictionaries(
        st.text(max_size=12) | st.sampled_from(["parameters/x", "momentum/x", "other/x", "x"]),
        st.lists(st.floats(width=32), max_size=4).map(lambda values: np.array(values, np.float32)), max_size=3,
    )  # fmt: skip

    @made(150)
    @given(arrays | st.binary(max_size=80))
    def check(content: dict[str, Any] | bytes) -> None:
        if isinstance(content, bytes):
            state.write_bytes(content)
        else:
            save_file(content, state)
        for read in (training.state, lambda: read_gradient(state)):
            with suppress(DocleakError):
                read()

    check()
