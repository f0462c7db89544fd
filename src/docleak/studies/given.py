"""What Python gives a study or a training: models and pages as objects, settings as keywords; silos by number, folder,
name or pages.

An object goes by a name with a hash of what it holds, which brings the object along.
A configuration keeps that name (``registry.Given``): it travels to worker processes with its object, ``load_model``
and ``load_pages`` take it, and a run that was begun with other weights or pages has another name in its configuration.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from docleak import spec
from docleak.documents.folder import load, save
from docleak.documents.loaders import SYNTHETIC, load_pages, page_source, page_specs
from docleak.documents.names import one_spelling
from docleak.documents.page import Page
from docleak.documents.ranges import PATH, SOME, check_kind, check_path, check_whole, short
from docleak.documents.scale import unit_boxes
from docleak.documents.typed import typed
from docleak.errors import DocleakError, DocumentError, FederationError, ModelError, RunError
from docleak.models import DocumentModel, trainable
from docleak.models.base import require_auditable
from docleak.registry import Given
from docleak.runs.content import describe
from docleak.spec import counted_words
from docleak.studies.identity import data_hash, weights_hash
from docleak.training.federated.silo import find_silos, is_silo, one_silo, synthetic_silos

T = TypeVar("T")
AnyPath: TypeAlias = str | os.PathLike[str]
#: A shipped name, a directory, a hub name, or an object such as load_model returns.
Model: TypeAlias = AnyPath | DocumentModel
#: "synthetic", a folder, FORMAT:PATH, or the pages themselves.
Pages: TypeAlias = AnyPath | Sequence[Page]
PAGES = "docleak.Page objects, a folder, FORMAT:PATH or 'synthetic'"
#: Settings that name documents, and take pages, too.
DOCUMENTS = ("documents", "public_documents", "members", "non_members")
#: Kinds of studies that read documents of their own -> what is given instead of pages.
INSTEAD = {
    "answers": "Give members and non_members, each of them pages or a data set.",
    "pairs": "Give pairs, which names a data set of pictures and texts.",
    "training": "Give them to docleak.train.",
    "trainings": "Give documents, the names of data sets (a folder, FORMAT:PATH or 'synthetic').",
}
#: What silos are given as.
SILOS = "how many to make, a folder of them, or a mapping of their names to folders or pages"
#: Members of DocumentModel that every study uses.
NEEDED = ("architecture", "name", "module", "image_size", "drawn", "fit", "encode", "loss", "stage")


def given_model(model: Model) -> str:
    """A name or directory as it is; a model by a name, with a copy of it as it is now.

    The hash is of all weights, which of them are trained, and the adapter's own fields and code. ModelError for what
    is no DocumentModel, or none that can be audited.
    """
    if isinstance(model, str | os.PathLike):
        return model if isinstance(model, str) else os.fspath(model)
    if missing := [name for name in NEEDED if not hasattr(model, name)]:
        raise ModelError(
            f"the model is a {type(model).__name__} without {', '.join(missing)}; expected a name, a directory, "
            "or what docleak.load_model returns. Save a network of transformers by save_pretrained; give the directory."
        )
    require_auditable(model)
    copy = deepcopy(model)
    copy.module.to("cpu")
    names = sorted(name for name, _ in trainable(copy.module))
    told = json.dumps([weights_hash(copy), copy.image_size, names, describe(copy, networks=False)], default=str)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", copy.name) or "model"
    return Given.of(f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:10]}", copy)


def given_pages(pages: Pages) -> str:
    """ "synthetic", a folder or FORMAT:PATH as it is; pages by a name, with themselves, each provider in one spelling.

    DocumentError for what are no pages, or none at all, and for boxes that are shares of the page.
    """
    if isinstance(pages, str | os.PathLike):
        return pages if isinstance(pages, str) else os.fspath(pages)
    spelled = checked_pages(pages)
    return Given.of(f"{counted_words(len(spelled), 'page')} given ({data_hash(spelled)})", tuple(spelled))


def checked_pages(pages: Sequence[Page]) -> list[Page]:
    """Pages as objects, each provider in one spelling; DocumentError as of ``given_pages``."""
    if not isinstance(pages, Iterable):
        raise DocumentError(f"the pages are of the type {type(pages).__name__}; expected {PAGES}.")
    items = cast("list[object]", list(pages))
    wrong = sorted({type(item).__name__ for item in items if not isinstance(item, Page)})
    if wrong or not items:
        raise DocumentError(f"the pages are {'of ' + ', '.join(wrong) if wrong else 'none'}; expected {PAGES}.")
    spelled = list(one_spelling(cast("list[Page]", items)))
    for page in spelled:
        if faults := unit_boxes(page.words, (page.width, page.height)):
            raise DocumentError(f"page {page.name!r}: {faults[0]}.")
    return spelled


def with_pages(kind: str, config: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, ``pages`` by the name that the configuration of the study ``kind`` has for them, and pages wherever
    it names documents by what ``given_pages`` makes of them; DocumentError where it takes none."""
    told, default = dict(values), {field.name: field.default for field in fields(config)}
    if "pages" in told:
        if "documents" not in settings_of(config) or isinstance(default.get("documents"), tuple):
            raise DocumentError(f"the study {kind!r} takes no pages. {INSTEAD.get(kind, 'Leave them out.')}")
        told["documents"] = given_pages(told.pop("pages"))
    for name in told.keys() & set(DOCUMENTS):
        value = told[name]
        if isinstance(value, Sequence) and any(isinstance(item, Page) for item in value):
            if isinstance(default.get(name), tuple):
                raise DocumentError(f"{name} holds pages. {INSTEAD.get(kind, 'Give names of data sets.')}")
            told[name] = given_pages(value)
    return told


