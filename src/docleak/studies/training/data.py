"""The documents of a training on disk: a folder per silo, and the test and validation pages of each data set.

DATA/3f9c2a1b/data.json                what was divided, how, and in sentences which pages are the test's
DATA/3f9c2a1b/test/wtq/                pages that no training sees, the same for every row
DATA/3f9c2a1b/validation/wtq/          pages of which learning curves are made, if any
DATA/3f9c2a1b/silos-10/wtq-0/          what each of 10 clients trains on
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from docleak.documents.loaders import SYNTHETIC, load_pages, source_names
from docleak.documents.page import Page
from docleak.documents.pages import document_names, joined
from docleak.documents.partition import Share, split_by_coin, split_documents
from docleak.documents.silos import MANIFEST, write_silos
from docleak.documents.splits import Parts, open_parts
from docleak.errors import RecipeError
from docleak.files import read_json_object, reported, write_json
from docleak.privacy.mechanism import Unit, choice
from docleak.studies.training.config import TrainingConfig
from docleak.training.private.units import unit_names

#: Keeps the stream of who gets which documents apart from others of the same seed.
DIVIDING = 12
CENTRAL, DIVISION = "central", "data.json"


@dataclass(frozen=True)
class Places:
    """Folders of pages: the silos by name, and test and validation pages by data set; where the latter come from, in
    sentences."""

    silos: Mapping[str, Path]
    test: Mapping[str, Path]
    validation: Mapping[str, Path]
    said: tuple[str, ...] = ()


def folder_of(config: TrainingConfig, out: Path) -> Path:
    """Where the documents of a config are; the same for configs that differ in the number of clients only."""
    text = json.dumps(_division(config), sort_keys=True)
    return out / hashlib.sha256(text.encode()).hexdigest()[:8]


def divided(config: TrainingConfig, out: Path) -> Places:
    """What ``divide`` made below ``out``; RecipeError where it does not say whose pages the test's are."""
    folder = folder_of(config, out)
    silos, test, validation = (_below(folder / part) for part in (f"silos-{config.clients}", "test", "validation"))
    advice = "Delete the folder, and its documents are divided anew."
    division = read_json_object(folder / DIVISION, error=RecipeError, advice=advice) if test else {"said": ()}
    if "said" not in division:
        raise RecipeError(
            f"{folder} holds documents that an older docleak divided: its test and validation pages were held out of "
            "the pages to train on, also of data sets that have splits, and data.json says nothing of it. Pages of "
            "this docleak's silos may be among them. Give another folder (out), and all rows train on one division; or "
            "delete the table's folder."
        )
    return Places(silos, test, validation, tuple(division.get("said", ())))


def divide(config: TrainingConfig, out: Path) -> Places:
    """Divide the documents below ``out``, unless that is done: test and validation first, then the silos.

    Test and validation pages are the splits of data sets that have some (``documents.splits``), else held out.
    Each part appears complete or not at all. DocumentError and RecipeError for data sets that cannot be read, or have
    too few documents.
    """
    folder = folder_of(config, out)
    wanted = [f"silos-{config.clients}", "test", *["validation"] * (config.validation_share > 0)]
    places = divided(config, out)
    if all((folder / part).is_dir() for part in wanted):
        return places
    _write_parts(config, folder)
    return divided(config, out)


def require_all_pages(config: TrainingConfig) -> None:
    """RecipeError where an epsilon would be claimed of some pages of a list."""
    if config.epsilon and config.pages and set(config.documents) != {SYNTHETIC}:
        raise RecipeError(
            f"pages is {config.pages}, the first ones of a list, which an epsilon does not cover; expected 0, all of "
            "them: --pages 0, or docleak.reproduce(NAME, documents=[...], pages=0)."
        )


def _write_parts(config: TrainingConfig, folder: Path) -> None:
    require_all_pages(config)
    names = source_names(config.documents)
    parts = {name: _opened(config, number, name) for number, name in enumerate(names)}
    said = [sentence for name in names for sentence in parts[name].said]
    tests = {name: parts[name].test for name in names}
    if config.test_documents:
        opened = (load_pages(spec, count=config.pages or None, seed=config.seed) for spec in config.test_documents)
        tests = dict(zip(names, opened, strict=True))
        said += [f"{name}: the test pages are those of {spec}, as asked for ({len(tests[name])} pages)."
                 for name, spec in zip(names, config.test_documents, strict=True)]  # fmt: skip
    with reported(folder):
        write_json(folder / DIVISION, {**_division(config), "said": said})
    _write(tests, folder / "test", config.seed)
    if config.validation_share:
        _write({name: parts[name].validation for name in names}, folder / "validation", config.seed)
    out = folder / f"silos-{config.clients}"
    if not out.exists():
        shares, left = _shares(config, {name: parts[name].train for name in names})
        write_silos(shares, left, out, by="documents", seed=config.seed)


def _opened(config: TrainingConfig, number: int, name: str) -> Parts:
    """A data set; those made on the spot each with a seed of its own, since the same one twice were no two sets."""
    return open_parts(
        config.documents[number], test=0.0 if config.test_documents else config.test_share,
        validation=config.validation_share, seed=config.seed, seed_of_pages=config.seed + number, name=name,
        count=config.pages or None, units=partial(unit_names, unit=_unit(config)) if config.epsilon else None,
    )  # fmt: skip


def _shares(
    config: TrainingConfig, left: Mapping[str, Sequence[Page]]
) -> tuple[tuple[Share, ...], Mapping[str, Sequence[Page]]]:
    """What each client holds of the training pages: of one data set, or, if there is one client only, of all."""
    if config.clients == 1:
        together = joined(tuple(left.values()))
        return (Share(CENTRAL, CENTRAL, tuple(range(len(together)))),), {CENTRAL: together}
    if config.epsilon:
        units = {name: unit_names(pages, _unit(config)) for name, pages in left.items()}
        return split_by_coin(units, config.clients, seed=config.seed), left
    names = {name: document_names(pages) for name, pages in left.items()}
    return split_documents(names, config.clients, rng=np.random.default_rng((config.seed, DIVIDING))), left


def _unit(config: TrainingConfig) -> Unit:
    return choice(Unit, config.unit, what="unit")


def _write(pages: Mapping[str, Sequence[Page]], out: Path, seed: int) -> None:
    if not out.exists():
        shares = [Share(name, name, tuple(range(len(of)))) for name, of in pages.items()]
        write_silos(shares, pages, out, by="documents", seed=seed)


def _division(config: TrainingConfig) -> dict[str, object]:
    names = ("documents", "test_documents", "pages", "test_share", "validation_share", "seed")
    private: dict[str, object] = {"unit": config.unit} if config.epsilon else {}
    return {**{name: getattr(config, name) for name in names}, **private}


def _below(folder: Path) -> dict[str, Path]:
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    return {item.name: item for item in paths if (item / MANIFEST).is_file()}
