"""How far attacks on gradients had come after so many evaluations, from the pictures that their runs kept on the way.

    python -m scripts.progress RUN... --out docs/results/gi-dqa/donut-base-pages.md

RUN is a run of ``docleak audit gradient``, or a row of a table of ``docleak reproduce``. Its pages are made or read
anew and every kept picture is scored as the last one was; what stands on the page below "What it shows" is kept.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from docleak.documents import private_mask
from docleak.errors import DocleakError
from docleak.files import write_atomically
from docleak.metrics import PageScore, load_engine, score_page
from docleak.runs.run import Run
from docleak.studies.given import configured
from docleak.studies.gradient.config import GradientConfig
from docleak.studies.gradient.models import audited_pages
from scripts.publish_tables import HEADING, placeless

HEADS = ("evaluations", "fields read", "PSNR, dB", "loss")


def sections(path: Path) -> list[str]:
    """A table for each finished unit of the run."""
    run = Run.load(path)
    if run.kind != "gradient":
        raise SystemExit(f"{path} is a run of kind {run.kind!r}; expected one of gradients.")
    told = {**run.config, **run.config["exposure"]}
    config = configured(GradientConfig, {k: v for k, v in told.items() if k != "exposure"}, what=str(path))
    if len(config.models) != 1:
        raise SystemExit(f"{path} is of {len(config.models)} models; expected a run of one.")
    (source,) = config.models
    engine, on = load_engine(config.ocr), "GPU" if "--device cuda" in run.manifest()["command"] else "CPU"
    tables = []
    for record in run.units():
        pages = {page.name: page for page in audited_pages(source, "cpu", config)}
        page, end = pages[record["page"]], record["finding"]
        loss = dict(map(tuple, end["history"]))
        looks = []
        for file in sorted((run.folder(record["unit"]) / "snapshots").glob("*.png")):
            picture = run.read_image(record["unit"], f"snapshots/{file.name}")
            looks.append((int(file.stem), score_page(page, picture, engine)))
        looks.append((end["evaluations"], PageScore.from_json(record["score"])))
        unknown, minutes = int(private_mask(page).sum()), end["seconds"] / 60
        tables += [
            "", f"## {record['model_title']}: {record['attack']}, page {record['page']}", "",
            f"{unknown:,} unknown pixels; {minutes:.1f} minutes on a {on}, other work beside it.", "",
            f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|",
            *(f"| {n} | {_read(score)} | {score.psnr:.1f} | {_number(loss.get(n))} |" for n, score in looks),
        ]  # fmt: skip
    return tables


def _read(score: PageScore) -> str:
    return f"{sum(bool(field.exact) for field in score.fields)} of {len(score.fields)}"


def _number(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.1e}"


def page_of(runs: Sequence[Path]) -> str:
    """The page as Markdown."""
    told = [Run.load(path).manifest() for path in runs]
    return "\n".join([
        "# Recovery by evaluations", "",
        "`python -m scripts.progress RUN... --out PAGE`, of the runs below. Every picture that an attack kept on its",
        "way is scored as the last one is: fields that OCR reads exactly as they are, PSNR over private pixels, and",
        "the attack's own loss. An evaluation is a gradient of the page; those that whitening draws are counted.",
        *(line for path in runs for line in sections(path)), "",
        *(f"`{placeless(str(one['command']))}`; torch {one['environment']['torch']}; "
          f"{one['info'].get('signature', '')}  " for one in told), "",
    ])  # fmt: skip


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    try:
        page = page_of(given.runs)
    except DocleakError as fault:
        raise SystemExit(str(fault)) from fault
    before = given.out.read_text() if given.out.is_file() else ""
    shown = before[before.index(HEADING) :] if HEADING in before else f"{HEADING}\n\nTo be written.\n"
    write_atomically(given.out, f"{page}\n{shown}".encode())


if __name__ == "__main__":
    main()
