"""Registries: names, objects, files of one's own, entry points, and what reaches worker processes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import click
import pytest

from docleak.attacks.registries import ANSWERS, ATTACKS, DOCUMENTS, IMAGES, METRICS, PAIRS, TEXTS, WEIGHTS
from docleak.cli import main
from docleak.cli.attack import AttackGroup
from docleak.defenses import DEFENSES
from docleak.errors import AttackError, DefenseError, RunError
from docleak.metrics import ENGINES
from docleak.registry import Chosen, Registry
from docleak.runs.content import describe, objects_in
from docleak.runs.run import Run
from docleak.spec import Said, build, names, number, pair, split_name, told
from docleak.studies.engine import carry_out
from docleak.studies.gradient.config import Exposure, GradientConfig
from docleak.studies.gradient.study import GradientStudy
from docleak.studies.registry import load_study

ATTACK_FILE = """
from dataclasses import replace

from docleak.attacks.gradients.random_guess import ATTACK as FLOOR

ATTACK = replace(FLOOR, name="mine", summary="the floor under another name", start="light")
"""
DEFENCE_FILE = '''
from dataclasses import dataclass

from docleak.defenses.gradients import GradientNoise


@dataclass(frozen=True)
class Louder(GradientNoise):
    """Noise of somebody's own."""

    factor: float = 2.0

    @property
    def noise_std(self):
        return self.factor * self.sigma
