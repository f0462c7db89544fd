"""``pip install docleak`` without extras: what ``docleak audit`` does without arguments needs none of them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Distributions of extras -> the packages of theirs that docleak imports itself.
ABSENT = {
    "flwr": "flwr", "cryptography": "cryptography", "dp-accounting": "dp_accounting", "opacus": "opacus",
    "distributed": "distributed", "tensorboardX": "tensorboardX", "pypdfium2": "pypdfium2", "pyarrow": "pyarrow",
    "nvflare": "nvflare",
}  # fmt: skip
EVERYTHING = """
import sys

sys.modules.update(dict.fromkeys({absent!r}))  # as if they were not installed
from docleak.cli import audit
from docleak.studies import engine, registry
from docleak.studies.answers import store
from docleak.studies.gradient import config, defences, reading, study
from docleak.studies.shipped import shipped_examples

for folder, example in shipped_examples(0, "cpu"):
    example.check(lambda said: None)
    len(example.units())
    print(folder)
"""


def test_the_default_audit_imports_no_extra() -> None:
    core = PROJECT["dependencies"]
    extras = [word for extra in PROJECT["optional-dependencies"].values() for word in extra]
    for name in ABSENT:
        assert any(word.startswith(name) for word in extras) and not any(word.startswith(name) for word in core)
    code = EVERYTHING.format(absent=tuple(ABSENT.values()))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.split() == ["released", "released-documents", "weights"]


def test_the_first_page_lists_every_extra() -> None:
    rows = [
        line.split("|")[1] for line in (ROOT / "docs" / "index.md").read_text().splitlines() if line.startswith("| `")
    ]
    named = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert named == set(PROJECT["optional-dependencies"])
