"""Whose pages are whose: the folder of a client's pages, by its name, its partition, or as it is told."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from docleak.documents import Page, load_pages
from docleak.documents.loaders import SYNTHETIC
from docleak.documents.silos import MANIFEST, read_silo
from docleak.errors import DocumentError, FederationError
from docleak.spec import pair
from docleak.training.federated.capture import CapturedUpdate
from docleak.training.federated.federation import Federation
from docleak.training.federated.silo import open_party

#: What Flower apps call the number of a client's part of the data, in configurations and metrics.
PARTITION = ("partition-id", "partition_id", "pid", "cid")


def told_folders(clients: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """Client -> the folder of its pages, of ``--client ID=FOLDER``; "" where it says none: ``--client ID``. An ID with
    "=" in it is one of the ``known``, of which the longest that the text begins with is meant."""
    folders, expected = {}, "ID, or ID=FOLDER with the client's pages"
    for text in clients:
        name = max((one for one in known if f"{text}=".startswith(f"{one}=")), key=len, default="")
        folder = text[len(name) + 1 :].strip()
        if not name and "=" in text:
            name, folder = pair(text, what="--client", expected=expected, error=FederationError)
        elif not name:
            name, folder = text.strip(), ""
        if not name or (text != name and "=" in text and not folder):
            raise FederationError(f"--client is {text!r}; expected {expected}.")
        folders[name] = folder
    return folders


def names_of(update: CapturedUpdate) -> tuple[str, ...]:
    """What the folder of a client's pages may be called: its name, or the number of its part of the data."""
    told = (update.details.get(key) for key in PARTITION)
    numbers = [str(int(one)) for one in told if isinstance(one, int | float | str) and str(one).isdigit()]
    return tuple(dict.fromkeys((update.client, *numbers)))


def pages_of(
    update: CapturedUpdate, documents: str, federation: Federation | None, folders: Mapping[str, str] | None = None
) -> Sequence[Page]:
    """The pages the client trained on: its folder of ``folders``, or below ``documents`` one that is called as
    ``names_of`` says, or else all of ``documents``.

    "synthetic" stands for the folder ``silos`` beside the capture, where docleak train puts made-up pages. What a
    silo of docleak's own keeps to evaluate on is left out. DocumentError where no pages were named, or only folders
    of other clients'.
    """
    if told := (folders or {}).get(update.client):
        return load_pages(told, seed=0)
    beside, synthetic = _beside(update), documents == SYNTHETIC
    folder = _folder_of(update, documents)
    if folder.is_dir() and not (synthetic and folder == beside):
        _require_pages(update, folder)
        if federation is not None:
            return open_party(folder, federation, name=update.client).training
        return load_pages(str(folder), seed=0)
    if synthetic:
        raise DocumentError(
            f"{update.name}: to say what an attack recovered, its pages are needed. Pass --documents with the client's "
            "pages, or a folder that holds a folder of pages for every client, this one's called "
            f"{' or '.join(names_of(update))}, or --client "
            f"{update.client}=FOLDER."
        )
    return load_pages(documents, seed=0)


def kept_of(update: CapturedUpdate, documents: str, federation: Federation | None) -> Sequence[Page]:
    """What a silo of docleak's own keeps to evaluate on, and no round trained on; nothing of others."""
    folder = _folder_of(update, documents)
    if federation is None or not folder.is_dir() or (documents == SYNTHETIC and folder == _beside(update)):
        return ()
    return open_party(folder, federation, name=update.client).kept


def made_up(update: CapturedUpdate, documents: str, folders: Mapping[str, str]) -> bool:
    """Whether the client's pages are nobody's: those of a silo, or for a sum of all silos, that says it of itself."""
    told = folders.get(update.client)
    folder = Path(told.removeprefix("folder:")) if told else _folder_of(update, documents)
    silos = [file.parent for pattern in (MANIFEST, f"*/{MANIFEST}") for file in folder.glob(pattern)]
    return bool(silos) and all(read_silo(silo).source == SYNTHETIC for silo in silos)


def _beside(update: CapturedUpdate) -> Path:
    return update.folder.parent.parent / "silos"


def _folder_of(update: CapturedUpdate, documents: str) -> Path:
    """Where the client's pages are, if they are in a folder: its own one, where there is one called as it is."""
    beside = _beside(update)
    root = beside if documents == SYNTHETIC and beside.is_dir() else Path(documents.removeprefix("folder:"))
    return next((root / name for name in names_of(update) if (root / name).is_dir()), root)


def _require_pages(update: CapturedUpdate, folder: Path) -> None:
    inside = sorted(one.name for one in folder.iterdir() if one.is_dir())
    if not (folder / "pages.jsonl").is_file() and any((folder / name / "pages.jsonl").is_file() for name in inside):
        looked = " or ".join(repr(name) for name in names_of(update))
        raise DocumentError(
            f"{update.name}: {folder} holds folders of pages ({', '.join(inside[:5])}), none of them called {looked}. "
            f"Say which is this client's: --client {update.client}=FOLDER."
        )
