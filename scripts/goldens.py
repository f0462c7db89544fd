"""The numbers of a miniature of every long command, kept: a change of the house must not move them.

    python -m scripts.goldens                   compare with scripts/goldens/, ten minutes on one core
    python -m scripts.goldens --write           put what comes out there
    python -m scripts.goldens --kinds audit,cdmi

The commands are those of ``scripts.kills``, apart from what draws secret noise or keys. Of everything that a command
leaves in JSON, JSON lines and CSV, the numbers are taken by the name that each has (the key or column it stands under),
wherever they lie: ``{"psnr": [14.2, 25.7], ...}``, sorted, to six digits. So files may be arranged anew and names of
folders change, and a number that moved or went is still seen; new ones are
told. What says how long something took is left out.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import sys
import tempfile
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from scripts.kills import COLUMNS, KINDS, TIMES, finish, make_inputs, started

GOLDENS = Path(__file__).parent / "goldens"
#: Secret noise and masks: nothing of them is the same twice.
SECRET = ("train-private", "train-records", "train-secure")
#: Names whose numbers say where or when, or of what build, and not what came out.
APART = TIMES | {
    "format",
    "schema",
    "pid",
    "threads",
    "bytes",
    "up",
    "down",
    "load",
    "cores",
    "cpu_count",
    "milliseconds_per_step",
}
#: Files of words, whose numbers are places in a list.
VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer_config.json")
DIGITS = 6


def numbers_of(folder: Path) -> dict[str, list[float]]:
    """Name -> all numbers that stand under it in the folder, sorted."""
    numbers: dict[str, list[float]] = defaultdict(list)
    for file in sorted(folder.rglob("*")):
        for name, value in _numbers(file):
            numbers[name].append(value)
    return {name: sorted(values) for name, values in sorted(numbers.items())}


def _numbers(file: Path) -> Iterator[tuple[str, float]]:
    if file.suffix == ".json" and file.name not in VOCABULARIES:
        yield from _leaves("", json.loads(file.read_text(encoding="utf-8")))
    elif file.suffix == ".jsonl":
        for line in file.read_text(encoding="utf-8").splitlines():
            yield from _leaves("", json.loads(line))
    elif file.suffix == ".csv":
        for row in csv.DictReader(io.StringIO(file.read_text(encoding="utf-8"))):
            for name, text in row.items():
                if name not in COLUMNS and (value := _as_number(text)) is not None:
                    yield name, value


def _leaves(name: str, value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in APART:
                yield from _leaves(str(key), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(name, inner)
    elif isinstance(value, int | float):
        yield name, _rounded(float(value))


def _as_number(text: str | None) -> float | None:
    try:
        return _rounded(float(text or ""))
    except ValueError:
        return None


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else 1e308


def differences(golden: dict[str, list[float]], now: dict[str, list[float]]) -> tuple[list[str], list[str]]:
    """A line per name of which numbers are gone (how often each stands there does not count, the last digit may differ
    by rounding), and a line per name under which there are new ones."""
    lost, come = [], []
    for name in {**golden, **now}:
        before, after = sorted(set(golden.get(name, []))), sorted(set(now.get(name, [])))
        for one, other, lines, what in ((before, after, lost, "gone"), (after, before, come, "new")):
            if missing := [value for value in one if not _among(value, other)]:
                lines.append(f"{name}: {len(missing)} of {len(one)} {what}, such as {missing[0]}")
    return lost, come


def _among(value: float, others: list[float]) -> bool:
    place = bisect_left(others, value)
    return any(math.isclose(value, other, rel_tol=2e-5) for other in others[max(0, place - 1) : place + 1])


def main() -> None:
    """Run the commands; exit code 1 if one fails, or a number is another."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    usual = [name for name in KINDS if name not in SECRET]
    parser.add_argument("--kinds", default=",".join(usual), help="comma-separated")
    parser.add_argument("--write", action="store_true", help="keep what comes out instead of comparing")
    options = parser.parse_args()
    names = options.kinds.split(",")
    if unknown := [name for name in names if name not in usual]:
        parser.error(f"unknown {', '.join(unknown)}; known: {', '.join(usual)}")
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="docleak-goldens-") as folder:
        make_inputs(Path(folder) / "inputs", names)
        for name in names:
            place, file = Path(folder) / "kinds" / name, GOLDENS / f"{name}.json"
            lines = finish(started(KINDS[name], place), place)
            now = {} if lines else numbers_of(place / "out")
            if options.write and not lines:
                GOLDENS.mkdir(exist_ok=True)
                file.write_text(json.dumps(now).replace("], ", "],\n ") + "\n")
            elif not lines:
                kept = json.loads(file.read_text()) if file.is_file() else {"there is no golden": [0.0]}
                golden = {name: values for name, values in kept.items() if name not in APART}
                lines, come = differences(golden, now)
                print(*(f"{name}, {line}" for line in come), sep="\n")
            wrong += bool(lines)
            print(f"{name}: {sum(map(len, now.values()))} numbers of {len(now)} names", *lines[:20], sep="\n    ")
            sys.stdout.flush()
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
