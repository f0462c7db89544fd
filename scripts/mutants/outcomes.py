"""What came out: counts per package, the explanations that are kept, and whether those still speak of code there is."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.mutants.operators import Mutant, mutants_of
from scripts.mutants.runner import Outcome
from scripts.mutants.table import BESIDE, ROOT, SOURCE

EXPLAINED = Path(__file__).parent / "explained.toml"
KINDS = ("equivalent", "explained")


@dataclass
class Results:
    """One record per mutant; written after each where ``path`` is given, so that a run can go on."""

    path: Path | None = None
    records: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, path: Path | None) -> Results:
        return cls(path, json.loads(path.read_text()) if path and path.is_file() else {})

    def __contains__(self, identity: str) -> bool:
        return identity in self.records

    def add(self, source: str, mutant: Mutant, outcome: Outcome, reason: str | None) -> None:
        self.records[mutant.identity] = {
            "source": source, "mutant": str(mutant), "result": outcome.result, "test": outcome.test,
            "seconds": round(outcome.seconds, 2), "noticed": outcome.noticed, "reason": reason,
        }  # fmt: skip
        if self.path:
            self.path.write_text(json.dumps(self.records, indent=1))

    @property
    def unexplained(self) -> list[str]:
        return [r["mutant"] for r in self.records.values() if not r["noticed"] and not r["reason"]]

    def table(self, seconds: float) -> str:
        """Markdown: per package, mutants tried, noticed, equivalent and explained."""
        packages: dict[str, list[dict[str, Any]]] = {}
        for record in self.records.values():
            packages.setdefault(record["source"].rsplit("/", 1)[0], []).append(record)
        rows = ["| package | mutants | noticed | equivalent | explained | not explained |", "|---|---|---|---|---|---|"]
        rows += [_row(name, records) for name, records in sorted(packages.items())]
        rows.append(_row("all", list(self.records.values())))
        return "\n".join([*rows, f"{seconds:.0f} s"])


def _row(name: str, records: list[dict[str, Any]]) -> str:
    noticed = sum(r["noticed"] for r in records)
    kinds = [(r["reason"] or "not").split(":")[0] for r in records if not r["noticed"]]
    share = f"{noticed} ({noticed / len(records):.0%})" if records else "0"
    return f"| {name} | {len(records)} | {share} | {' | '.join(str(kinds.count(k)) for k in (*KINDS, 'not'))} |"


def explained(path: Path = EXPLAINED) -> dict[str, str]:
    """Identity -> "kind: reason". ValueError for a kind that is none."""
    reasons = {}
    for identity, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
        if entry["kind"] not in KINDS or not entry["reason"]:
            raise ValueError(f"{path.name}: {identity} needs a reason and a kind of {KINDS}, not {entry['kind']!r}.")
        reasons[identity] = f"{entry['kind']}: {entry['reason']}"
    return reasons


def stale(reasons: dict[str, str]) -> list[str]:
    """Explanations of mutants that the code no longer offers."""
    offered = {m.identity for source in BESIDE for m in mutants_of(SOURCE / source, ROOT)}
    return [f"{identity} ({reason}): no such mutant" for identity, reason in reasons.items() if identity not in offered]
