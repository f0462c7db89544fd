"""Which small wrong changes a source file offers. Formulas only: no texts, errors, annotations or named constants."""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: Smaller numbers guard against division by zero; which of them it is, no test should care.
SMALLEST_CONSTANT = 1e-6
#: Functions that check or describe, and compute nothing.
TEXT_FUNCTIONS = {"__post_init__", "__str__", "__repr__", "summary", "sentence", "text", "as_json", "conditions"}
#: Keyword arguments whose value is an axis, or a choice between two formulas.
AXES = {"dim", "axis"}
FLAGS = {"unbiased", "reverse", "share", "descending", "keepdim", "largest"}

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.Gt, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.LtE: ast.Lt, ast.GtE: ast.Gt
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
}  # fmt: skip
NAMED = ast.FunctionDef | ast.ClassDef | ast.Lambda
SWAPPED = {
    "min": "max", "max": "min", "amin": "amax", "amax": "amin", "minimum": "maximum", "maximum": "minimum",
    "argmin": "argmax", "argmax": "argmin", "clamp_min": "clamp_max", "clamp_max": "clamp_min", "floor": "ceil",
    "ceil": "floor", "mean": "sum", "sum": "mean", "any": "all", "all": "any", "cdf": "sf", "sf": "cdf", "ppf": "isf",
    "isf": "ppf", "log1p": "log", "expm1": "exp", "randn": "rand", "union": "intersection",
}  # fmt: skip
#: Functions of one value that a wrong version of a formula would forget.
DROPPED = {"abs", "sqrt", "square", "clamp", "clamp_min", "clamp_max", "sign", "exp", "log", "round", "relu", "sigmoid"}


@dataclass(frozen=True)
class Mutant:
    """One change. ``identity`` stays the same while its function, its line and the change do."""

    path: Path
    line: int
    operator: str
    before: str
    after: str
    identity: str
    position: int

    def __str__(self) -> str:
        return f"{self.identity} {self.path.name}:{self.line} {self.operator}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class _Change:
    node: ast.AST
    operator: str
    new: ast.AST
    function: str


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """Every mutant of the source file, in the order of the code; ``root`` is what its identity leaves out."""
    source = path.read_text(encoding="utf-8")
    lines, seen, mutants = source.splitlines(), dict[str, int](), []
    for position, change in enumerate(_changes(ast.parse(source))):
        line: int = change.node.lineno  # type: ignore[attr-defined]
        before, after = ast.unparse(change.node), ast.unparse(change.new)
        key = "|".join((path.relative_to(root).as_posix(), change.function, lines[line - 1].strip(),
                        change.operator, before, after))  # fmt: skip
        seen[key] = seen.get(key, 0) + 1
        identity = hashlib.sha256(f"{key}|{seen[key]}".encode()).hexdigest()[:10]
        mutants.append(Mutant(path, line, change.operator, before, after, identity, position))
    return mutants


def mutated_tree(mutant: Mutant) -> ast.Module:
    """The syntax tree of the mutant's file with the change in it; nothing is written anywhere."""
    tree = ast.parse(mutant.path.read_text(encoding="utf-8"))
    change = next(c for position, c in enumerate(_changes(tree)) if position == mutant.position)
    if ast.unparse(change.node) != mutant.before:
        raise ValueError(f"{mutant.path} has changed since its mutants were listed; list them again.")

    class Put(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return ast.copy_location(change.new, node) if node is change.node else self.generic_visit(node)

    return ast.fix_missing_locations(Put().visit(tree))


def _changes(tree: ast.Module) -> Iterator[_Change]:
    yield from _inside(tree, "")


def _inside(node: ast.AST, function: str) -> Iterator[_Change]:
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_text(child):
                continue
            if isinstance(node, ast.ClassDef) and isinstance(child, ast.AnnAssign):  # a field's default
                continue
            inner = f"{function}.{getattr(child, 'name', 'lambda')}" if isinstance(child, NAMED) else function
            if function and not isinstance(child, NAMED):
                yield from (_Change(child, operator, new, function) for operator, new in _offers(child, node))
            yield from _inside(child, inner)


def _is_text(node: ast.AST) -> bool:
    """Errors, messages, checks, imports and class-level defaults."""
    match node:
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.FunctionDef():
            return node.name in TEXT_FUNCTIONS or (isinstance(node.returns, ast.Name) and node.returns.id == "str")
        case ast.If():
            return all(isinstance(statement, ast.Raise) for statement in node.body) and not node.orelse
        case ast.Call(func=ast.Name(id="require" | "cast" | "range_error")):
            return True
    return False


def _offers(node: ast.AST, parent: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The changed versions of one node."""
    match node:
        case ast.Compare(ops=[operator], comparators=[right]):
            yield "comparison", _with(node, ops=[COMPARISONS[type(operator)]()])
            if type(operator) in BOUNDARIES and (_whole(right) or _whole(node.left)):
                yield "boundary", _with(node, ops=[BOUNDARIES[type(operator)]()])
        case ast.BinOp(op=operator) if type(operator) in ARITHMETIC and not (_texty(node.left) or _texty(node.right)):
            yield "arithmetic", _with(node, op=ARITHMETIC[type(operator)]())
        case ast.AugAssign(op=operator) if type(operator) in ARITHMETIC and not _texty(node.value):
            yield "arithmetic", _with(node, op=ARITHMETIC[type(operator)]())
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield "sign", operand
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "negation", operand
        case ast.BoolOp(op=operator):
            yield "logic", _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
        case ast.IfExp():
            yield "condition", _with(node, body=node.orelse, orelse=node.body)
        case ast.Constant(value=bool()):
            if isinstance(parent, ast.keyword) and parent.arg in FLAGS:
                yield "flag", ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield from _numbers(node, parent)
        case ast.Call():
            yield from _calls(node)


def _numbers(node: ast.Constant, parent: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    value = node.value
    assert isinstance(value, int | float)
    if isinstance(parent, ast.keyword) and parent.arg in AXES:
        yield "axis", ast.Constant(1 if value == 0 else 0)
    elif isinstance(value, int):
        yield "constant", ast.Constant(value + 1)
    elif abs(value) >= SMALLEST_CONSTANT or value == 0:
        yield "constant", ast.Constant(2 * value if value not in (0, 1) else value + 0.5)


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in SWAPPED and not (name == "sum" and isinstance(node.func, ast.Name)):
        function = copy.copy(node.func)
        setattr(function, "attr" if isinstance(function, ast.Attribute) else "id", SWAPPED[name])
        yield "function", _with(node, func=function)
    if name in DROPPED:
        of_module = isinstance(node.func, ast.Name) or (
            isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id in ("np", "math", "torch", "F")
        )
        if of_module and node.args:
            yield "dropped", node.args[0]
        elif isinstance(node.func, ast.Attribute) and not of_module:
            yield "dropped", node.func.value


def _with(node: ast.AST, **changed: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in changed.items():
        setattr(new, name, value)
    return new


def _whole(node: ast.AST) -> bool:
    return (isinstance(node, ast.Constant) and isinstance(node.value, int)) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len"
    )


def _texty(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
