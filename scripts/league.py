"""Put every comparison with a peer's own code on one page, from the stored numbers: docs/results/league.md.

    python -m scripts.league

Numbers come from docs/results/bench.json (``python -m bench beside_breaching imprint``), docs/results/spans.md
(``python scripts/beside_dager.py``), docs/results/league (``python -m bench.league``) and the benchmark's leaderboard.
Won and lost are said where the whole 95 % interval, or both quartiles of a time's ratio, lie on one side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.league.__main__ import PARTS, stored
from bench.league.auditing import NO_BOUND, verdict
from docleak.files import write_atomically
from docleak.metrics import Estimate
from docleak.metrics.estimate import ratio_interval
from docleak.metrics.membership import clopper_pearson
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
docleak's own canaries compare two numbers. Seconds are the processor's.

"""
TAIL = """
Not measured: memory of the rows without it; breaching's cases {lacking}4, 6 and 9. What stands behind a row is scaled
down where it says so, since ImageNet, CIFAR-10 and wikitext are not to be had here. Of documents are the rows of Donut,
of the shipped release and of docleak's canaries: few peers read document models, which is what
[the benchmark](../benchmark.md) is for.
"""
#: Parts of bench.league that have a driver, as TAIL names those without numbers.
LACKING = {"convnet": "1, ", "leakpro": ""}


def of_breaching(numbers: Mapping[str, Any]) -> list[Row]:
    """Inverting Gradients: likeness by pairs of pictures, and milliseconds a step."""
    rows = []
    for network, sides in numbers["likeness"].items():
        theirs = sides["breaching"]
        for name in ("docleak, same steps", "docleak, own solver"):
            gained = np.array(sides[name]["psnr"]) - np.array(theirs["psnr"])
            one = np.ones(len(gained), dtype=np.int64)
            low, high = ratio_interval(gained, one, np.random.default_rng(0), 0.95, 2000, False)
            rows.append(Row("breaching, Inverting Gradients", {
                "case": f"{network}, one picture of 32 x 32", "budget": "200 gradients, best of 8 settings",
                "measure": f"PSNR, dB, median ({name.partition(', ')[2]})", "theirs": f"{theirs['median']:.1f}",
                "ours": f"{sides[name]['median']:.1f}",
                "difference": Estimate(float(gained.mean()), low, high, len(gained)).text(2, signed=True),
                "n": len(gained), "verdict": verdict(low, high),
            }))  # fmt: skip
    for network, row in numbers["steps"].items():
        low, high = row["ratio_lower_quartile"], row["ratio_upper_quartile"]
        rows.append(Row("breaching, Inverting Gradients", {
            "case": f"{network}, one picture of 32 x 32", "budget": "a step", "measure": "milliseconds, median",
            "theirs": f"{row['theirs_ms']:.1f}", "ours": f"{row['ours_ms']:.1f}",
            "difference": f"x {row['ratio']:.2f}, quartiles {low:.2f} to {high:.2f}", "n": row["steps"],
            "verdict": verdict(-high, -low, level=-1.0),
        }))  # fmt: skip
    return rows


def of_imprint(numbers: Mapping[str, Any]) -> list[Row]:
    """Robbing the Fed, read from breaching's own block."""
    rows = []
    for bins, readers in numbers["bins"].items():
        theirs, ours = readers["breaching"], readers["docleak reads breaching's block"]
        shown = []
        for one in (theirs, ours):
            low, high = clopper_pearson(one["read"], one["of"])
            shown.append(f"{one['read']} of {one['of']} [{low:.3f}, {high:.3f}]")
        seconds = f"{ours['seconds']:.2f} s, theirs {theirs['seconds']:.2f} s"
        rows.append(Row("breaching, imprint", {
            "case": f"ResNet-18 behind its block of {bins} bins, 8 pictures", "budget": "algebra",
            "measure": "pictures read (40 dB)", "theirs": shown[0], "ours": shown[1],
            "difference": f"{ours['read'] - theirs['read']:+d}; {seconds}",
            "n": ours["of"], "verdict": "equal" if ours["read"] == theirs["read"] else OPEN,
        }))  # fmt: skip
    return rows


