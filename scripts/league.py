"""Put every comparison with a peer's own code on one page, from the stored numbers: docs/results/league.md.

    python -m scripts.league

Numbers come from docs/results/league (``python -m bench.league``), docs/results/bench.json (steps that take turns, by
``python -m bench beside_breaching``), and the benchmark's leaderboard.
Won and lost are said where the whole 95 % interval, or both quartiles of a time's ratio, lie on one side.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.league.__main__ import PARTS, stored
from bench.league.apart import memory_of
from bench.league.auditing import NO_BOUND, verdict
from docleak.files import write_atomically
from docleak.metrics import Estimate
from docleak.report.table import Column, Row, Table
from docleak.studies.benchmark.scoring import TOKENS

RESULTS = Path(__file__).parents[1] / "docs" / "results"
#: Rows of the leaderboard.
PEERS, OURS = ("DAGER",), "docleak closed-form"
WON, LOST, OPEN = "won", "lost", "cannot tell"
COLUMNS = {
    "case": Column("model and gradient"), "budget": Column("budget"), "measure": Column("measured"),
    "theirs": Column("theirs"), "ours": Column("docleak"), "difference": Column("docleak against theirs"),
    "memory": Column("peak MiB: theirs, docleak"), "n": Column("n", 0), "verdict": Column("verdict"),
}  # fmt: skip
HEAD = """# League: docleak beside its peers' own code

Written by `python -m scripts.league`; do not edit. Each peer is run as its authors publish it, on the same model,
gradient or scores, and budget; the pages behind the rows say how: [bench](bench.md) (breaching 0.1.2, MIT),
[spans](spans.md) (DAGER, Apache-2.0), and `python -m bench.league` for the rest, each side a process of its own, whose
peak memory is the column's. A row is **won** or **lost** where the whole 95 % interval of the difference, or both
quartiles of the ratio of times, lie on that side, else *cannot tell*; **equal** where the counts are. A bound on
epsilon that is above the known truth more often than its 5 % allow (p < 0.01) is **no bound**. Rows of one audit of
docleak's own canaries compare two numbers. Seconds are the processor's. The benchmark's leaderboard keeps no memory.

"""
TAIL = """
{lacking}What stands behind a row is scaled down where it says so, since ImageNet, CIFAR and wikitext are not to be had
here; LeakPro's presets that match batch statistics take a trained network with batch normalisation, and are left out.
Lost are docleak's bounded L-BFGS ("own solver") on networks other than LeNet-5, where its same steps are not; iDLG, by
which neither side reads anything; and two published scores of documents beside one that is not lost. [Why](../log.md).
Of documents are the rows of Donut, of the shipped release and of docleak's canaries: few peers read document models,
which is what [the benchmark](../benchmark.md) is for.
"""
#: Parts of bench.league that have a driver, as TAIL names those without numbers.
LACKING = {
    "apart": "breaching's and DAGER's other rows", "cases": "breaching's cases 0, 9 and 10",
    "convnet": "breaching's case 1", "batches": "breaching's cases 4 and 6", "leakpro": "LeakPro's presets",
}  # fmt: skip


def of_steps(steps: Mapping[str, Any], apart: Mapping[str, Any]) -> list[Row]:
    """breaching's Inverting Gradients and docleak's, taking turns in one process; memory is of each alone."""
    rows = []
    for network, row in steps.items():
        low, high = row["ratio_lower_quartile"], row["ratio_upper_quartile"]
        rows.append(Row("breaching, Inverting Gradients", {
            "case": f"{network}, one picture of 32 x 32", "budget": "a step, taking turns",
            "measure": "milliseconds, median", "theirs": f"{row['theirs_ms']:.1f}", "ours": f"{row['ours_ms']:.1f}",
            "difference": f"x {row['ratio']:.2f}, quartiles {low:.2f} to {high:.2f}",
            "memory": memory_of(apart, network), "n": row["steps"], "verdict": verdict(-high, -low, level=-1.0),
        }))  # fmt: skip
    return rows


def of_benchmark(board: Mapping[str, Any]) -> list[Row]:
    """Peers' tokens on the benchmark's documents, beside docleak's closed form."""
    rows = {row["name"]: row["tracks"] for row in board["rows"]}
    table = []
    for peer in PEERS:
        for track, measured in rows[peer].items():
            if TOKENS not in measured or (theirs := Estimate.of_json(measured[TOKENS])).value is None:
                continue
            ours = Estimate.of_json(rows[OURS][track][TOKENS])
            table.append(Row(f"{peer}, in the benchmark", {
                "case": f"{track}: {board['benchmark']['tracks'][track]}", "budget": "algebra", "measure": TOKENS,
                "theirs": theirs.text(2), "ours": ours.text(2),
                "difference": f"{(ours.value or 0.0) - theirs.value:+.2f}", "n": theirs.groups,
                "verdict": "equal" if ours.value == theirs.value else OPEN,
            }))  # fmt: skip
    return table


def page_of(results: Path) -> str:
    """The page, from the numbers in ``results``."""
    steps = json.loads((results / "bench.json").read_text(encoding="utf-8"))["beside_breaching"]["numbers"]["steps"]
    parts = {part: told["numbers"] for part in PARTS if (told := stored(results, part))}
    rows: Sequence[Row] = [
        *of_steps(steps, parts.get("apart", {})),
        *of_benchmark(json.loads((results / "leaderboard.json").read_text(encoding="utf-8"))),
        *(row for part, numbers in parts.items() for row in import_module(f"bench.league.{part}").rows(numbers)),
    ]
    counts = [sum(row.values["verdict"] == one for row in rows) for one in (WON, "equal", LOST, NO_BOUND, OPEN)]
    said = "{} rows: {} won, {} equal, {} lost, {} where theirs is no bound, {} cannot tell.\n".format(
        len(rows), *counts
    )
    absent = "; ".join(name for part, name in LACKING.items() if part not in parts)
    tail = TAIL.format(lacking=f"Not measured: {absent}. " if absent else "")
    return HEAD + said + "\n" + Table("", COLUMNS, rows, first="peer").to_markdown() + tail


if __name__ == "__main__":
    write_atomically(RESULTS / "league.md", page_of(RESULTS).encode())
