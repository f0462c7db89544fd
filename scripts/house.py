"""Count the house: lines, files, and how often each thing that should exist once does.

    python -m scripts.house            a Markdown table of this checkout
    python -m scripts.house --where    and where each of them is

The top half is what runs, reports and is typed; the bottom half what computes. Things are counted by how they look:
a pool is a call that makes worker processes, a lock a call that claims a file, and so on (``SIGNS``). Cycles are groups
of files that import one another, in functions too, apart from imports for types alone.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "docleak"
TOP = ("recipes", "front", "options", "cli", "runs", "studies", "report")
#: Of these a module counts once, however many of its lines look so.
BY_MODULE = ("spec parsers", "locks")
#: What is counted -> a pattern of the lines that make one.
SIGNS: Mapping[str, str] = {
    "pools": r"\b(ProcessPoolExecutor|Parallel|Pool)\(",
    "locks": r"\b(FileLock|SoftFileLock|flock)\(",
    "manifests": r"^\s*[A-Z_]*(MANIFEST|CARD|TARGET|FITTING|RESULT|TRAINED|CASE|UNIT)[A-Z_, ]* = .*\.json\"",
    "report writers": r"^def write_report\(",
    "table writers": r"^def (write_table|write_markdown|as_markdown|as_table)\(",
    "verdict vocabularies": r"^class \w*(Severity|Verdict|Finding|Level)\w*\(.*Enum\)|^(SEVERE|PARTIAL|LEAKS)\b.* = \"",
    "Jinja environments": r"\bEnvironment\(",
    # Modules that cut a text at ":" or "=", as mini-languages of options do; host:port, cut from the right, is none.
    "spec parsers": r"\b(partition|split)\(\s*[\"'][:=][\"']",
}


def modules() -> dict[str, Path]:
    """Every module by its dotted name."""
    paths = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = ("docleak", *file.relative_to(PACKAGE).with_suffix("").parts)
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return paths


def interval_types(tree: ast.Module) -> Iterator[str]:
    """Classes that hold a value's lower and upper end."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = {s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)}
            if {"low", "high"} <= names:
                yield node.name


def imported(tree: ast.Module, known: Mapping[str, Path]) -> set[str]:
    """Modules of docleak that a module imports when it runs, in functions too."""
    imports: set[str] = set()
    for node in _running(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in known else node.module for name in names]
        imports |= {name for name in names if name in known}
    return imports


def _running(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _running(child)


def cycles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach one another (Tarjan), each sorted."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(imports[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for name in sorted(imports):
        if name not in index:
            visit(name)
    return groups


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--where", action="store_true", help="list every place, too")
    options = parser.parse_args()
    known = modules()
    texts = {name: file.read_text(encoding="utf-8") for name, file in known.items()}
    trees = {name: ast.parse(text) for name, text in texts.items()}
    top = [name for name in known if name.split(".")[1:2] and name.split(".")[1] in TOP]
    lines = {name: len(text.splitlines()) for name, text in texts.items()}
    rows = {
        "lines of the top half": (sum(lines[name] for name in top), []),
        "files of the top half": (len(top), []),
        "lines of src": (sum(lines.values()), []),
        "files of src": (len(known), []),
    }
    for what, pattern in SIGNS.items():
        places = [
            f"{name}:{number}"
            for name, text in texts.items()
            for number, line in enumerate(text.splitlines(), 1)
            if re.search(pattern, line)
        ]
        count = len({place.split(":")[0] for place in places}) if what in BY_MODULE else len(places)
        rows[what] = (count, places)
    intervals = [f"{name}.{interval}" for name, tree in trees.items() for interval in interval_types(tree)]
    rows["interval types"] = (len(intervals), intervals)
    groups = cycles({name: imported(tree, known) - {name} for name, tree in trees.items()})
    rows["import cycles"] = (len(groups), [" <-> ".join(group) for group in groups])
    print("| what | count |", "|---|---|", *(f"| {what} | {count:,} |" for what, (count, _) in rows.items()), sep="\n")
    if options.where:
        for what, (_, places) in rows.items():
            print(*([f"\n{what}:"] + [f"    {place}" for place in places] if places else []), sep="\n")


if __name__ == "__main__":
    main()
