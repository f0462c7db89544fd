"""What holds for the whole of docleak: direction of imports, layout, sizes, docstrings, and documents that run."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from scripts import house
from tests.conftest import FIRST

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "docleak"
MODULES = sorted(PACKAGE.rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

#: What computes: everything below the runs, studies and reports made of it.
COMPUTING = {
    "errors",
    "spec",
    "registry",
    "files",
    "documents",
    "options",
    "models",
    "privacy",
    "training",
    "attacks",
    "defenses",
    "metrics",
}
#: Top-level name -> what it may import of docleak. A new package gets a line here.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "lazy": set(),
    "spec": {"errors"},
    "registry": {"errors", "spec"},
    "files": {"errors"},
    "documents": {"errors", "spec", "registry", "lazy", "files"},
    "options": {"errors", "spec", "documents"},
    "runs": {"errors", "spec", "registry", "files", "documents"},
    "metrics": {"errors", "spec", "registry", "files", "documents"},
    "models": {"errors", "spec", "lazy", "registry", "files", "documents"},
    "privacy": {"errors", "spec", "files"},
    "training": {"errors", "spec", "files", "documents", "options", "runs", "models", "metrics", "privacy"},
    # No metrics: they hold the truth, which an attack never sees.
    "attacks": {"errors", "spec", "registry", "files", "runs", "documents", "models", "training"},
    "defenses": {"errors", "lazy", "registry", "documents", "models", "attacks"},
    "report": {"errors", "spec", "files", "documents", "metrics"},
    "studies": {*COMPUTING, "runs", "report"},
    "recipes": {*COMPUTING, "runs", "report", "studies"},
    "front": {*COMPUTING, "runs", "report", "studies", "recipes"},
    "cli": {*COMPUTING, "runs", "report", "studies", "recipes"},
    "__main__": {"cli"},
}
LONGEST_MODULE = 400
MOST_TOP_LEVEL_NAMES = 20
WITHOUT_TORCH = ("documents", "metrics", "privacy", "report", "runs")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def top_level(path: Path) -> str:
    """The top-level name of docleak that a module belongs to; "" for docleak/__init__.py."""
    first = path.relative_to(PACKAGE).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def imported(tree: ast.AST) -> Iterator[str]:
    """The top-level names of docleak that a module imports anywhere, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import; write docleak's modules in full"
            assert all(alias.name != "*" for alias in node.names), f"line {node.lineno}: star import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        parts = [name.split(".") for name in names]
        yield from (part[1] for part in parts if part[0] == "docleak" and len(part) > 1 and part[1] != "__version__")


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_imports_go_one_way(path: Path) -> None:
    home = top_level(path)
    tree = parsed(path)
    if home == "":
        eager = [node for node in tree.body if not isinstance(node, ast.If)]  # "if TYPE_CHECKING:" is for type checkers
        named = {name for node in eager for name in imported(node)}
        assert named <= {"lazy"}, "docleak/__init__.py imports nothing heavy: docleak.documents is light"
        return
    imports = set(imported(tree))
    assert home in MAY_IMPORT, f"{home} is new: say in MAY_IMPORT what it may import"
    wrong = imports - MAY_IMPORT[home] - {home}
    assert not wrong, f"{home} must not import {', '.join(sorted(wrong))}"


def test_the_import_order_has_no_cycle() -> None:
    done: set[str] = set()
    while ready := {name for name, needs in MAY_IMPORT.items() if needs <= done} - done:
        done |= ready
    assert done == set(MAY_IMPORT)


