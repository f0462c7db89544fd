"""What objects hold: others are told apart, the same one is the same in every process."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from docleak.attacks.registries import ATTACKS
from docleak.attacks.weights import CdmiConfig
from docleak.errors import RunError
from docleak.models.tiny import donut_start
from docleak.registry import Chosen
from docleak.runs.content import code_digest_of, describe
from docleak.runs.run import Run
from docleak.studies.study import plain


@dataclass(frozen=True)
class Holder:
    """A dataclass of somebody's own with something in it."""

    held: Any


class Plain:
    """No dataclass."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def method(self) -> Any:
        return self.held

    @cached_property
    def twice(self) -> Any:
        return self.held * 2


class Slotted:
    """Without __dict__."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class Listed(list[Any]):
    """A list of somebody's own."""


def closing(value: Any) -> Callable[[Any], Any]:
    return lambda x: x * value


def defaulting(value: Any) -> Callable[..., Any]:
    return lambda x, factor=value: x * factor


def naming(value: Any) -> Callable[..., Any]:
    def scaled(x: Any, *, factor: Any = value) -> Any:
        return x * factor

    return scaled


def layer(value: float) -> torch.nn.Module:
    made = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(made.weight, value)
    torch.nn.init.zeros_(made.bias)
    return made


#: Of a number, a thing that holds it.
HOLDING: dict[str, Callable[[int], Any]] = {
    "tensor": lambda n: torch.full((2, 3), float(n)),
    "scalar tensor": lambda n: torch.tensor(n),
    "bfloat16": lambda n: torch.full((2,), n, dtype=torch.bfloat16),
    "shape": lambda n: torch.zeros(n, 6 // n),
    "dtype": lambda n: torch.zeros(2, dtype=(torch.float32, torch.int32)[n - 1]),
    "array": lambda n: np.full((2, 3), n),
    "array of objects": lambda n: np.array([n, "text"], dtype=object),
    "masked array": lambda n: np.ma.masked_array([1, 2, 3], mask=[n == 1, False, False]),  # type: ignore[no-untyped-call]
    "number of numpy": lambda n: np.float32(n),
    "draws": lambda n: np.random.default_rng(n),
    "partial": lambda n: partial(closing, n),
    "partial by keyword": lambda n: partial(closing, value=n),
    "partial of a closure": lambda n: partial(closing(n), 3),
    "closure": closing,
    "closure over a tensor": lambda n: closing(torch.tensor(n)),
    "default": defaulting,
    "keyword default": naming,
    "bound method": lambda n: Plain(n).method,
    "plain": Plain,
    "plain in plain": lambda n: Plain(Plain(n)),
    "slots": Slotted,
    "list of one's own": lambda n: Listed([n]),
    "list": lambda n: [1, Plain(n)],
    "set": lambda n: {"a", n},
    "bytes": lambda n: bytes([n]),
    "keys": lambda n: {n: 1},
    "counter": lambda n: Counter({"a": n}),
    "ordered": lambda n: OrderedDict(a=n),
    "module": lambda n: layer(n),
    "class": lambda n: type("Made", (), {"value": n}),
    "range": lambda n: range(n),
    "infinite": lambda n: (float("inf"), float("-inf"))[n - 1],
    "path": lambda n: Path(f"/{n}"),
    "lambda": lambda n: (lambda x: x + 1, lambda x: x + 2)[n - 1],
    "model of docleak's": lambda n: donut_start(seed=n),
    "attack of docleak's": lambda n: replace(ATTACKS.load("dlg"), start=("light", "normal")[n - 1]),
}


@pytest.mark.parametrize("held", HOLDING)
@pytest.mark.parametrize("holder", [Holder, Plain, lambda held: held, closing])
def test_objects_that_differ_in_what_they_hold_are_told_apart(held: str, holder: Callable[[Any], Any]) -> None:
    made = HOLDING[held]
    first, again, other = (json.dumps(describe(holder(made(number)))) for number in (1, 1, 2))
    assert first == again != other


def test_the_same_objects_are_the_same_in_every_process() -> None:
    script = (
        "import json; from docleak.runs.content import describe\n"
        "from tests.runs.test_content import HOLDING, Holder, closing\n"
        "print(json.dumps({key: [describe(Holder(made(1))), describe(closing(made(1)))]"
        " for key, made in HOLDING.items()}))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])},
    )  # fmt: skip
    here = {key: [describe(Holder(made(1))), describe(closing(made(1)))] for key, made in HOLDING.items()}
    assert json.loads(done.stdout) == here and "0x" not in done.stdout


def test_what_an_object_computes_of_itself_does_not_change_it() -> None:
    thing = Plain(3)
    before = describe(thing)
    assert thing.twice == 6 and describe(thing) == before


def test_objects_that_hold_themselves_are_described() -> None:
    def turn(left: int) -> int:
        return turn(left - 1) if left else 0

    thing = Plain(turn)
    thing.itself = thing  # type: ignore[attr-defined]
    assert describe(thing) == describe(thing)


@pytest.mark.parametrize("held", [(n for n in (1, 2)), torch.zeros(2, device="meta")])
def test_what_cannot_be_told_from_another_is_refused(held: Any, tmp_path: Path) -> None:
    for thing in (Holder(held), Plain(held), Plain([Plain(held)]), closing(held)):
        with pytest.raises(RunError, match=r"'mine' holds a (generator|Tensor).*__getstate__"):
            Run.open(tmp_path / "run", {"attack": Chosen.of("mine", thing)})
    assert not list(tmp_path.glob("run/run.json"))


def test_of_locks_and_open_files_the_type_counts(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log, (tmp_path / "other").open("w") as other:
        assert describe(Plain([log, threading.Lock()])) == describe(Plain([other, threading.Lock()]))
        assert describe(Plain(log)) != describe(Plain(threading.Lock()))


def test_attributes_are_no_globals_and_modules_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a notebook calls ``template`` is not what an attack reads of its knowledge."""
    text = "import pack.helpers\n\ndef run(knowledge):\n    return pack.helpers.helps(knowledge.template)\n"
    digests = []
    for template, helper in (("1", "x"), ("2", "x"), ("1", "2 * x")):
        pack = ModuleType("pack")
        helpers = module(tmp_path, f"def helps(x):\n    return {helper}\n", "helpers")
        pack.helpers = helpers  # type: ignore[attr-defined]
        for name, made in (("pack", pack), ("pack.helpers", helpers)):
            monkeypatch.setitem(sys.modules, name, made)
        digests.append(code_digest_of(module(tmp_path, f"{text}\ntemplate = {template}\n").run))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    "imports",
    [
        "from late import helps",
        "import late.inner as late\n    helps = late.helps",
        "from .inner import helps",
        "from .inner import helps\n    from inner import other",
    ],
)
def test_what_code_imports_as_it_runs_counts(imports: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page on studies imports so itself; what is not there or installed counts nothing."""
    package = tmp_path / "late"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import helps\n")
    (tmp_path / "inner.py").write_text("other = 1\n")
    (tmp_path / "exits.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(tmp_path)
    imports += "\n    import tensorboard, no_such, exits"
    text = f"__package__ = 'late'\ndef run(x):\n    {imports}\n    return helps(x)\n"
    digests = []
    for helper in ("x", "x", "2 * x"):
        for name in ("late", "late.inner"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        (package / "inner.py").write_text(f"def helps(x):\n    return {helper}\n")
        importlib.invalidate_caches()
        digests.append(code_digest_of(module(tmp_path, text).run))
    assert digests[0] == digests[1] != digests[2]


def module(folder: Path, text: str, name: str = "theirs") -> ModuleType:
    file = folder / f"{name}.py"
    file.write_text(text)
    made = ModuleType(name)
    made.__file__ = str(file)
    exec(compile(text, str(file), "exec"), made.__dict__)
    return made


SOURCE = """
import threading
import numpy as np
import helper

LOCK = threading.Lock()
SCALE, TABLE = 1, {"a": np.arange(3)}

def outer(x):
    return inner(x) + helper.helps(x)

def inner(x):
    with LOCK:
        return x * SCALE

def idle(x):
    return x

class Base:
    def start(self):
        return [outer(x) for x in (1, 2)]

class Thing(Base):
    rate = 0.5

    def run(self):
        return self.start(), TABLE["a"]
"""


@pytest.mark.parametrize(
    ("was", "becomes", "another"),
    [
        ("SCALE, TABLE = 1", "SCALE, TABLE = 2", True),
        ("x * SCALE", "x + SCALE", True),
        ("arange(3)", "arange(4)", True),
        ("rate = 0.5", "rate = 0.6", True),
        ("(1, 2)", "(1, 3)", True),
        ("self.start(), T", "self.start() * 2, T", True),
        ("helps(x)", "helps(x) + 1", True),
        ("def outer", "# a comment\n\ndef outer", False),
        ("return x\n", "return -x\n", False),
    ],
)
def test_code_of_a_notebook_counts_with_all_that_it_names(
    was: str, becomes: str, another: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "helper", module(tmp_path, "def helps(x):\n    return x\n", "helper"))
    one, other = module(tmp_path, SOURCE), module(tmp_path, SOURCE.replace(was, becomes, 1))
    assert (code_digest_of(one.Thing) != code_digest_of(other.Thing)) is another
    assert (describe(one.Thing()) != describe(other.Thing())) is another
    monkeypatch.setitem(sys.modules, "helper", module(tmp_path, "def helps(x):\n    return 2 * x\n", "helper"))
    assert code_digest_of(module(tmp_path, SOURCE).Thing) != code_digest_of(one.Thing)


def test_what_docleak_and_python_define_has_no_digest() -> None:
    assert not code_digest_of(type(ATTACKS.load("dlg"))) and not code_digest_of(Path)
    assert describe(len) == {"object": "builtins:len"}


def test_a_file_that_was_changed_counts_as_worker_processes_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thing = module(tmp_path, SOURCE.replace("import helper", ""))
    monkeypatch.setitem(sys.modules, "theirs", thing)
    before = describe(thing.Thing())
    assert before == describe(thing.Thing())
    Path(str(thing.__file__)).write_text(SOURCE.replace("x * SCALE", "x + SCALE"))
    assert before != describe(thing.Thing())


VOTER = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Voter:
    searched: int = 5

    def run(self):
        return RETURNED
"""


def test_an_attack_on_answers_or_weights_is_told_by_its_code_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those are kept as objects in a configuration, of which fields alone had counted."""
    kept = []
    for returned in ("self.searched", "self.searched", "0"):
        monkeypatch.setitem(sys.modules, "voters", ModuleType("voters"))  # dataclasses look their module up
        made = module(tmp_path, VOTER.replace("RETURNED", returned), "voters")
        monkeypatch.setitem(sys.modules, "voters", made)
        kept.append(plain({"attacks": (made.Voter(3),)}))
    first, again, other = kept
    assert first == again != other
    assert first["attacks"][0]["searched"] == 3
    assert "code" not in plain(CdmiConfig())
