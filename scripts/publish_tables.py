"""Copy finished tables of ``docleak reproduce`` into docs/results, with the paragraph that says what they show.

    python scripts/publish_tables.py RUN[@COMMIT[:PART]]...

COMMIT is what the run was made with, by default the present one. Each RUN is a folder that ``docleak reproduce`` wrote.
The table goes to docs/results/PAPER/TABLE.md (of another scale than tiny: TABLE-SCALE.md; a PART of one that was
computed by several commands, over other documents or of other models, say: TABLE-SCALE-PART.md, tiny or not), its
pictures and its table.json, from which the scoreboard is made, beside it; what stands on the page below the line "What
it shows" is kept. Paths of the machine are left out.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEADING = "## What it shows"


def publish(run: Path, commit: str, part: str = "") -> Path:
    """Copy one finished table; returns the page."""
    told = json.loads((run / "recipe.json").read_text())
    recipe, scale = told["recipe"], told["scale"]
    name = "-".join([recipe, *([scale] if scale != "tiny" or part else []), *([part] if part else [])])
    page = ROOT / "docs" / "results" / f"{name}.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.with_suffix(".json").write_text(placeless((run / "table.json").read_text()))
    text = placeless((run / "table.md").read_text()).replace("## ", "# ", 1).replace("### ", "## ")
    text = (
        text.rstrip()
        + f"  \nMachine: {os.cpu_count()} cores of {_processor()}, other work beside it; commit {commit}\n"
    )
    if (run / "pictures.png").is_file():
        picture = page.with_name(f"{page.stem}.png")
        shutil.copyfile(run / "pictures.png", picture)
        text += f"\n![{recipe} in pictures]({picture.name})\n"
    published = page.read_text() if page.is_file() else ""
    kept = published[published.index(HEADING) :] if HEADING in published else f"{HEADING}\n\nTo be written.\n"
    page.write_text(f"{text}\n{kept}")
    return page


def placeless(text: str) -> str:
    """The text without the folders of this machine that commands name."""
    text = re.sub(r"--out [^\s\"]+", "--out RUN", text)
    text = re.sub(r"out='[^']+'", "out='RUN'", text)
    for model in set(re.findall(r"=(/[^\s\",]+)", text)):  # of a command; its table names it alone
        text = text.replace(model, Path(model).name.upper())
    return re.sub(r"(\w+):/[^\s\"]+/(\w+)", r"\1:DATA/\2", text)


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    for name in sys.argv[1:]:
        run, _, told = name.partition("@")
        commit, _, part = told.partition(":")
        print(publish(Path(run), commit or _commit(), part))
