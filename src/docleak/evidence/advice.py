"""What to do about it: first what this run measured of defences, then what is general and says so."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from docleak.evidence.report_data import ReportData
from docleak.report.severity import Severity
from docleak.studies.identity import model_key

Row = Mapping[str, Any]
#: Leakages closer than this count as equal.
SAME = 1e-9


@dataclass(frozen=True)
class Advice:
    """``lines`` follow from this run; ``command`` measures what it has not measured ("" where nothing is missing)."""

    lines: tuple[str, ...]
    command: str = ""


def advice_of(data: ReportData) -> Advice:
    """What the comparison of defences in the run says, or that there is none and how to make it."""
    rows = [] if data.defences is None else list(data.defences.get("rows", []))
    measured = [row for row in rows if row.get("leakage") is not None]
    if len(measured) < 2 or measured[0] is not rows[0]:
        return Advice(
            ("No defence was measured in this run, so nothing here says which one would help.",), _command(data)
        )
    lines = _compared(measured[0], measured[1:])
    if (facts := data.defences or {}).get("Attack"):
        lines[0] = f"Measured with {facts['Attack']} alone ({facts.get('Budget', 'budget not recorded')}). {lines[0]}"
    lost = [str(row["defence"]) for row in rows if row.get("leakage") is None]
    if lost:
        lines.append(f"Could not be measured, so nothing is known of it: {'; '.join(lost)}.")
    priced = any(row.get("anls") not in (None, "", "not measured") for row in measured)
    if not priced:
        lines.append(
            "What a defence costs in right answers was not measured here. “Update kept” is the share of the update's "
            "direction that still arrives, 1 = all of it; it is no measure of the trained model. The command below "
            "trains under each defence and measures it."
        )
    return Advice(tuple(lines), "" if priced else _command(data))


def _compared(plain: Row, tried: Sequence[Row]) -> list[str]:
    stopped = [row for row in tried if _stopped(plain, row)]
    unsure = [row for row in tried if row not in stopped and not row.get("read", 1) and _untold(row)]
    lowered = [row for row in tried if row not in (*stopped, *unsure) and row["leakage"] < plain["leakage"] - SAME]
    useless = [row for row in tried if row not in (*stopped, *unsure, *lowered)]
    lines = [f"Without a defence: {_read(plain)}."]
    for group, words in (
        (stopped, "would have stopped what was tried here"),
        (lowered, "lowered what was read, without stopping it"),
        (useless, "did not lower what was read"),
        (unsure, "nothing was read, but a check failed, so it could not be told whether it helps"),
    ):
        if group:
            named = "; ".join(f"{row['defence']} ({_read(row)}; {_cost(row)})" for row in group)
            lines.append(f"{words[0].upper()}{words[1:]}: {named}.")
    if not plain.get("read"):
        lines.append("Nothing was read without a defence, so this comparison cannot say what would have stopped it.")
    elif not stopped:
        lines.append(f"None of the {len(tried)} defences measured here would have stopped it.")
    return lines


def _stopped(plain: Row, row: Row) -> bool:
    return bool(plain.get("read")) and row.get("read") == 0 and row.get("severity") == Severity.NONE


def _untold(row: Row) -> bool:
    return row.get("severity") in (Severity.UNTOLD, Severity.UNMEASURED)


def _read(row: Row) -> str:
    if row.get("of"):
        return f"{row['read']} of {row['of']} private fields read by any route: {row['routes']}"
    return f"{100 * row['leakage']:.0f} % of the private text read"


def _cost(row: Row) -> str:
    costs = [f"update kept {row['kept']}"] if row.get("kept") else []
    if row.get("anls") not in (None, "", "not measured"):
        costs.append(f"right answers after training, ANLS {row['anls']}")
    return ", ".join(costs) or "cost not measured"


def _command(data: ReportData) -> str:
    """The command that compares defences on the audited model and pages, training under each."""
    config = data.runs[0].config
    models = config.get("models") or ["layoutlmv3-start"]
    most = max(data.models, key=lambda model: model.findings.judgement.read)
    size = config.get("image_size")
    keys = {model_key(str(name), tuple(size) if size else None): name for name in models}
    source = keys.get(most.model, models[0])
    parts = ["docleak", "defend", "--model", str(source), "--documents", str(config.get("documents", "synthetic"))]
    parts += ["--seed", str(config["seed"])] if "seed" in config else []
    return shlex.join([*parts, "--pages", "10", "--utility-steps", "400"])
