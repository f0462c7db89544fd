"""BLUE and RED on disk: open data sets, divide them or take their own division, write and read the folders.

OUT/blue-red.json        where the pages come from, who is a member, what each part holds
OUT/silos/client-0/      a folder of pages per client, as ``docleak train federated --silos OUT/silos`` takes them
OUT/validation/          other documents of members
OUT/test/                documents of members and of others, to measure what the model is good for
OUT/red-positive/        documents of members that nobody trains on: what an adversary has of them
OUT/red-negative/        documents of the others
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from docleak.documents import pfl_docvqa, vrdu
from docleak.documents.blue_red import (
    RED_NEGATIVE,
    RED_POSITIVE,
    SILOS,
    TEST,
    VALIDATION,
    BlueRedPlan,
    check_blue_red,
    divide_blue_red,
)
from docleak.documents.files import describe_folder, read_json, read_json_lines, require_new
from docleak.documents.issuers import NUMBERS, draw_counts, make_issuers
from docleak.documents.loaders import format_and_path, load_pages, source_names
from docleak.documents.names import one_spelling
from docleak.documents.page import Page, fault_list
from docleak.documents.pages import LazyPages, PageEntry, document_names, grouped, provider_names
from docleak.documents.partition import Share
from docleak.documents.pfl_docvqa import RED_TEST_NEGATIVE, RED_TEST_POSITIVE
from docleak.documents.silos import Silo, write_silos
from docleak.errors import DocumentError
from docleak.files import drafted_folder, write_json
from docleak.spec import counted_words

MANIFEST = "blue-red.json"
#: Synthetic invoices of issuers that no shipped checkpoint has seen.
ISSUERS = "issuers"
#: The part that a split besides the training is.
PART_OF = {"val": VALIDATION, "test": TEST, RED_TEST_POSITIVE: RED_POSITIVE, RED_TEST_NEGATIVE: RED_NEGATIVE}
#: Keeps the stream of the numbers of documents apart from others of the same seed.
COUNTING = 21


@dataclass(frozen=True)
class Divided:
    """Data sets by name, the shares of the parts, and how they came about; ``plan`` is None for a data set's own."""

    sources: Mapping[str, Sequence[Page]]
    shares: tuple[Share, ...]
    plan: BlueRedPlan | None
    seed: int


@dataclass(frozen=True)
class BlueRed:
    """A division on disk. ``coins`` is the probability of each provider's own coin that made it a member; 0 if there
    was none. ``parts`` has the folders besides the silos, of which validation and test may be missing."""

    path: Path
    silos: Mapping[str, Path]
    parts: Mapping[str, Path]
    members: tuple[str, ...]
    outsiders: tuple[str, ...]
    coins: float

    def pages(self, part: str) -> Sequence[Page]:
        """The pages of a part; none where it is missing."""
        return load_pages(f"folder:{self.parts[part]}", seed=0) if part in self.parts else ()


def open_issuers(providers: int, documents: float, plan: BlueRedPlan, *, seed: int, missed: float = 0.0) -> Divided:
    """Synthetic invoices of ``providers`` issuers with ``documents`` each on average, 3 at the least, divided.

    OCR missed the share ``missed`` of what they say of their issuers.
    """
    if not 2 <= providers <= len(NUMBERS):
        raise DocumentError(f"{counted_words(providers, 'provider')} asked for; expected 2 to {len(NUMBERS):,}.")
    counts = draw_counts(providers, mean=documents, least=3, rng=np.random.default_rng((seed, COUNTING)))
    return _divided(ISSUERS, make_issuers(NUMBERS[:providers], counts, seed=seed, missed=missed), plan, seed)


def open_blue_red(spec: str, plan: BlueRedPlan, *, seed: int, count: int | None) -> Divided:
    """Any pages that name their providers (at most ``count`` of them), as ``load_pages`` opens them, divided."""
    pages = load_pages(spec, count=count, seed=seed)
    return _divided(source_names([spec])[0], pages, plan, seed)


def _divided(name: str, pages: Sequence[Page], plan: BlueRedPlan, seed: int) -> Divided:
    shares = divide_blue_red(name, provider_names(pages), document_names(pages), plan, seed=seed)
    return Divided({name: pages}, shares, plan, seed)


def open_own(spec: str) -> Divided:
    """The division that a data set brings along: PFL-DocVQA's files with their ``set_name``, which is official, or that
    of vrdu_pfl, which is derived.

    Raises DocumentError for other data sets, and what ``check_blue_red`` refuses.
    """
    name, path = format_and_path(spec)
    if name == "vrdu":
        parts = _vrdu_parts(path)
    elif name == "pfl-docvqa":
        parts = _pfl_parts(path)
    else:
        raise DocumentError(f"{name} pages bring no BLUE and RED of their own; divide them by providers.")
    shares: list[Share] = []
    entries: list[PageEntry] = []
    for part, pages in parts.items():
        shares.append(Share(part, name, tuple(range(len(entries), len(entries) + len(pages)))))
        entries += pages.entries
    joined = one_spelling(LazyPages(path, entries))
    check_blue_red(shares, {name: provider_names(joined)}, {name: document_names(joined)})
    return Divided({name: joined}, tuple(shares), None, 0)


def _vrdu_parts(path: Path) -> dict[str, LazyPages]:
    rows = [row for _, row in read_json_lines(vrdu.find_root(path) / "qa.jsonl")[0]]
    clients = {str(row["provider"]): f"{SILOS}/client-{row.get('client', 0)}" for row in rows}
    entries = grouped(vrdu.load(path, split="train").entries, lambda entry: clients[entry.provider])
    silos = {part: LazyPages(path, entries[part]) for part in sorted(entries)}
    known = vrdu.splits(path)
    return {**silos, **{part: vrdu.load(path, split=name) for name, part in PART_OF.items() if name in known}}


