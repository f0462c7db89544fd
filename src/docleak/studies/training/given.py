"""What Python gives a training to learn from: silos by number, folder or name, or pages."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path

from docleak.documents import Page, load_pages
from docleak.documents.folder import load, save
from docleak.documents.loaders import SYNTHETIC, page_source, page_specs
from docleak.documents.ranges import PATH, SOME, check_kind, check_whole, short
from docleak.errors import FederationError, RunError
from docleak.studies.given import AnyPath, Pages, checked_pages
from docleak.studies.identity import data_hash
from docleak.training.federated.silo_folders import find_silos, is_silo, one_silo, synthetic_silos

EXPECTED = "how many to make, a folder of them, or a mapping of their names to folders or pages"


def silos_of(
    silos: int | AnyPath | Mapping[str, Pages] | None, pages: Pages | None, documents: int | None, made: Path, *,
    seed: int,
) -> Callable[[], Mapping[str, Path]]:  # fmt: skip
    """Finds or makes the silos' folders, new ones in ``made``, once the run is open."""
    if documents is not None:
        documents = check_whole("documents", documents, SOME, FederationError)
        if not isinstance(silos, Integral | None) or pages not in (None, SYNTHETIC):
            raise FederationError(f"documents={documents} is how many to make, and pages are given. Leave it out.")
    number = 240 if documents is None else documents
    if isinstance(silos, Mapping):
        if not silos:
            raise FederationError(f"silos is an empty mapping; expected {EXPECTED}.")
        folders = {name: _silo(name, held, made, seed=seed) for name, held in silos.items()}
        return lambda: {name: written() for name, written in folders.items()}
    if isinstance(silos, str | os.PathLike):
        return lambda: find_silos(Path(silos).expanduser())
    if silos is not None:
        check_kind("silos", silos, Integral | PATH, EXPECTED, FederationError)
        check_whole("silos", silos, SOME, FederationError)
    if pages is None:
        return lambda: synthetic_silos(made, 3 if silos is None else int(silos), number, seed=seed)
    if isinstance(pages, str | os.PathLike):
        count = number if pages == SYNTHETIC else 0
        return lambda: one_silo(os.fspath(pages), count, made, seed=seed)
    given = checked_pages(pages)
    return lambda: {"pages": _written(given, made / "pages")}


def _silo(name: str, held: Pages, made: Path, *, seed: int) -> Callable[[], Path]:
    """Finds or makes the folder of one silo; what it holds is looked at here."""
    if not isinstance(name, str) or name == ".." or Path(name).name != name:
        raise FederationError(f"a silo is called {short(name)}; expected a name, which is no path.")
    if not isinstance(held, str | os.PathLike):
        return partial(_written, checked_pages(held), made / name)
    text = os.fspath(held)
    if is_silo(folder := Path(text).expanduser()):
        return lambda: folder
    for part in page_specs(text):
        if part == SYNTHETIC:
            raise FederationError(
                f"silo {name!r} is {SYNTHETIC!r}; expected its folder, FORMAT:PATH or pages. Synthetic silos are made "
                "by their number: silos=3."
            )
        page_source(part)  # refuses what is not there
    return lambda: _written(load_pages(text, seed=seed), made / name)


def _written(pages: Sequence[Page], folder: Path) -> Path:
    """The folder with the pages written to it; RunError where others are there."""
    if not folder.exists():
        return save(pages, folder)
    if data_hash(load(folder)) != data_hash(pages):
        raise RunError(f"{folder} holds other pages than those given now. Pass another out, or delete the directory.")
    return folder
