"""Compute published result pages anew by their own commands, and say how far the numbers agree.

    python -m scripts.rerun --draw 5 --seed 0 --at-most 600 --data DATA --work WORK --out docs/results/rerun.md

Drawn are pages of docs/results at tiny scale whose command, and the training of its targets, had taken ``--at-most``
seconds. Each is rerun in WORK with the docleak that this interpreter imports, and cut off after ``--patience`` seconds.
DATA is the folder of the real development data; FeDocVQA's pages are drawn where ``--public`` names the model of
``scripts.public_reader``. Of every row each number is *the same* (to 1e-6), *agrees* (each value lies in the other's
interval, or the number has none and lies within a twentieth), or *differs*; what a clock says is left out. Verdicts of
statements are the same or not. What stands on the page below "What it shows" is kept.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docleak.files import write_atomically
from scripts.publish_tables import HEADING

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
#: Columns that a clock measures.
TIMED = re.compile(r"second|_s$|^s$|per_hour|minutes")
CLOSE, NEAR = 1e-6, 0.05


def candidates(at_most: float) -> list[Path]:
    """The tables of result pages at tiny scale that took so many seconds at most (``cost_of``)."""
    return [file for file in sorted(RESULTS.glob("*/*.json")) if cost_of(json.loads(file.read_text())) <= at_most]


def cost_of(told: Mapping[str, Any]) -> float:
    """Seconds of a table's command, and of the training of the targets that it may have found there; infinite at other
    scales, or where a page does not say it. Only the last call of a continued run counts, as its page says."""
    wall = re.match(r"[\d,]+", str(told.get("Wall time of this call", "")))
    if told.get("scale") != "tiny" or "Command" not in told or not wall:
        return math.inf
    trained = {row["target"]: row["trained"]["seconds"] or 0.0 for row in told["rows"] if row.get("trained")}
    return float(wall[0].replace(",", "")) + sum(trained.values())


def command_of(told: Mapping[str, Any], out: Path, data: Path, public: Path | None) -> list[str]:
    """The command of a page with this machine's folders."""
    words = shlex.split(told["Command"])[1:]
    where = words.index("--out") if "--out" in words else len(words)
    words[where : where + 2] = ["--out", str(out)]
    words = [re.sub(r":DATA/", f":{data}/", re.sub(r"=PUBLIC$", f"={public}", word)) for word in words]
    return [sys.executable, "-m", "docleak", *words]


def compared(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[Counter[str], list[str]]:
    """How many numbers are the same, agree, differ or are missing, and what differs in words."""
    counts, said = Counter[str](), []
    rows = {(row["row"], row.get("model")): row.get("ours", {}) for row in after["rows"]}
    for row in before["rows"]:
        other = rows.get((row["row"], row.get("model")), {})
        for name, value in row.get("ours", {}).items():
            if TIMED.search(name):
                continue
            verdict = judged(value, other.get(name))
            counts[verdict] += 1
            if verdict in ("differs", "missing"):
                said.append(f"{row['row']}, {name}: {_shown(value)}, now {_shown(other.get(name))}")
    return counts, said


def judged(value: Any, other: Any) -> str:
    """One number beside the other."""
    if other is None:
        return "missing"
    if not isinstance(value, dict) or not isinstance(other, dict):
        return "the same" if value == other else "differs"
    one, two = value["value"], other["value"]
    if one == two or (one is not None and two is not None and abs(one - two) <= CLOSE * max(1.0, abs(one))):
        return "the same"
    if one is None or two is None:
        return "differs"
    bounds = [(of["low"], of["high"], number) for of, number in ((value, two), (other, one))]
    if any(low is None or high is None for low, high, _ in bounds):
        return "agrees" if abs(one - two) <= NEAR * abs(one) else "differs"
    return "agrees" if all(low <= number <= high for low, high, number in bounds) else "differs"


def verdicts(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[int, int]:
    """How many statements' verdicts are the same, of how many."""
    now = {(s["says"], s.get("model")): s["verdict"] for s in after.get("statements", [])}
    then = {(s["says"], s.get("model")): s["verdict"] for s in before.get("statements", [])}
    return sum(now.get(key) == verdict for key, verdict in then.items()), len(then)


def _shown(value: Any) -> str:
    if isinstance(value, dict) and value.get("value") is not None:
        interval = "" if value.get("low") is None else f" [{value['low']:.3f}, {value['high']:.3f}]"
        return f"{value['value']:.4g}{interval}"
    return str(value)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, rerun, compare, write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-most", type=float, default=600.0)
    parser.add_argument("--patience", type=float, default=1800.0)
    parser.add_argument("--public", type=Path)
    for name in ("data", "work", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given = parser.parse_args(arguments)
    files = [file for file in candidates(given.at_most) if given.public or file.parent.name != "fedocvqa"]
    if not 0 < given.draw <= len(files):
        parser.error(f"--draw is {given.draw}; expected 1 to {len(files)}, the pages that --at-most leaves")
    drawn = random.Random(given.seed).sample(files, given.draw)
    lines, differing = [], []
    for file in drawn:
        page, name = json.loads(file.read_text()), file.relative_to(RESULTS).with_suffix("").as_posix()
        out = (given.work / name).absolute()
        words = command_of(page, out, given.data.absolute(), given.public and given.public.absolute())
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=given.patience, check=False)
            ended = "" if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr.strip()[-200:]}"
        except subprocess.TimeoutExpired:
            ended = f"cut off after {given.patience:.0f} s"
        link = f"[{name}]({name}.md)"
        if not (out / "table.json").is_file() or ended:
            lines.append(f"| {link} | {ended or 'no table'} | | | | |")
            differing.append(f"- {name}: not computed, so that nothing is known of it")
            continue
        after = json.loads((out / "table.json").read_text())
        counts, said = compared(page, after)
        same, of = verdicts(page, after)
        lines.append(f"| {link} | {counts['the same']} | {counts['agrees']} | {counts['differs']} | "
                     f"{counts['missing']} | {same} of {of} |")  # fmt: skip
        differing += [f"- {name}: {sentence}" for sentence in said]
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=True)
    all_but = "" if given.public else ", but FeDocVQA's,"
    text = [
        "# Result pages computed anew", "",
        f"{given.draw} of the {len(files)} pages at tiny scale{all_but} whose last call had taken {given.at_most:.0f} "
        "s at most, with the training of PFL-DocVQA's targets; "
        f"drawn by seed {given.seed}; each by its command with the docleak of {commit.stdout.strip()}, one after the "
        "other. A number is *the same* to 1e-6, it *agrees* where each value lies in the other's interval (or, without "
        "one, within a twentieth), else it *differs*. Columns of a clock are left out.", "",
        "| page | the same | agree | differ | missing | verdicts the same |", "|---|---|---|---|---|---|", *lines, "",
        *(differing or ["Nothing differs."]), "",
        f"Command: python -m scripts.rerun --draw {given.draw} --seed {given.seed} --at-most {given.at_most:.0f} "
        f"--data DATA{' --public PUBLIC' if given.public else ''} --work WORK --out docs/results/rerun.md",
    ]  # fmt: skip
    before = given.out.read_text() if given.out.is_file() else ""
    shown = before[before.index(HEADING) :] if HEADING in before else f"{HEADING}\n\nTo be written.\n"
    write_atomically(given.out, ("\n".join(text) + f"\n\n{shown}").encode())


if __name__ == "__main__":
    main()
