"""What the runs of a report must have in common, and why what was not read may not be called unread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from docleak.errors import RunError
from docleak.runs.run import Run

if TYPE_CHECKING:
    from docleak.evidence.report_data import Unit


def doubts_of(units: Sequence[Unit], runs: Sequence[Run], skipped: Mapping[str, str]) -> list[str]:
    """Why what was not read of one model cannot be called unread: its self-test failed, or units are missing."""
    tests: dict[str, bool] = {}
    for unit in units:
        tests[unit.page] = tests.get(unit.page, True) and unit.self_test_passed
    failed = sum(not passed for passed in tests.values())
    doubts = []
    if failed:
        doubts.append(
            f"The self-test failed on {failed} of {len(tests)} pages: the true page does not reproduce the observed "
            "gradient, so an attack that reads nothing says nothing."
        )
    tried = grouped(units, lambda unit: str(unit.record["attack"]))
    configs = [run.config for run in runs]
    asked = {str(attack) for config in configs for attack in config.get("attacks", ())} - set(skipped)
    absent = sorted(asked - set(tried))
    wanted = max(len(group) for group in tried.values())
    known = all("found" in run.info or not run.info.get("shortage") for run in runs)  # 0.2.0 began to save it
    if known and all("batch_size" in config for config in configs):
        pages = [min(int(run.config.get("pages", 0)), int(run.info.get("found", 10**9))) for run in runs]
        wanted = max(wanted, sum(pages) // max(len(runs), 1))
    short = [attack for attack, group in tried.items() if len(group) < wanted]
    if absent or short:
        doubts.append(f"The run is not finished: {', '.join([*absent, *short])} has not been tried on every page.")
    return doubts


def check_comparable(units: Sequence[Unit], runs: Sequence[Run]) -> None:
    """RunError, with every fault, for runs that cannot stand in one report."""
    groups = grouped(units, lambda unit: f"{unit.record['attack']} on {unit.record['model']}")
    pages = {name: sorted(unit.page for unit in group) for name, group in groups.items()}
    budgets = {name: sorted({unit.record["finding"].get("budget") for unit in group}) for name, group in groups.items()}
    faults = [f"{name}: a page occurs in more than one run" for name, p in pages.items() if len(set(p)) < len(p)]
    compared: dict[str, Mapping[str, Sequence[object]]] = {
        "pages": pages, "budgets": budgets, "OCR engines": {"all": engines_of(units)}
    }  # fmt: skip
    for what, values in compared.items():
        if len({str(value) for value in values.values()}) > 1 or (what == "OCR engines" and len(values["all"]) > 1):
            faults.append(f"the {what} differ: " + "; ".join(f"{n}: {_short(v)}" for n, v in values.items()))
    faults += [
        f"{name.replace('_', ' ')} differs: {', '.join(settings)}"
        for name in sorted({name for run in runs for name in _exposed(run)})
        if len(settings := list(dict.fromkeys(str(_exposed(run).get(name, "not recorded")) for run in runs))) > 1
    ]
    if faults:
        lines = "".join(f"\n  - {fault}" for fault in faults)
        raise RunError(
            f"these runs cannot be joined in one report:{lines}\nReport them one by one, or audit the same pages with "
            "the same budget, exposed alike."
        )


def _exposed(run: Run) -> dict[str, Any]:
    """What the client sends and the server knows: one report has one threat model."""
    settings = {name: run.config[name] for name in ("batch_size", "rounds", "round_steps", "fine_tune_steps")
                if name in run.config}  # fmt: skip
    return {**settings, **{k: v for k, v in (run.config.get("exposure") or {}).items() if k != "gradient_file"}}


def engines_of(units: Sequence[Unit]) -> list[str]:
    """The OCR engines that read the units' pictures."""
    return sorted({str(unit.score.engine) for unit in units})


def _short(values: Sequence[object]) -> str:
    return ", ".join(map(str, values[:4])) + (f" and {len(values) - 4} more" if len(values) > 4 else "")


def grouped(units: Sequence[Unit], key: Callable[[Unit], str]) -> dict[str, list[Unit]]:
    """The units by ``key``, in the order of their first."""
    groups: dict[str, list[Unit]] = {}
    for unit in units:
        groups.setdefault(key(unit), []).append(unit)
    return groups