'''
NEEDY_FILE = """
class Needs:
    def __init__(self, rate):
        self.rate = rate

class Refuses:
    def __init__(self):
        raise ValueError("no rate")
"""


class Refuses:
    """Cannot be made, for a reason of its own."""

    def __init__(self) -> None:
        raise ValueError("no rate")


REGISTRIES: dict[str, Registry[Any]] = {
    "attacks": ATTACKS, "pairs": PAIRS, "images": IMAGES, "texts": TEXTS, "weights": WEIGHTS, "answers": ANSWERS,
    "metrics": METRICS, "defenses": DEFENSES, "documents": DOCUMENTS,
}  # fmt: skip


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with an attack and a defence, in which one is."""
    (tmp_path / "my_attack.py").write_text(ATTACK_FILE)
    (tmp_path / "my_defence.py").write_text(DEFENCE_FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for module in ("my_attack", "my_defence", "needy"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize(
    ("registry", "name"),
    [(key, name) for key, registry in REGISTRIES.items() for name in registry if key != "defenses" or name != "noise"],
)
def test_every_entry_is_there_and_the_table_says_what_it_says(registry: str, name: str) -> None:
    known = REGISTRIES[registry]
    thing, entry = known.load(name), known.entries[name]
    assert entry.summary and entry.target.startswith("docleak.")
    if registry in ("attacks", "pairs", "texts", "documents"):
        assert (thing.summary, thing.paper) == (entry.summary, entry.paper)
    if registry in ("attacks", "pairs", "weights", "answers"):
        assert thing.name == name
    assert known.name_of(name) == name == known.chosen(name) and not isinstance(known.chosen(name), Chosen)


def test_lists_load_no_torch() -> None:
    script = (
        "import sys; from docleak.attacks.registries import ATTACKS, PAIRS; from docleak.defenses import DEFENSES; "
        "ATTACKS.summaries(); PAIRS.summaries(); DEFENSES.summaries(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_object_keeps_its_name_and_travels_with_it() -> None:
    changed = replace(ATTACKS.load("dlg"), name="dlg-light", start="light")
    name = ATTACKS.chosen(changed)
    assert name == "dlg-light" == ATTACKS.name_of(changed) and isinstance(name, Chosen)
    assert ATTACKS.load(pickle.loads(pickle.dumps(name))) == changed
    assert deepcopy(name) is name and json.dumps(name) == '"dlg-light"'
    assert ATTACKS.chosen(name) is name
    same = ATTACKS.chosen(ATTACKS.load("dlg"))
    assert same == "dlg" and not isinstance(same, Chosen), "the shipped one needs no company"


def test_several_in_one_text_are_told_apart_where_one_is_expected() -> None:
    """``docleak defend none,noise`` was told that it may have meant noise."""
    with pytest.raises(
        DefenseError, match=r"unknown defence 'none,noise'.*Several are named one by one, without commas"
    ):
        DEFENSES.chosen("none,noise:sigma=1e-3,clip")


def test_what_is_registered_at_run_time_is_found_and_travels() -> None:
    thing = replace(ATTACKS.load("random"), name="quiet")
    ATTACKS.register("quiet", thing, "a test's")
    ATTACKS.register("random-again", "docleak.attacks.gradients.random_guess:ATTACK")
    try:
        assert ATTACKS.load("random-again").name == "random" and isinstance(ATTACKS.chosen("random-again"), Chosen)
        assert ATTACKS.load("quiet") is thing and ATTACKS.summaries()["quiet"] == "a test's"
        chosen = ATTACKS.chosen("quiet:start=light")
        with pytest.raises(AttackError, match="taken"):
            ATTACKS.register("quiet", thing)
    finally:
        ATTACKS.unregister("quiet")
        ATTACKS.unregister("random-again")
    assert ATTACKS.load(chosen).start == "light" and ATTACKS.load(chosen).name == "quiet:start=light"
    with pytest.raises(AttackError, match="unknown attack 'quiet'"):
        ATTACKS.load("quiet")


def test_a_file_of_ones_own(mine: Path) -> None:
    assert ATTACKS.load("my_attack:ATTACK").start == "light"
    assert ATTACKS.chosen("my_attack:ATTACK") == "mine"
    other = ATTACKS.load("my_attack:ATTACK:start=normal")
    assert (other.start, other.name) == ("normal", "mine:start=normal")
    defence = DEFENSES.chosen("my_defence:Louder:sigma=1/4")
    assert defence == "Louder:sigma=0.25" and DEFENSES.load(defence).noise_std == 0.5


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("gi-dqua", "Did you mean 'gi-dqa'"),
        ("gi_dqua:ATTACK", "no module 'gi_dqua' either"),
        ("my_attack:NOTHING", "has no attribute 'NOTHING'"),
        ("json:dumps", "without name, paper, run, summary"),
        (object(), "is a object without"),
        ("needy:Needs", "cannot be made: .*missing 1 required positional argument: 'rate'. Expected a class"),
        ("needy:Refuses", r"cannot be made: .*needy\.py, line 8, raises ValueError: no rate"),
        (Refuses, r"'Refuses' cannot be made: .*test_registry\.py, line .* raises ValueError: no rate"),
    ],
)
def test_what_is_no_attack_is_told(choice: object, said: str, mine: Path) -> None:
    (mine / "needy.py").write_text(NEEDY_FILE)
    with pytest.raises(AttackError, match=said):
        ATTACKS.load(choice)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1\ndef (:\n", r"broken\.py, line 2, has a SyntaxError: invalid syntax"),
        ("x = 1\n\n1 / 0\n", r"broken\.py, line 3, raises ZeroDivisionError: division by zero"),
        ("import json\njson.nothing\n", r"broken\.py, line 2, raises AttributeError: module 'json'"),
        ("from json import nothing\n", r"broken\.py, line 1, raises ImportError: cannot import name 'nothing'"),
        ("x = 1\nraise SystemExit(0)\n", r"broken\.py, line 2, raises SystemExit: 0"),
        ("ATTACKS = 1\n", "module 'broken' has no attribute 'ATTACK'"),
    ],
)
def test_a_file_of_ones_own_that_cannot_be_imported_is_named_with_its_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for load, error in ((ATTACKS.load, AttackError), (load_study, RunError)):
        monkeypatch.delitem(sys.modules, "broken", raising=False)
        with pytest.raises(error, match=said):
            load("broken:ATTACK")
    monkeypatch.delitem(sys.modules, "broken", raising=False)


def test_two_objects_of_one_name_are_refused() -> None:
    one, other = (replace(ATTACKS.load("dlg"), name="x", start=start) for start in ("light", "uniform"))
    with pytest.raises(AttackError, match="two attacks are called 'x'"):
        GradientConfig(attacks=(one, other))
    with pytest.raises(AttackError, match="two attacks are called 'dlg'"):
        GradientConfig(attacks=(replace(one, name="dlg"), "dlg"))
    assert GradientConfig(attacks=(one, one, "dlg", ATTACKS.load("dlg"))).attacks == ("x", "x", "dlg", "dlg")


def test_an_own_attack_does_not_take_the_place_of_the_closed_form() -> None:
    with pytest.raises(AttackError, match="an attack of your own is called 'closed-form'"):
        GradientConfig(attacks=(replace(ATTACKS.load("dlg"), name="closed-form"),))
    again = replace(ATTACKS.load("closed-form"), summary="again")
    assert GradientConfig(attacks=(again,)).attacks == ("closed-form",)


@pytest.fixture
def installed(mine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution beside docleak, with entry points."""
    info = mine / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[docleak.attacks]\ngradients/theirs = my_attack:ATTACK\npairs/joined = my_attack:NOTHING\n"
        "[docleak.defenses]\nlouder = my_defence:Louder\n"
    )
    monkeypatch.syspath_prepend(str(mine))
    registries = (ATTACKS, PAIRS, DEFENSES)
    for registry in registries:
        registry.__dict__.pop("_installed", None)
    yield
    for registry in registries:
        registry.__dict__.pop("_installed", None)


def test_entry_points_of_other_packages(installed: None) -> None:
    assert "theirs" in ATTACKS and "theirs" not in PAIRS and "joined" in PAIRS
    assert ATTACKS.summaries()["theirs"] == "from their-package" and ATTACKS.load("theirs:start=normal").name
    assert DEFENSES.load("louder:sigma=1,factor=3").noise_std == 3
    with pytest.raises(AttackError, match="'pairs/joined' of their-package cannot be loaded"):
        PAIRS.load("joined")


@pytest.mark.parametrize("value", ["my_attack:Holder:ATTACK", "my_attack:ATTACK:start=normal"])
def test_an_entry_point_that_is_no_module_and_object_says_so(value: str, installed: None, mine: Path) -> None:
    """ "'NoneType' object has no attribute 'group'"."""
    points = next(mine.glob("their*.dist-info/entry_points.txt"))
    points.write_text(f"[docleak.attacks]\ngradients/theirs = {value}\n")
    with pytest.raises(AttackError, match=f"cannot be loaded: it is {value!r}; expected module:object"):
        ATTACKS.load("theirs")


def test_an_attribute_of_an_attribute_is_an_object_too(installed: None, mine: Path) -> None:
    """An entry point's was taken, "module:object" was an unknown attack."""
    with (mine / "my_attack.py").open("a") as code:
        code.write("\nclass Holder:\n    ATTACK = ATTACK\n")
    points = next(mine.glob("their*.dist-info/entry_points.txt"))
    points.write_text("[docleak.attacks]\ngradients/theirs = my_attack:Holder.ATTACK\n")
    assert ATTACKS.load("my_attack:Holder.ATTACK:start=normal").start == "normal"
    assert ATTACKS.load("theirs:start=normal").start == "normal"


def test_a_name_that_nobody_can_say_is_told(installed: None, mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was listed, and loading it an unknown attack."""
    with next(mine.glob("their*.dist-info/entry_points.txt")).open("a") as points:
        points.write("\n[docleak.attacks]\ngradients/my,attack = my_attack:ATTACK\n")
    with pytest.raises(click.exceptions.Exit):
        AttackGroup().make_context("attack", ["--list"])
    told = capsys.readouterr()
    assert "my,attack" not in told.out
    assert "'gradients/my,attack' of group docleak.attacks is not used; its name holds one of : , =" in told.err


def test_an_entry_point_that_no_view_takes_is_told(
    installed: None, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was in no list, and nothing said why."""
    with next(mine.glob("their*.dist-info/entry_points.txt")).open("a") as points:
        points.write("\n[docleak.attacks]\ngradient/lost = my_attack:ATTACK\n")
    with pytest.raises(click.exceptions.Exit):
        AttackGroup().make_context("attack", ["--list"])
    told = capsys.readouterr()
    assert "lost" not in told.out and "'theirs'" not in told.err
    assert "'gradient/lost' of group docleak.attacks is not used; expected gradients/NAME, servers/NAME" in told.err


def test_a_name_that_two_packages_or_docleak_itself_have(installed: None, mine: Path) -> None:
    info = mine / "other_package-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[docleak.attacks]\ntheirs = other:ATTACK\nrandom = my_attack:ATTACK\n")
    told = ATTACKS.summaries()
    assert list(told)[:2] == ["gi-dqa", "gi-dqa-adam"] and list(told)[-1] == "theirs"
    assert told["random"].endswith(" (not that of other-package)") and ATTACKS.load("random").name == "random"
    assert set(told["theirs"].removeprefix("from ").split(" and ")) == {"their-package", "other-package"}
    with pytest.raises(AttackError, match=r"(?s)other:ATTACK of other-package.*nobody knows which of them is meant"):
        ATTACKS.load("theirs")


def test_what_a_package_brought_belongs_to_what_a_run_is(installed: None) -> None:
    chosen = GradientConfig(attacks=("theirs", "random")).attacks
    assert chosen == ("theirs", "random") and list(objects_in(chosen)) == ["theirs"]


def test_an_attack_on_documents_is_of_their_class() -> None:
    alike = SimpleNamespace(name="x", summary="x", paper="", reference=False, run=len)
    with pytest.raises(AttackError, match=r"is a SimpleNamespace; expected a docleak.attacks.*DocumentAttack"):
        DOCUMENTS.load(alike)


def test_what_an_object_says_of_itself_is_asked_before_it_is_used() -> None:
    """A summary that raises, or is a method, would be known after hours of search."""

    class Silent:
        name, paper, run = "silent", "none", len

        @property
        def summary(self) -> str:
            return f"{1 / 0}"

    class Method:
        name, paper, run = "method", "none", len

        def summary(self) -> str:
            return "a property without its decorator"

    with pytest.raises(AttackError, match=r"attack 'silent': its summary cannot be asked: .*ZeroDivisionError"):
        ATTACKS.load(Silent())
    with pytest.raises(AttackError, match=r"attack 'method': its summary is a method; expected a text"):
        ATTACKS.load(Method())


@pytest.mark.parametrize("member", ["name", "summary"])
@pytest.mark.parametrize(("fault", "said"), [
    (ZeroDivisionError("by zero"), "raises ZeroDivisionError: by zero"), (SystemExit(3), "raises SystemExit: 3"),
    (AttributeError("nothing", name="_title"), "raises AttributeError: nothing"),
])  # fmt: skip
def test_whatever_a_property_raises_is_told_by_whose_it_is(member: str, fault: BaseException, said: str) -> None:
    """sys.exit ended the command without a word, a name was not caught, and what was there was called missing."""

    def asked(thing: object) -> str:
        raise fault

    members = {"name": "x", "summary": "x", "paper": "", "run": len, member: property(asked)}
    with pytest.raises(AttackError, match=rf"its {member} cannot be asked: .*{said}"):
        ATTACKS.load(type("Raising", (), members)())


def test_metrics_and_engines_of_ones_own() -> None:
    assert METRICS.load(len) is len

    class Blind:
        """Reads nothing."""

        name, version = "blind", "1"

        def read(self, crops: Any) -> list[Any]:
            return []

    assert ENGINES.load(Blind()).name == "blind" == ENGINES.chosen(Blind())


# -- a whole audit -----------------------------------------------------------------------------------------------------


def audited(out: Path, **changes: Any) -> Run:
    config = GradientConfig(
        **{"models": ("layoutlmv3-start",), "attacks": ("random",), "pages": 2, "budget": 2, "seed": 0, **changes}
    )
    return carry_out(GradientStudy(config), out, workers=2)


@dataclass(frozen=True)
class Floor:
    """An attack of this very file: the floor, told how light to begin."""

    level: float = 0.5
    name: str = "level"
    paper: str = "none"
    summary: str = "one grey"

    def run(self, view: Any, knowledge: Any, *, budget: int, generator: Any, on_evaluation: Any = None) -> Any:
        finding = ATTACKS.load("random").run(view, knowledge, budget=budget, generator=generator)
        return replace(finding, pixels=finding.pixels * 0 + self.level)


def test_objects_files_and_names_reach_the_workers_of_an_audit(mine: Path, tmp_path: Path) -> None:
    ATTACKS.register("grey", Floor(0.25, name="grey"))
    try:
        attacks = ("random", Floor(), "my_attack:ATTACK", "grey")
        exposure = Exposure(defense="my_defence:Louder:sigma=0.125")
        run = audited(tmp_path / "run", attacks=attacks, exposure=exposure, pages=1)
    finally:
        ATTACKS.unregister("grey")
    units = {unit["attack"]: unit for unit in run.units()}
    assert list(units) == ["grey", "level", "mine", "random"]
    assert {unit["view"]["defense"] for unit in units.values()} == {"Louder:sigma=0.125"}
    assert units["mine"]["attack_summary"] == "the floor under another name"
    for name, level in (("level", 128), ("grey", 64)):
        picture = run.read_image(units[name]["unit"], "reconstruction.png")
        assert abs(int(picture.mean()) - level) <= 1
    told_of = run.config["objects"]
    assert set(told_of) == {"level", "mine", "grey", "Louder:sigma=0.125"}
    assert told_of["level"]["fields"]["level"] == 0.5 and told_of["level"]["object"].endswith(":Floor")
    assert run.config["attacks"] == ["random", "level", "mine", "grey"]
    with pytest.raises(RunError, match="objects"):
        audited(tmp_path / "run", attacks=("random", Floor(0.75), "my_attack:ATTACK", Floor(0.25, name="grey")),
                exposure=exposure, pages=1)  # fmt: skip


@dataclass(frozen=True)
class Silent(Floor):
    """Returns nothing."""

    name: str = "silent"

    def run(self, view: Any, knowledge: Any, **options: Any) -> Any:
        return None


def test_an_audit_says_what_an_own_attack_returned_instead_of_a_finding(tmp_path: Path) -> None:
    with pytest.raises(AttackError, match=r"attack 'silent' returned None; expected a docleak"):
        audited(tmp_path / "run", attacks=(Silent(),), pages=1)


def test_a_file_of_ones_own_on_the_command_line(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["attack", "my_attack:ATTACK", "--model", "layoutlmv3-start", "--pages", "2", "--budget", "2", "--json",
             "--defense", "my_defence:Louder:sigma=1e-3", "--workers", "2", "--out", "out"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["docleak", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().err
    assert {unit["attack"] for unit in Run.load(mine / "out").units()} == {"mine"}


# -- what is said in text ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Knobs:
    """What a text may say."""

    size: int
    share: float = 0.5
    kind: Literal["a", "b"] = "a"
    stages: tuple[str, ...] = ()
    deep: Annotated[bool, Said("depth", {"shallow": False, "deep": True})] = False
    part: Any = None


def test_options_become_fields_of_their_types() -> None:
    made = told(Knobs, "size=3,share=8/255,kind=b,stages=x+y,depth=deep", what="thing 'k'", error=DefenseError)
    assert made == Knobs(3, 8 / 255, "b", ("x", "y"), True)
    assert told(made, "size=4", what="thing", error=DefenseError).size == 4
    assert build(Knobs, {"size": 3, "share": 1}, what="thing", error=DefenseError) == Knobs(3, 1.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "thing needs size; it takes size="),
        ("siz=1", "cannot be told 'siz=1'.*Did you mean 'size'"),
        ("size", "cannot be told 'size'; .* as key=value"),
        ("size=1.5", "size is '1.5'; expected a whole number"),
        ("size=1,share=much", "share is 'much'; expected a number such as 0.1"),
        ("size=1,kind=c", "kind is 'c'; expected one of a, b"),
        ("size=1,depth=1", "depth is '1'; expected one of shallow, deep"),
        ("size=1,part=x", "cannot be told 'part=x'"),
    ],
)
def test_what_cannot_be_told(text: str, said: str) -> None:
    with pytest.raises(DefenseError, match=said):
        told(Knobs, text, what="thing", error=DefenseError)


def test_names_pairs_and_numbers() -> None:
    assert names("gi-dqa:start=light,grey=no,dlg") == ("gi-dqa:start=light,grey=no", "dlg")
    assert split_name("sroie:/data/a:b") == ("sroie", "/data/a:b") and split_name("random") == ("random", "")
    assert pair("FL = runs/a=b", what="--release", expected="LABEL=MODEL", error=AttackError) == ("FL", "runs/a=b")
    with pytest.raises(AttackError, match="--release is 'FL='; expected LABEL=MODEL"):
        pair("FL=", what="--release", expected="LABEL=MODEL", error=AttackError)
    assert number("8/255") == 8 / 255 and number("1e-4") == 1e-4
    for wrong in ("1/0", "x", "", "1/x"):
        with pytest.raises(ValueError, match="a number such as"):
            number(wrong)


def test_objects_are_described() -> None:
    assert objects_in({"a": ["plain", 3], "b": {"c": "x"}}) == {}
    described = describe(Floor(0.5))
    assert isinstance(described, dict) and described["fields"]["level"] == 0.5 and len(described["code"]) == 10
    assert describe(print) == {"object": "builtins:print"}

    class Plain:
        """No dataclass."""

        def __init__(self, inner: object) -> None:
            self.size, self.inner = 3, inner

    outer = describe(Plain(Plain(None)))
    assert isinstance(outer, dict) and outer["fields"]["size"] == 3 and "fields" not in outer["fields"]["inner"]
