"""Write the silos of a federation to folders, one for each operator, with a manifest of what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from docleak.documents.files import describe_folder, read_json, require_new
from docleak.documents.folder import save
from docleak.documents.page import Page
from docleak.documents.partition import Share
from docleak.errors import DocumentError
from docleak.files import drafted_folder, shaped

MANIFEST = "silo.json"


@dataclass(frozen=True)
class Silo:
    """The manifest of one silo: what its folder holds and how it came about.

    ``providers`` are those of its pages, sorted, and empty where they are unknown; ``cut`` counts the pages with notes,
    which do not show all of their document. ``source`` is the format the pages were read from (no path, which would be
    another machine's), ``clients`` the size of the federation, ``by`` what was divided, ``seed`` that of the partition.
    """

    name: str
    source: str
    documents: int
    pages: int
    questions: int
    providers: tuple[str, ...]
    cut: int
    by: str
    clients: int
    seed: int


def read_silo(directory: Path) -> Silo:
    """The manifest of a silo's folder; raises DocumentError if there is none or it is not one."""
    path = directory / MANIFEST
    if not path.is_file():
        raise DocumentError(
            f"{directory} {describe_folder(directory)}; expected {MANIFEST} beside pages.jsonl. Make silos with "
            "`docleak data make OUT --partition K`."
        )
    return shaped(Silo, read_json(path), DocumentError, f"{path}", "Make the silo again.")


def write_silos(
    shares: Sequence[Share],
    sources: Mapping[str, Sequence[Page]],
    out: Path,
    *,
    by: str,
    seed: int,
    on_page: Callable[[int, int, str], None] | None = None,
) -> tuple[Silo, ...]:
    """Write each share of the ``sources`` as a folder of pages below ``out``; ``out`` appears complete or not at all.

    A folder is named after its silo and is what ``docleak.documents.load_pages`` reads, with a manifest beside the
    pages. Pages are made and written one at a time; ``on_page`` is told how many of all are done. Raises DocumentError
    if ``out`` exists and is not empty.
    """
    require_new(out, "silos")
    total = sum(len(share.pages) for share in shares)
    silos: list[Silo] = []
    with drafted_folder(out) as draft:
        for share in shares:
            tally = _Tally()
            pages = tally.watch(sources[share.data_set], share.pages)
            save(_told(pages, on_page, sum(silo.pages for silo in silos), total, share.name), draft / share.name)
            silo = tally.silo(share, by=by, clients=len(shares), seed=seed)
            text = json.dumps(asdict(silo), indent=2, ensure_ascii=False)
            (draft / share.name / MANIFEST).write_bytes(f"{text}\n".encode())
            silos.append(silo)
    return tuple(silos)


def _told(
    pages: Iterable[Page], on_page: Callable[[int, int, str], None] | None, done: int, total: int, silo: str
) -> Iterator[Page]:
    """The pages; ``on_page`` is told of each after it was used."""
    for number, page in enumerate(pages, start=done + 1):
        yield page
        if on_page:
            on_page(number, total, silo)


class _Tally:
    """Counts what the pages of a silo hold while they pass by."""

    def __init__(self) -> None:
        self.pages = self.questions = self.cut = 0
        self.documents: set[str] = set()
        self.providers: set[str] = set()

    def watch(self, source: Sequence[Page], numbers: Sequence[int]) -> Iterator[Page]:
        """The pages with these numbers."""
        for number in numbers:
            page = source[number]
            self.pages += 1
            self.questions += len(page.questions)
            self.cut += bool(page.notes)
            self.documents.add(page.document or f"page {number} of unknown document")
            self.providers.add(page.provider)
            yield page

    def silo(self, share: Share, *, by: str, clients: int, seed: int) -> Silo:
        """The manifest of the pages that passed."""
        return Silo(
            name=share.name,
            source=share.data_set,
            documents=len(self.documents),
            pages=self.pages,
            questions=self.questions,
            providers=tuple(sorted(self.providers - {""})),
            cut=self.cut,
            by=by,
            clients=clients,
            seed=seed,
        )
