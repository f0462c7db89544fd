"""The mutation script: what it offers, that it tells a noticed change from another, and its kept explanations."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]

FORMULA = '''
def half(x: float = 2.0) -> float:
    """Half of x + 0."""
    if x != x:
        raise ValueError(f"{x + 1}")
    return abs(x) / 2 + UNUSED[0]

def unseen(n: int) -> int:
    return n - 1

UNUSED = [0 * 5]
'''


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT)
    from scripts.mutants import operators, outcomes, table

    return operators, outcomes, table


@pytest.fixture
def formula(tmp_path: Path) -> Path:
    path = tmp_path / "formula.py"
    path.write_text(FORMULA)
    return path


def test_a_formula_is_changed_one_node_at_a_time_and_nothing_else_is(mutants: Any, formula: Path) -> None:
    operators, _, _ = mutants
    offered = operators.mutants_of(formula, formula.parent)
    assert {(m.operator, m.before, m.after) for m in offered} == {
        ("arithmetic", "abs(x) / 2 + UNUSED[0]", "abs(x) / 2 - UNUSED[0]"),
        ("arithmetic", "abs(x) / 2", "abs(x) * 2"),
        ("dropped", "abs(x)", "x"),
        ("constant", "2", "3"),
        ("constant", "0", "1"),
        ("arithmetic", "n - 1", "n + 1"),
        ("constant", "1", "2"),
    }, "no text, no check, no default, no named constant"
    for mutant in offered:
        tree = ast.unparse(operators.mutated_tree(mutant))
        original = ast.unparse(ast.parse(FORMULA))
        assert sum(a != b for a, b in zip(tree.split("\n"), original.split("\n"), strict=True)) == 1
    assert formula.read_text() == FORMULA


def test_identities_outlive_changes_of_other_lines(mutants: Any, formula: Path) -> None:
    operators, _, _ = mutants
    before = {m.identity: m for m in operators.mutants_of(formula, formula.parent)}
    assert len(before) == 7
    formula.write_text("import math\n" + FORMULA.replace("n - 1", "n - 1 - math.pi"))
    after = {m.identity for m in operators.mutants_of(formula, formula.parent)}
    assert {m.line for identity, m in before.items() if identity not in after} == {9}
    formula.write_text(FORMULA.replace("n - 1", "n - 7"))
    stale = next(m for m in before.values() if m.before == "n - 1")
    with pytest.raises(ValueError, match="list them again"):
        operators.mutated_tree(stale)


def test_a_noticed_change_fails_and_a_planted_survivor_passes(mutants: Any, formula: Path, tmp_path: Path) -> None:
    """In a process of its own, as the script runs: it forks, and puts the change in place by an import hook."""
    test = tmp_path / "test_formula.py"
    test.write_text("from formula import half\n\ndef test_half():\n    assert half(-4.0) == 2.0\n")
    program = f"""
import sys
from pathlib import Path
sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]
from scripts.mutants import runner
from scripts.mutants.operators import mutants_of
runner.LIBRARIES = ()
workshop = runner.Workshop([], Path({str(tmp_path)!r}))
cost = workshop.cost([Path({str(test)!r})])
for mutant in mutants_of(Path({str(formula)!r}), Path({str(tmp_path)!r})):
    print(mutant.before, "->", mutant.after, workshop.attempt(mutant, "formula", [Path({str(test)!r})], cost).result)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert results["abs(x) -> x"] == results["2 -> 3"] == results["abs(x) / 2 -> abs(x) * 2"] == "failed"
    assert results["n - 1 -> n + 1"] == "passed", "no test calls it"
    assert results["0 -> 1"] == "failed" and formula.read_text() == FORMULA
    assert not list(tmp_path.glob("*.pyc"))


def test_the_table_names_files_that_are_there_and_draws_enough(mutants: Any) -> None:
    _, _, table = mutants
    assert all((table.TESTS / name).is_file() for names in table.BESIDE.values() for name in names)
    drawn = [mutant for source in table.BESIDE for mutant in table.sample(source)]
    assert len({mutant.identity for mutant in drawn}) == len(drawn) >= 300
    assert drawn == [mutant for source in table.BESIDE for mutant in table.sample(source)]


def test_every_kept_explanation_is_of_code_that_is_there(mutants: Any, tmp_path: Path) -> None:
    _, outcomes, _ = mutants
    assert outcomes.stale(outcomes.explained()) == []
    assert len(outcomes.stale({"0123456789": "equivalent: of nothing"})) == 1
    wrong = tmp_path / "explained.toml"
    wrong.write_text('[0123456789]\nkind = "unimportant"\nreason = "so"\n')
    with pytest.raises(ValueError, match="'unimportant'"):
        outcomes.explained(wrong)