def _pfl_parts(path: Path) -> dict[str, LazyPages]:
    """The clients, or one with all of the training where the files have none, and the other splits."""
    known = pfl_docvqa.splits(path)
    if any("client_" in array.stem for array in pfl_docvqa.find_arrays(path)):
        held = {name.replace("_", "-"): pages for name, pages in pfl_docvqa.load_clients(path).items()}
    else:
        held = {"client-0": pfl_docvqa.load(path, split="train")}
    silos = {f"{SILOS}/{client}": pages for client, pages in held.items()}
    kept = {part: pfl_docvqa.load(path, split=name) for name, part in PART_OF.items() if name in known}
    return {**silos, **dict(sorted(kept.items()))}


def write_blue_red(
    divided: Divided, out: Path, *, on_page: Callable[[int, int, str], None] = lambda done, total, part: None
) -> tuple[Silo, ...]:
    """Write the folders and the manifest; ``out`` appears complete or not at all. The manifests of all parts.

    Raises DocumentError if ``out`` is not empty, and for members without a question to train on.
    """
    require_new(out, "BLUE and RED")
    silos = [share for share in divided.shares if share.name.startswith(f"{SILOS}/")]
    kept = [share for share in divided.shares if share not in silos]
    total, first = sum(len(share.pages) for share in divided.shares), sum(len(share.pages) for share in silos)
    counting = {name: _Counting(pages) for name, pages in divided.sources.items()}
    with drafted_folder(out) as draft:
        clients = [Share(share.name.partition("/")[2], share.data_set, share.pages) for share in silos]
        written = write_silos(
            clients, counting, draft / SILOS, by="blue-red", seed=divided.seed,
            on_page=lambda done, _, part: on_page(done, total, part),
        )  # fmt: skip
        _refuse_silent(counting)
        others = write_silos(
            kept, divided.sources, draft / "kept", by="blue-red", seed=divided.seed,
            on_page=lambda done, _, part: on_page(first + done, total, part),
        )  # fmt: skip
        for share in kept:
            os.replace(draft / "kept" / share.name, draft / share.name)
        (draft / "kept").rmdir()
        write_json(draft / MANIFEST, _manifest(divided, written, others))
    return (*written, *others)


def _manifest(divided: Divided, silos: Sequence[Silo], others: Sequence[Silo]) -> dict[str, object]:
    members = sorted({name for silo in silos for name in silo.providers})
    negative = [name for part in others if part.name == RED_NEGATIVE for name in part.providers]
    used = sum(len(share.pages) for share in divided.shares)
    counts = ("documents", "pages", "questions")
    return {
        "source": ", ".join(sorted(divided.sources)),
        "plan": asdict(divided.plan) if divided.plan else None,
        "seed": divided.seed,
        "left_out": sum(map(len, divided.sources.values())) - used,
        "members": members,
        "outsiders": sorted(negative),
        "silos": [silo.name for silo in silos],
        "parts": {silo.name: {**{key: getattr(silo, key) for key in counts}, "providers": len(silo.providers)}
                  for silo in (*silos, *others)},
    }  # fmt: skip


def read_blue_red(directory: Path) -> BlueRed:
    """The division that ``write_blue_red`` left in a folder; DocumentError if there is none or a part is gone."""
    file = directory / MANIFEST
    if not file.is_file():
        raise DocumentError(
            f"{directory} {describe_folder(directory)}; expected {MANIFEST} beside silos/, red-positive/ and "
            "red-negative/. Make them with `docleak data make OUT --blue-red`."
        )
    value = read_json(file)
    try:
        silos = {name: directory / SILOS / name for name in value["silos"]}  # type: ignore[index]
        parts = {name: directory / name for name in value["parts"] if name not in silos}  # type: ignore[index]
        members, outsiders = (tuple(value[key]) for key in ("members", "outsiders"))  # type: ignore[index]
        plan = value["plan"]  # type: ignore[index]
    except (KeyError, TypeError) as error:
        raise DocumentError(f"{file}: {type(error).__name__} {error}. Make BLUE and RED again.") from error
    gone = [str(folder) for folder in (*silos.values(), *parts.values()) if not folder.is_dir()]
    if gone:
        raise DocumentError(f"{file} names parts that are not there:{fault_list(gone)}\nMake BLUE and RED again.")
    return BlueRed(directory, silos, parts, members, outsiders, float(plan["inside"]) if plan else 0.0)


class _Counting(Sequence[Page]):
    """Pages that count the answered questions of their providers while they pass by."""

    def __init__(self, pages: Sequence[Page]) -> None:
        self._pages = pages
        self.questions: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def __getitem__(self, index: int) -> Page:  # type: ignore[override]
        page = self._pages[index]
        asked = sum(bool(question.answers) for question in page.questions)
        self.questions[page.provider] = self.questions.get(page.provider, 0) + asked
        return page


def _refuse_silent(pages: Mapping[str, _Counting]) -> None:
    """DocumentError for members that nothing is asked about: a private training cannot count what it never trains."""
    silent = [name for counting in pages.values() for name, asked in sorted(counting.questions.items()) if not asked]
    if silent:
        raise DocumentError(
            "these members have no question with an answer on the documents they are trained on:"
            + fault_list([repr(name) for name in silent])
            + "\nAsk about them, leave them out, or divide with another seed."
        )
