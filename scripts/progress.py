"""How far attacks on gradients had come after so many evaluations, from the pictures that their runs kept on the way.

    python -m scripts.progress RUN... --out docs/results/gi-dqa/donut-base-pages.md

RUN is a run of ``docleak audit gradient``, or a row of a table of ``docleak reproduce``. Its pages are made or read
anew and every kept picture is scored as the last one was; what stands on the page below "What it shows" is kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docleak.documents import private_mask
from docleak.files import write_atomically
from docleak.metrics import PageScore, load_engine, score_page
from docleak.runs import Run
from docleak.studies.gradient.config import GradientConfig
from docleak.studies.gradient.models import audited_pages
from docleak.studies.given import configured
from scripts.publish_tables import HEADING, placeless

HEADS = (
    "model", "attack", "page", "unknown pixels", "fields read by evaluations (PSNR in dB, matching loss)", "at the end",
    "minutes", "GPU or CPU",
)  # fmt: skip


def rows(path: Path) -> list[tuple[str, ...]]:
    """A line for each finished unit of the run."""
    run = Run.load(path)
    told = {**run.config, **run.config["exposure"]}
    config = configured(GradientConfig, {k: v for k, v in told.items() if k != "exposure"}, what=str(path))
    engine, device = load_engine(config.ocr), "cpu"
    lines = []
    for record in run.units():
        source = next(s for s in config.models if run.manifest()["info"]["models"].get(record["model"]))
        pages = {page.name: page for page in audited_pages(source, device, config)}
        page, loss = pages[record["page"]], dict(map(tuple, record["finding"]["history"]))
        looks = []
        for file in sorted((run.folder(record["unit"]) / "snapshots").glob("*.png")):
            picture = run.read_image(record["unit"], f"snapshots/{file.name}")
            looks.append(f"{int(file.stem)}: {_said(score_page(page, picture, engine), loss.get(int(file.stem)))}")
        lines.append((
            record["model_title"], record["attack"], record["page"], f"{int(private_mask(page).sum()):,}",
            "; ".join(looks), f"{record['finding']['evaluations']}: {_said(PageScore.from_json(record['score']), None)}",
            f"{record['finding']['seconds'] / 60:.1f}", _device(run),
        ))  # fmt: skip
    return lines


def _said(score: PageScore, loss: float | None) -> str:
    read = sum(bool(field.exact) for field in score.fields)
    tail = "" if loss is None else f", {loss:.1e}"
    return f"{read} of {len(score.fields)} ({score.psnr:.1f}{tail})"


def _device(run: Run) -> str:
    command = str(run.manifest().get("command", ""))
    return "GPU" if "--device cuda" in command else "CPU"


def page_of(runs: Sequence[Path]) -> str:
    """The page as Markdown."""
    told: list[Mapping[str, Any]] = [Run.load(path).manifest() for path in runs]
    table = [" | ".join(line) for path in runs for line in rows(path)]
    return "\n".join([
        "# Recovery by evaluations", "",
        "`python -m scripts.progress RUN... --out PAGE`, of the runs below. Every picture that an attack kept on its way",
        "is scored like the last one: fields that OCR reads as they are, PSNR over private pixels, and the attack's own",
        "loss, which starts near 20. An evaluation is a gradient of the page; those that whitening draws count.", "",
        f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|", *(f"| {line} |" for line in table), "",
        *(f"`{placeless(str(one['command']))}`; torch {one['environment']['torch']}; {one['signature']}  "
          for one in told), "",
    ])  # fmt: skip


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    before = given.out.read_text() if given.out.is_file() else ""
    shown = before[before.index(HEADING) :] if HEADING in before else f"{HEADING}\n\nTo be written.\n"
    write_atomically(given.out, f"{page_of(given.runs)}\n{shown}".encode())


if __name__ == "__main__":
    main()
