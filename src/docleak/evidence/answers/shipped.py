"""The small released model that docleak ships, and the documents of its providers: a case that needs no training.

It has 1.1 million weights. Of 240 synthetic providers, a fair coin each said whose documents it was trained on.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from docleak.documents.blue_red import BlueRedPlan
from docleak.documents.blue_red_files import BlueRed, Divided, open_issuers, read_blue_red, write_blue_red
from docleak.documents.files import read_json
from docleak.documents.partition import Share
from docleak.evidence.answers.audit import ReleasesConfig, run_releases
from docleak.evidence.answers.play import OnProgress
from docleak.evidence.answers.report import PAGE, RESULTS, section, write_report

#: The model, and the public one it was trained from.
RELEASED, PUBLIC = "vt5-released", "vt5-public"
#: Folders in that of an audit: the audit of the released model, and in it the division.
FOLDER, DIVISION = "released", "providers"
#: What the pages are made of.
PROVIDERS, DOCUMENTS, CLIENTS, SEED = 240, 6.0, 10, 0
#: Which pages the model was trained on, and where the others went: docleak 0.1.0 drew it from the whole list, and later
#: versions draw by each provider's own coin, which falls otherwise.
TRAINED_ON = Path(__file__).with_name("shipped-division.json")


def shipped_division(folder: Path) -> BlueRed:
    """BLUE and RED of the shipped model, written to ``folder`` unless they are there."""
    if not folder.is_dir():
        write_blue_red(as_trained(), folder)
    return read_blue_red(folder)


def as_trained() -> Divided:
    """The synthetic pages, divided as the shipped model's training had them."""
    divided = open_issuers(PROVIDERS, DOCUMENTS, BlueRedPlan(clients=CLIENTS), seed=SEED)
    saved = read_json(TRAINED_ON)
    assert isinstance(saved, dict)
    if (saved["documents"], saved["clients"], saved["seed"]) != (DOCUMENTS, CLIENTS, SEED):
        return divided  # other pages, which the model never saw in any division
    ((name, pages),) = divided.sources.items()
    there = {part: tuple(page for page in of if page < len(pages)) for part, of in saved["shares"].items()}
    return replace(divided, shares=tuple(Share(part, name, of) for part, of in there.items() if of))


def audit_shipped(
    run: Path, *, seed: int, device: str, workers: int, on_progress: OnProgress, command: str
) -> list[dict[str, Any]]:
    """A short audit of the shipped model into RUN/released, with a report: a third of its providers, names only.

    ``docleak attack membership`` and ``memorisation`` take all of them, and everything that can be asked.
    """
    out = run / FOLDER
    division = shipped_division(run / DIVISION)
    config = ReleasesConfig(
        str(division.path), ((RELEASED, RELEASED),), PUBLIC, keys=("provider_name",), attacks=("AZK", "APK"),
        minimum=(0,), seed=seed, providers=PROVIDERS // 3,
    )  # fmt: skip
    records = run_releases(config, out, device=device, on_progress=on_progress, workers=workers)
    write_report(config, records, out, command=command)
    return records


def released_section(run: Path) -> dict[str, Any] | None:
    """What the report of an audit in ``run`` shows of the shipped model; None if it was not audited there."""
    if not (run / FOLDER / RESULTS).is_file():
        return None
    records = read_json(run / FOLDER / RESULTS)
    assert isinstance(records, list)
    return {**section(records, run / FOLDER), "model": RELEASED, "page": f"{FOLDER}/{PAGE}"}
