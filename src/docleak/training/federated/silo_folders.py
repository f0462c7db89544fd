"""Find the silos of an embedded federation, or make synthetic ones."""

from __future__ import annotations

from pathlib import Path

from docleak.documents.division import divide
from docleak.documents.files import describe_folder
from docleak.documents.silos import MANIFEST, write_silos
from docleak.errors import FederationError
from docleak.files import TEMPORARY

#: What a silo's folder holds.
PAGES = "pages.jsonl"


def is_silo(folder: Path) -> bool:
    """Whether it holds the pages of a silo."""
    return any((folder / name).is_file() for name in (PAGES, MANIFEST))


def find_silos(directory: Path) -> dict[str, Path]:
    """The silos below a folder, by the names of their own folders; FederationError if there are none, or if another
    folder stands beside them that is neither hidden nor a run."""
    there = sorted(directory.iterdir()) if directory.is_dir() else ()
    folders = [item for item in there if item.is_dir() and not item.name.startswith(TEMPORARY)]
    silos = {item.name: item for item in folders if is_silo(item)}
    if not silos:
        raise FederationError(
            f"{directory} {describe_folder(directory)}; expected a folder of silos, each with its {PAGES}. Make them "
            "with: docleak data make OUT --partition K"
        )
    for item in folders:
        if item.name not in silos and not item.name.startswith(".") and not (item / "run.json").is_file():
            raise FederationError(
                f"{item} {describe_folder(item)}; expected {PAGES} in it, as in each folder of silos in {directory}. "
                "Put the silo's pages there (docs/data-format.md), or move the folder elsewhere."
            )
    return silos


def synthetic_silos(out: Path, count: int, documents: int, *, seed: int) -> dict[str, Path]:
    """``count`` silos of synthetic invoices with providers of their own, made in ``out`` unless they are there."""
    if not out.exists():
        division = divide(["synthetic"], count, by="providers", seed=seed, count=documents)
        write_silos(division.shares, division.sources, out, by="providers", seed=seed)
    return find_silos(out)


def one_silo(spec: str, count: int, out: Path, *, seed: int) -> dict[str, Path]:
    """All pages of a data set as one silo, written to ``out`` unless it is there; a folder stays where it is."""
    if not out.exists():
        if Path(spec).is_dir() and (Path(spec) / PAGES).is_file():
            return {Path(spec).name: Path(spec)}
        division = divide([spec], 1, by="documents", seed=seed, count=count or None)
        write_silos(division.shares, division.sources, out, by="documents", seed=seed)
    return find_silos(out)
