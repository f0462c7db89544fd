"""The documents of a training on disk: a folder per silo, and the test and validation pages of each data set.

DATA/3f9c2a1b/data.json                what was divided, and how
DATA/3f9c2a1b/test/wtq/                pages that no training sees, the same for every row
DATA/3f9c2a1b/validation/wtq/          pages of which learning curves are made, if any
DATA/3f9c2a1b/silos-10/wtq-0/          what each of 10 clients trains on
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from docleak.documents.coins import coin
from docleak.documents.division import source_names
from docleak.documents.loaders import load_pages
from docleak.documents.page import Page
from docleak.documents.pages import document_names, joined, picked
from docleak.documents.partition import Share, split_by_coin, split_documents
from docleak.documents.silos import MANIFEST, write_silos
from docleak.errors import RecipeError
from docleak.files import reported, write_json
from docleak.privacy.mechanism import Unit, choice
from docleak.studies.training.config import TrainingConfig
from docleak.training.private.units import unit_names

#: Keep the streams of one seed apart: which documents are kept out, and who gets which of the others.
KEEPING, DIVIDING = 11, 12
CENTRAL = "central"


@dataclass(frozen=True)
class Places:
    """Folders of pages: the silos by name, and test and validation pages by data set."""

    silos: Mapping[str, Path]
    test: Mapping[str, Path]
    validation: Mapping[str, Path]


@dataclass(frozen=True)
class Parts:
    """A data set's page numbers: to train on, to validate on, to test on; a document is in one of them only."""

    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]


def kept_out(documents: Sequence[str], *, test: float, validation: float, rng: np.random.Generator) -> Parts:
    """Draw the documents of the ``test`` and ``validation`` shares, at least one of each share above 0.

    ``documents`` names the document of every page ("" is a document of its own). RecipeError if none is left to train.
    """
    keys = [name or f"page {number}" for number, name in enumerate(documents)]
    order = rng.permutation(sorted(set(keys))).tolist()
    counts = [max(1, round(share * len(order))) if share else 0 for share in (test, validation)]
    if sum(counts) >= len(order):
        raise RecipeError(f"{len(order)} documents are too few to keep {sum(counts)} and train on others; give more.")
    group = {name: 0 if i < counts[0] else 1 if i < sum(counts) else 2 for i, name in enumerate(order)}
    found = [tuple(number for number, key in enumerate(keys) if group[key] == part) for part in range(3)]
    return Parts(train=found[2], validation=found[1], test=found[0])


def kept_by_coin(units: Sequence[str], *, test: float, validation: float, seed: int) -> Parts:
    """The same for a training under an epsilon: each unit by a public coin of its own, so that none moves another.

    ``units`` names the unit of every page. The shares are met on average only, and a part may be empty: refusing that
    would tell of one unit. RecipeError for a page that names no unit.
    """
    if "" in units:
        raise RecipeError(f"{sum(not name for name in units)} of {len(units)} pages name no unit of the epsilon.")
    coins = [coin(seed, "recipe: test, validation, train", name) for name in units]
    group = [0 if drawn < test else 1 if drawn < test + validation else 2 for drawn in coins]
    test_, validation_, train = (tuple(i for i, part in enumerate(group) if part == wanted) for wanted in range(3))
    return Parts(train=train, validation=validation_, test=test_)


def folder_of(config: TrainingConfig, out: Path) -> Path:
    """Where the documents of a config are; the same for configs that differ in the number of clients only."""
    text = json.dumps(_division(config), sort_keys=True)
    return out / hashlib.sha256(text.encode()).hexdigest()[:8]


def divided(config: TrainingConfig, out: Path) -> Places:
    """What ``divide`` made below ``out``."""
    folder = folder_of(config, out)
    return Places(*(_below(folder / part) for part in (f"silos-{config.clients}", "test", "validation")))


