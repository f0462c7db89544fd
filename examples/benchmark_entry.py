"""Enter docleak's benchmark without docleak: rows of the word table that moved are the words that were read.

    python examples/benchmark_entry.py FOLDER ANSWERS

Only JSON and safetensors are read, by json, numpy and safetensors. Pictures are left out, so each page counts as its
blank form; of answers the share that is right is a provider's score.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

TABLE = "word_embeddings.weight"
#: Of the noise, or of the largest number: what counts as moved.
STANDARD_DEVIATIONS, ROUNDING = 6.0, 1e-6


def tokens_of(place: Path, case: dict) -> list[int]:
    """Ids whose row of the word table moved; none where the model calls no table so, or all rows move."""
    update = load_file(place / case["rounds"][-1]["update"])
    tables = [value for name, value in update.items() if name.endswith(TABLE)]
    if not tables:
        return []
    size = np.abs(tables[0]).max(axis=1)
    return np.flatnonzero(size > max(STANDARD_DEVIATIONS * case["noise"], ROUNDING * size.max())).tolist()


def scores_of(place: Path, case: dict) -> dict[str, float]:
    """How often the model was right about each provider."""
    right = defaultdict(list)
    for line in (place / case["replies"]).read_text(encoding="utf-8").splitlines():
        reply = json.loads(line)
        right[reply["provider"]].append(reply["text"].strip().lower() in [a.lower() for a in reply["answers"]])
    return {provider: float(np.mean(values)) for provider, values in right.items()}


def main(folder: Path, answers: Path) -> None:
    """Answer every case, then say whose answers these are."""
    about = json.loads((folder / "benchmark.json").read_text())
    for name in about["cases"]:
        place = folder / "cases" / name
        case = json.loads((place / "case.json").read_text())
        said = {"scores": scores_of(place, case)} if case["sent"] == "answers" else {"tokens": tokens_of(place, case)}
        (answers / name).mkdir(parents=True, exist_ok=True)
        (answers / name / "answer.json").write_text(json.dumps(said))
    entry = {"name": "moved rows", "version": about["version"], "edition": about["edition"],
             "about": "examples/benchmark_entry.py, without docleak"}  # fmt: skip
    (answers / "entry.json").write_text(json.dumps(entry))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
