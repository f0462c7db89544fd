"""The leaderboard: a JSON file of scored entries of one edition, and the page made from it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from docleak.errors import RunError
from docleak.files import read_json_object, write_atomically, write_json
from docleak.metrics import Estimate
from docleak.report.table import Column, Row, Table
from docleak.studies.benchmark.files import Benchmark
from docleak.studies.benchmark.scoring import AUC, PSNR, HandedIn

Scores = Mapping[str, Mapping[str, Estimate]]
ADVICE = "It is what docleak benchmark score writes; pass another file."


def row_of(given: HandedIn, scores: Scores, engine: str) -> dict[str, Any]:
    """One entry as the file holds it."""
    seconds = [answer.seconds for answer in given.answers.values() if answer.seconds is not None]
    return {
        "name": given.entry.name,
        "about": given.entry.about,
        "commit": given.entry.commit,
        "seconds": round(sum(seconds), 1) if seconds else None,
        "answered": len(given.answers),
        "missing": list(given.missing),
        "ocr": engine,
        "scored": datetime.now(UTC).isoformat(timespec="seconds"),
        "tracks": {track: {k: v.to_json() for k, v in measured.items()} for track, measured in scores.items()},
    }


def enlisted(file: Path, benchmark: Benchmark, row: Mapping[str, Any]) -> dict[str, Any]:
    """Put the row into the file, in place of one of its name, and write the page beside it; returns all.

    RunError for a file of another edition, and where the rows were read by another OCR engine.
    """
    about = {key: benchmark.about[key] for key in ("version", "edition", "seed", "tracks", "cases")}
    board: dict[str, Any] = {"benchmark": about, "rows": []}
    if file.exists():
        board = read_json_object(file, error=RunError, advice=ADVICE)
        if board.get("benchmark") != about or not isinstance(board.get("rows"), list):
            told = board.get("benchmark")
            edition = told.get("edition") if isinstance(told, dict) else "none"
            raise RunError(f"{file} is of edition {edition}, the benchmark is {about['edition']}. {ADVICE}")
    rows = [one for one in board["rows"] if one["name"] != row["name"]]
    if other := {str(one["ocr"]) for one in rows} - {str(row["ocr"])}:
        raise RunError(f"{file} holds rows read by {other.pop()}; this one was read by {row['ocr']}. Use one engine.")
    board["rows"] = [*rows, dict(row)]
    write_json(file, board)
    write_atomically(file.with_suffix(".md"), as_page(board).encode())
    return board


def table_of(track: str, about: str, rows: list[Mapping[str, Any]]) -> Table:
    """A track's entries, the best by its first column on top."""
    measured = {row["name"]: {k: Estimate.of_json(v) for k, v in row["tracks"][track].items()} for row in rows}
    heads = list(next(iter(measured.values())))
    columns = {head: Column(head, 1 if head == PSNR else 2) for head in heads}
    entered = [name for name, values in measured.items() if values[heads[0]].value is not None]
    order = sorted(entered, key=lambda name: [-(measured[name][head].value or 0.0) for head in heads])
    if not order:
        return Table(f"{track}: {about}", columns, [], "Nobody entered.", first="entry")
    first = measured[order[0]]
    n = "; ".join(f"{head}: {first[head].n} {first[head].of}".rstrip() for head in heads)
    of = "providers" if AUC in heads else "cases"
    caption = f"n: {n}. Intervals of 95 % over {first[heads[0]].groups} {of}."
    return Table(f"{track}: {about}", columns, [Row(name, measured[name]) for name in order], caption, first="entry")


def as_page(board: Mapping[str, Any]) -> str:
    """The leaderboard as Markdown."""
    about, rows = board["benchmark"], board["rows"]
    seed = "private" if about["seed"] is None else f"{about['seed']}, which is public: the rows are on their honour"
    text = (
        "# Leaderboard\n\nWritten by `docleak benchmark score --leaderboard`; do not edit. "
        f"Version {about['version']}, edition `{about['edition']}`, seed {seed}.\n\n"
    )
    entries = [
        Row(row["name"], {"about": row["about"], "cases": f"{row['answered']} of {len(about['cases'])}",
                          "seconds": row["seconds"], "commit": row["commit"], "scored": row["scored"]})
        for row in rows
    ]  # fmt: skip
    columns = {"about": Column("about, by their own word"), "cases": Column("cases answered"),
               "seconds": Column("seconds, by their own word", 0), "commit": Column("commit"),
               "scored": Column("scored")}  # fmt: skip
    text += Table("Entries", columns, entries, f"Pictures were read by {rows[0]['ocr']}.", first="entry").to_markdown()
    return text + "".join("\n" + table_of(track, said, rows).to_markdown() for track, said in about["tracks"].items())