def divide(config: TrainingConfig, out: Path) -> Places:
    """Divide the documents below ``out``, unless that is done: test and validation first, then the silos.

    Each part appears complete or not at all. DocumentError and RecipeError for data sets that cannot be read, or have
    too few documents.
    """
    folder = folder_of(config, out)
    wanted = [
        folder / f"silos-{config.clients}",
        folder / "test",
        *[folder / "validation"] * (config.validation_share > 0),
    ]
    if not all(part.is_dir() for part in wanted):
        with reported(folder):
            write_json(folder / "data.json", _division(config))
        _write_parts(config, folder)
    return divided(config, out)


def _write_parts(config: TrainingConfig, folder: Path) -> None:
    names = source_names(config.documents)
    sources = dict(zip(names, (_opened(config, i) for i in range(len(names))), strict=True))
    documents = {name: document_names(pages) for name, pages in sources.items()}
    parts = {name: _parts(config, name, sources[name]) for name in names}
    tests: Mapping[str, Sequence[Page]] = {name: picked(sources[name], parts[name].test) for name in names}
    if config.test_documents:
        opened = (load_pages(spec, count=config.pages or None, seed=config.seed) for spec in config.test_documents)
        tests = dict(zip(names, opened, strict=True))
    _write(tests, folder / "test", config.seed)
    if config.validation_share:
        _write(
            {name: picked(sources[name], parts[name].validation) for name in names}, folder / "validation", config.seed
        )
    out = folder / f"silos-{config.clients}"
    if not out.exists():
        shares, left = _shares(config, sources, documents, parts)
        write_silos(shares, left, out, by="documents", seed=config.seed)


def _parts(config: TrainingConfig, name: str, pages: Sequence[Page]) -> Parts:
    test, validation = 0.0 if config.test_documents else config.test_share, config.validation_share
    if config.epsilon:
        units = unit_names(pages, choice(Unit, config.unit, what="unit"))
        return kept_by_coin(units, test=test, validation=validation, seed=config.seed)
    rng = np.random.default_rng((config.seed, KEEPING, zlib.crc32(name.encode())))
    return kept_out(document_names(pages), test=test, validation=validation, rng=rng)


def _opened(config: TrainingConfig, number: int) -> Sequence[Page]:
    """A data set; those made on the spot each with a seed of its own, since the same one twice were no two sets."""
    if config.epsilon and config.pages and not config.documents[number].startswith("synthetic"):
        raise RecipeError("pages takes the first ones of a list, which an epsilon does not cover; leave it out (0).")
    return load_pages(config.documents[number], count=config.pages or None, seed=config.seed + number)


def _shares(
    config: TrainingConfig,
    sources: Mapping[str, Sequence[Page]],
    documents: Mapping[str, Sequence[str]],
    parts: Mapping[str, Parts],
) -> tuple[tuple[Share, ...], Mapping[str, Sequence[Page]]]:
    """What each client holds of the training pages: of one data set, or, if there is one client only, of all."""
    left = {name: picked(pages, parts[name].train) for name, pages in sources.items()}
    if config.clients == 1:
        together = joined(tuple(left.values()))
        return (Share(CENTRAL, CENTRAL, tuple(range(len(together)))),), {CENTRAL: together}
    if config.epsilon:
        units = {name: unit_names(pages, choice(Unit, config.unit, what="unit")) for name, pages in left.items()}
        return split_by_coin(units, config.clients, seed=config.seed), left
    names = {name: [documents[name][i] for i in parts[name].train] for name in left}
    return split_documents(names, config.clients, rng=np.random.default_rng((config.seed, DIVIDING))), left


def _write(pages: Mapping[str, Sequence[Page]], out: Path, seed: int) -> None:
    if not out.exists():
        shares = [Share(name, name, tuple(range(len(of)))) for name, of in pages.items()]
        write_silos(shares, pages, out, by="documents", seed=seed)


def _division(config: TrainingConfig) -> dict[str, object]:
    names = ("documents", "test_documents", "pages", "test_share", "validation_share", "seed")
    private: dict[str, object] = {"unit": config.unit} if config.epsilon else {}
    return {**{name: getattr(config, name) for name in names}, **private}


def _below(folder: Path) -> dict[str, Path]:
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return {item.name: item for item in found if (item / MANIFEST).is_file()}
