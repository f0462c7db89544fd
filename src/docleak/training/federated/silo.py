"""Silos' folders, found or made, and opened: pages that one trains on and those that it keeps. Without PyTorch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from docleak.documents.division import Division, divide
from docleak.documents.files import IMAGE_SUFFIXES, describe_folder
from docleak.documents.folder import INDEX
from docleak.documents.loaders import load_pages
from docleak.documents.page import Page
from docleak.documents.pages import document_names, page_names, picked
from docleak.documents.silos import MANIFEST, read_silo, write_silos
from docleak.errors import FederationError
from docleak.files import TEMPORARY, read_json_object, reported, write_json
from docleak.privacy.mechanism import Unit
from docleak.runs.identity import sources_of
from docleak.spec import counted_words
from docleak.training.federated.federation import Federation
from docleak.training.private.units import check_owners, unit_names, units_of


@dataclass(frozen=True)
class Party:
    """One silo with its pages: those it trains on, and those it keeps to evaluate on.

    ``source`` names the data set that its pages come from. ``notes`` are for whoever runs the silo.
    """

    name: str
    source: str
    training: Sequence[Page]
    kept: Sequence[Page]
    notes: tuple[str, ...] = ()


def open_party(directory: Path, federation: Federation, *, name: str = "") -> Party:
    """A silo's folder as ``docleak data make --partition`` writes it, or any folder that docleak reads as pages.

    Raises DocumentError for a folder that cannot be read, FederationError for one without pages, or of which all are
    kept. Under a privacy plan such a silo takes part all the same: that it has nothing is nobody's business; there
    PrivacyError is raised for pages that name no unit of the plan.
    """
    silo = read_silo(directory) if (directory / MANIFEST).is_file() else None
    called = name or (silo.name if silo else directory.name)
    private = federation.privacy is not None
    index = directory / INDEX
    none = private and index.is_file() and not index.read_bytes().strip()  # it is there, and names no page
    pages: Sequence[Page] = () if none else load_pages(f"folder:{directory}", seed=0)
    kept = [federation.keeps(apart) if apart else False for apart in _apart(pages, federation)]
    if all(kept) and not private:
        raise FederationError(
            f"{directory} keeps all of its {counted_words(len(pages), 'page')} to evaluate on. Each document is kept "
            f"by a coin of its own with probability {federation.holdout}: give the silo more, or a smaller holdout."
        )
    training, held = (picked(pages, [i for i, one in enumerate(kept) if one == which]) for which in (False, True))
    if federation.privacy is not None:
        units_of(training, federation.privacy.mechanism.unit, client=called)  # before a round is charged for it
    return Party(called, silo.source if silo else "folder", training, held, tuple(getattr(pages, "notes", ())))


def contents_digest(directory: Path) -> str:
    """Hexadecimal digits over the index of a silo's folder, and the names and sizes of its pictures, which are not
    read: there may be 100,000. "" where there is no index to be read."""
    try:
        digest = hashlib.sha256((directory / INDEX).read_bytes())
        for file in sorted(file for file in directory.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES):
            name = file.relative_to(directory).as_posix()
            digest.update(f"{name}\0{file.stat().st_size}\n".encode("utf-8", "surrogateescape"))
    except OSError:  # the meeting refuses this silo, by its name
        return ""
    return digest.hexdigest()[:10]


def private_units(silos: Mapping[str, Path], federation: Federation) -> int:
    """How many units the federation's privacy plan covers, over all silos' folders, without reading a picture.

    Only where one process has all silos: what a silo holds is its own. PrivacyError for a unit in two silos.
    """
    assert federation.privacy is not None
    unit = federation.privacy.mechanism.unit
    if unit is Unit.CLIENT:
        return len(silos)
    owned: dict[str, set[str]] = {}
    for name, path in silos.items():
        party = open_party(path, federation, name=name)
        owned[name] = {*unit_names(party.training, unit), *unit_names(party.kept, unit)} - {""}
    check_owners(owned, unit)
    return sum(len(names) for names in owned.values())


def _apart(pages: Sequence[Page], federation: Federation) -> Sequence[str]:
    """By what each page is kept or trained on: its document (or own name), or what a plan protects, "" if unknown."""
    if federation.privacy is not None and federation.privacy.mechanism.unit is not Unit.CLIENT:
        return unit_names(pages, federation.privacy.mechanism.unit)
    return [document or name for document, name in zip(document_names(pages), page_names(pages), strict=True)]


def is_silo(folder: Path) -> bool:
    """Whether it holds the pages of a silo."""
    return any((folder / name).is_file() for name in (INDEX, MANIFEST))


def find_silos(directory: Path) -> dict[str, Path]:
    """The silos below a folder, by the names of their own folders; FederationError if there are none, or if another
    folder stands beside them that is neither hidden nor a run."""
    there = sorted(directory.iterdir()) if directory.is_dir() else ()
    folders = [item for item in there if item.is_dir() and not item.name.startswith(TEMPORARY)]
    silos = {item.name: item for item in folders if is_silo(item)}
    if not silos:
        raise FederationError(
            f"{directory} {describe_folder(directory)}; expected a folder of silos, each with its {INDEX}. Make them "
            "with: docleak data make OUT --partition K"
        )
    for item in folders:
        if item.name not in silos and not item.name.startswith(".") and not (item / "run.json").is_file():
            raise FederationError(
                f"{item} {describe_folder(item)}; expected {INDEX} in it, as in each folder of silos in {directory}. "
                "Put the silo's pages there (docs/data-format.md), or move the folder elsewhere."
            )
    return silos


def synthetic_silos(out: Path, count: int, documents: int, *, seed: int) -> dict[str, Path]:
    """``count`` silos of synthetic invoices with providers of their own, made in ``out`` unless they are there."""
    of = {"clients": count, "documents": documents, "seed": seed}
    return _made(out, of, lambda: synthetic_division(count, documents, seed=seed), by="providers", seed=seed)


def synthetic_division(count: int, documents: int, *, seed: int) -> Division:
    """The invoices of ``synthetic_silos``, none of them written; DocumentError for fewer providers than silos."""
    return divide(["synthetic"], count, by="providers", seed=seed, count=documents)


def one_silo(spec: str, count: int, out: Path, *, seed: int) -> dict[str, Path]:
    """``count`` pages of a data set at most (0: all) as one silo, written to ``out`` unless it is there; a folder that
    has no more stays where it is."""
    index = Path(spec) / INDEX
    if index.is_file() and not 0 < count < sum(bool(line.strip()) for line in index.read_bytes().splitlines()):
        return {Path(spec).name: Path(spec)}
    named = sources_of({"documents": spec}, apart_from=out.parent, pictures=False)  # none of what is made
    of = {"documents": spec, "pages": count, "seed": seed, **({"contents": named[spec]} if named else {})}
    divided = partial(divide, [spec], 1, by="documents", seed=seed, count=count or None)
    return _made(out, of, divided, by="documents", seed=seed)


def _made(
    out: Path, of: Mapping[str, object], divided: Callable[[], Division], *, by: str, seed: int
) -> dict[str, Path]:
    """The silos that are in ``out``, or made there ``of`` what a file beside it says; FederationError where they are of
    something else. The file is written first, so that no silos that were made here are without it."""
    record = out.with_name(f"{out.name}.json")
    if out.exists():
        advice = f"Pass another out, or delete {'both' if record.is_file() else 'it'}."
        told = ", ".join(f"{name} {value}" for name, value in of.items())
        if not record.is_file():
            raise FederationError(
                f"{out} is there, and no {record.name} beside it says what it was made of; expected {told}. {advice}"
            )
        there = read_json_object(record, error=FederationError, advice=advice)
        if there != of:
            made_of = ", ".join(f"{name} {value}" for name, value in there.items())
            raise FederationError(
                f"{out} was made of {made_of}, as {record.name} beside it says; expected {told}. {advice}"
            )
    else:
        division = divided()
        with reported(record):
            write_json(record, of)
        write_silos(division.shares, division.sources, out, by=by, seed=seed)
    return find_silos(out)