def of_dager(page: str) -> list[Row]:
    """Token sets from the first layer's span, by the page's table."""
    found: dict[str, list[tuple[int, int, int, int, int]]] = {}
    line = r"^\| (\S+) \| \d+ \| .* \| (\d+) \| (\d+) right, (\d+) wrong \| (\d+) right, (\d+) wrong \|$"
    for model, *counts in re.findall(line, page, re.MULTILINE):
        true, right, wrong, mine, false = map(int, counts)
        found.setdefault(model, []).append((true, right, wrong, mine, false))
    rows = []
    for model, counts in found.items():
        true, right, wrong, mine, false = np.sum(counts, axis=0).tolist()
        rows.append(Row("DAGER", {
            "case": f"{model} with random weights, one sequence of 12 tokens", "budget": "algebra",
            "measure": f"tokens read, of {true}", "theirs": f"{right}, {wrong} wrong", "ours": f"{mine}, {false} wrong",
            "difference": f"{mine - right:+d}", "n": len(counts),
            "verdict": "equal" if (right, wrong) == (mine, false) else OPEN,
        }))  # fmt: skip
    return rows


def of_benchmark(board: Mapping[str, Any]) -> list[Row]:
    """Peers' tokens on the benchmark's documents, beside docleak's closed form."""
    rows = {row["name"]: row["tracks"] for row in board["rows"]}
    found = []
    for peer in PEERS:
        for track, measured in rows[peer].items():
            if TOKENS not in measured or (theirs := Estimate.of_json(measured[TOKENS])).value is None:
                continue
            ours = Estimate.of_json(rows[OURS][track][TOKENS])
            found.append(Row(f"{peer}, in the benchmark", {
                "case": f"{track}: {board['benchmark']['tracks'][track]}", "budget": "algebra", "measure": TOKENS,
                "theirs": theirs.text(2), "ours": ours.text(2),
                "difference": f"{(ours.value or 0.0) - theirs.value:+.2f}", "n": theirs.groups,
                "verdict": "equal" if ours.value == theirs.value else OPEN,
            }))  # fmt: skip
    return found


def page_of(results: Path) -> str:
    """The page, from the numbers in ``results``."""
    bench = json.loads((results / "bench.json").read_text(encoding="utf-8"))
    rows: Sequence[Row] = [
        *of_breaching(bench["beside_breaching"]["numbers"]),
        *of_imprint(bench["imprint"]["numbers"]),
        *of_dager((results / "spans.md").read_text(encoding="utf-8")),
        *of_benchmark(json.loads((results / "leaderboard.json").read_text(encoding="utf-8"))),
        *(
            row
            for part in PARTS
            if (told := stored(results, part))
            for row in import_module(f"bench.league.{part}").rows(told["numbers"])
        ),
    ]
    counts = [sum(row.values["verdict"] == one for row in rows) for one in (WON, "equal", LOST, NO_BOUND, OPEN)]
    said = "{} rows: {} won, {} equal, {} lost, {} where theirs is no bound, {} cannot tell.\n".format(
        len(rows), *counts
    )
    return HEAD + said + "\n" + Table("", COLUMNS, rows, first="peer").to_markdown() + tail_of(results)


def tail_of(results: Path) -> str:
    """What was not measured."""
    absent = [part for part in LACKING if stored(results, part) is None]
    said = TAIL.format(lacking="".join(LACKING[part] for part in absent))
    return (
        said.replace("Not measured: ", "Not measured: LeakPro (its driver is there); ") if "leakpro" in absent else said
    )


if __name__ == "__main__":
    write_atomically(RESULTS / "league.md", page_of(RESULTS).encode())