def test_no_files_import_one_another_in_a_circle() -> None:
    """Also where an import waits in a function."""
    known = house.modules()
    trees = {name: parsed(file) for name, file in known.items()}
    assert house.cycles({name: house.imported(tree, known) - {name} for name, tree in trees.items()}) == []


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_no_torch_at_import(name: str) -> None:
    """Every module of the package, in a fresh interpreter."""
    code = (
        "import importlib, pkgutil, sys\n"
        f"import docleak.{name} as package\n"
        "for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
        "print(*(m for m in ('torch', 'transformers', 'onnxruntime', 'flwr') if m in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=PACKAGE.parent)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "", f"docleak.{name} imports {run.stdout.strip()}"


def test_help_loads_nothing_heavy() -> None:
    """Building every command, as --help and shell completion do, imports no library that computes."""
    code = (
        "import sys\nfrom docleak.cli.app import command_line\ncommand_line()\n"
        "heavy = ('numpy', 'PIL', 'scipy', 'torch', 'transformers', 'flwr', 'matplotlib')\n"
        "print(*(name for name in heavy if name in sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert run.stdout.strip() == ""


#: Commands whose configurations hold what they train and attack with: their help loads torch.
LATE = ("audit weights", "audit answers", *(f"attack {name}" for name in (
    "cdmi", "cdmi-strong", "membership", "memorisation", "AZK", "APK", "AZK+CLS1+CLS2", "APK+CLS1+CLS2")))  # fmt: skip


def test_the_help_of_a_command_loads_nothing_that_computes() -> None:
    """Every command there is prints its help, in one interpreter; all but LATE without a library that computes."""
    code = (
        "import contextlib, io, sys\n"
        "from docleak.cli.app import command_line\n"
        "from docleak.cli.guard import commands_of\n"
        f"late, heavy = {LATE!r}, ('scipy', 'torch', 'transformers', 'sklearn', 'pandas', 'flwr', 'matplotlib')\n"
        "paths = [path for path, _ in commands_of(command_line())]\n"
        "for path in sorted(paths, key=lambda path: path in late):\n"
        "    if path in late:\n"
        "        break\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as told:\n"
        "        command_line().main([*path.split(), '--help'], standalone_mode=False)\n"
        "    found = [name for name in heavy if name in sys.modules]\n"
        "    assert 'Usage' in told.getvalue() and not found, (path, found)\n"
        "print(len(paths), all(path in paths for path in late))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=PACKAGE.parent)
    assert run.returncode == 0, run.stderr[-600:]
    assert int(run.stdout.split()[0]) > 50 and run.stdout.split()[1] == "True"


def test_the_tests_that_start_first_are_there() -> None:
    assert [name for name in FIRST if not (ROOT / "tests" / name).is_file()] == []


def test_few_top_level_names() -> None:
    names = {p.name for p in PACKAGE.iterdir()} - {"__init__.py", "__pycache__", "py.typed"}
    assert len(names) <= MOST_TOP_LEVEL_NAMES, sorted(names)


def test_every_folder_of_modules_is_a_package() -> None:
    """Otherwise an installed docleak would lack it."""
    missing = {label(p.parent) for p in MODULES if not (p.parent / "__init__.py").exists()}
    assert not missing


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_size_and_docstrings(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_MODULE, f"more than {LONGEST_MODULE} lines: split it"
    tree = parsed(path)
    assert ast.get_docstring(tree), "no module docstring"
    bare = [node.name for node in public_definitions(tree) if not ast.get_docstring(node)]
    assert not bare, f"no docstring: {', '.join(bare)}"


def public_definitions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node


def test_the_readme_maps_every_package() -> None:
    readme = (ROOT / "README.md").read_text()
    missing = [
        p.name for p in sorted(PACKAGE.iterdir()) if (p / "__init__.py").exists() and f"`{p.name}`" not in readme
    ]
    assert not missing, f"no line in the README's map: {', '.join(missing)}"


def blocks(language: str) -> list[tuple[str, str]]:
    """(place, text) of every fenced block of a language in the README and docs/."""
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    snippets = []
    for page in PAGES:
        text = page.read_text()
        for match in pattern.finditer(text):
            line = text[: match.start()].count("\n") + 2
            snippets.append((f"{label(page)}:{line}", match[1]))
    return snippets


@pytest.mark.parametrize(("place", "code"), blocks("python"), ids=lambda value: str(value).splitlines()[0])
def test_python_blocks_of_the_documents_run(
    place: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    document = ModuleType("docleak_document")
    monkeypatch.setitem(sys.modules, document.__name__, document)  # where dataclasses look for what they are made of
    exec(compile(code, place, "exec"), document.__dict__)


def commands() -> list[tuple[str, str]]:
    """(place, command) of every ``$ docleak ...`` and ``$ make ...`` line of the console blocks."""
    lines = [(place, line) for place, text in blocks("console") for line in text.splitlines()]
    return [(place, line[2:]) for place, line in lines if line.startswith(("$ docleak", "$ make"))]


#: Commands of the documents that take seconds; those with a place to be filled in have a word in capitals.
CHEAP = re.compile(r"^(?!.*\b[A-Z]{3,}\b)docleak (?:budget|plan|schema|doctor|data list|models list|.*--list)")


@pytest.mark.parametrize(("place", "command"), commands())
def test_commands_of_the_documents_exist(
    place: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands and options are parsed, with --help added so that nothing runs, and whose text other tests look at;
    those of CHEAP run as they stand."""
    words = shlex.split(command, comments=True)
    if words[0] == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {w for w in words[1:] if "=" not in w} <= set(targets)
        return
    import click

    from docleak.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(click.Context, "get_help", lambda context: context.command_path)
    monkeypatch.setattr(sys, "argv", words if CHEAP.search(command) else [*words, "--help"])
    assert exit_code_of(main) == 0, f"{place}: {command}\n{capsys.readouterr().err}"
    assert capsys.readouterr().out.strip()


def spoken_of() -> list[tuple[str, str]]:
    """(page, command) of every `docleak ...` in a sentence."""
    return [(label(page), call) for page in PAGES for call in re.findall(r"`(docleak [^`\n]+)`", page.read_text())]


def unknown_in(text: str) -> list[str]:
    """The commands and options of a command line that do not exist; what is not a command may be an argument."""
    import click

    from docleak.cli.app import command_line

    command: click.Command = command_line()
    known, unknown = {"--help"}, []
    for place, word in enumerate(shlex.split(text)[1:]):
        known |= {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        if isinstance(command, click.Group) and word in command.commands:
            command = command.commands[word]
        elif word.startswith("--"):
            more = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
            unknown += [word] if word.partition("=")[0] not in known | more else []
        elif not place:
            unknown.append(word)
    return unknown


def test_commands_in_sentences_exist() -> None:
    assert len(spoken_of()) > 50
    wrong = [f"{page}: {text}: {', '.join(unknown)}" for page, text in spoken_of() if (unknown := unknown_in(text))]
    assert not wrong, "\n".join(wrong)
    assert unknown_in("docleak audit --updates DIR") == ["--updates"]
    assert unknown_in("docleak no-such --help") == ["no-such"] and not unknown_in("docleak audit weights --target=A")


def exit_code_of(main: Callable[[], None]) -> object:
    try:
        main()
    except SystemExit as stop:
        return stop.code or 0
    return 0


def test_a_command_that_does_not_exist_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from docleak.cli import main

    for wrong in (["no-such-command"], ["audit", "--no-such-option"], ["data", "no-such-command"]):
        monkeypatch.setattr(sys, "argv", ["docleak", *wrong, "--help"])
        assert exit_code_of(main) != 0, wrong