def settings_of(kind: type) -> tuple[str, ...]:
    """The names of a configuration's fields, and of those of dataclasses that are their defaults."""
    return tuple(name for field in fields(kind) for name in (field.name, *_inside(field)))


def configured(kind: type[T], values: Mapping[str, Any], *, what: str) -> T:
    """The dataclass ``kind`` with ``values`` by the names of ``settings_of``; lists become tuples, paths texts.

    DocleakError for a name that is none of them, or of two, a value that is not as its field says, and a field that
    lacks its own.
    """
    by_name = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    homes: dict[str, str] = {}
    for home, name in ((field.name, name) for field in by_name.values() for name in _inside(field)):
        if name in values and name in homes and name not in by_name:
            raise DocleakError(
                f"{what}: {name} is a setting of {homes[name]} and of {home}. Give the whole of the one that is meant: "
                f"{homes[name]}=... or {home}=..."
            )
        homes[name] = home
    if unknown := [name for name in values if name not in by_name and name not in homes]:
        raise DocleakError(f"{what}: {spec.unknown('setting', unknown[0], [*by_name, *homes])}")
    made = typed(kind, {name: value for name, value in values.items() if name in by_name}, what=what)
    for home in dict.fromkeys(homes[name] for name in values if name not in by_name):
        within = made.get(home, _default(by_name[home]))
        changes = {name: value for name, value in values.items() if name not in by_name and homes[name] == home}
        made[home] = replace(within, **typed(type(within), changes, what=what))
    required = [name for name, field in by_name.items() if field.default is field.default_factory is MISSING]
    if lacking := [name for name in required if name not in made]:
        raise DocleakError(f"{what} needs {', '.join(lacking)}. Give a value for each by its name.")
    return kind(**made)


def _inside(field: Any) -> tuple[str, ...]:
    """Names of the settings within a field whose default is a dataclass."""
    default = _default(field)
    return tuple(part.name for part in fields(default)) if is_dataclass(default) else ()


def _default(field: Any) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


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
            raise FederationError(f"silos is an empty mapping; expected {SILOS}.")
        folders = {name: _silo(name, held, made, seed=seed) for name, held in silos.items()}
        return lambda: {name: written() for name, written in folders.items()}
    if isinstance(silos, str | os.PathLike):
        check_path("silos", silos, SILOS, FederationError)
        return lambda: find_silos(Path(silos).expanduser())
    if silos is not None:
        check_kind("silos", silos, Integral | PATH, SILOS, FederationError)
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
