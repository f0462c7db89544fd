"""Ask one side of a comparison in a process and an environment of its own; what it tells comes back by files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

SIDES, ROOT = Path(__file__).parent / "sides", Path(__file__).parents[2]


def ask(
    python: str, side: str, job: Mapping[str, Any], arrays: Mapping[str, Any], *, with_docleak: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What ``sides/SIDE.py`` answers, run by ``python``; SystemExit with the end of what it said where it fails.

    ``with_docleak`` lets an environment that is not ours import docleak and bench, for a case that both sides share.
    """
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "job.json").write_text(json.dumps(dict(job)))
        np.savez(folder / "arrays.npz", **arrays)
        shared = with_docleak or python == sys.executable
        path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])} if shared else {}
        said = subprocess.run(
            [python, str(SIDES / f"{side}.py"), place], capture_output=True, text=True, check=False,
            env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, "OMP_NUM_THREADS": "1", **path},
        )  # fmt: skip
        if said.returncode:
            raise SystemExit(f"{side} ended with {said.returncode}:\n{said.stderr[-3000:]}")
        with np.load(folder / "answer.npz") as file:
            answers = {name: file[name] for name in file.files}
        return json.loads((folder / "answer.json").read_text()), answers
