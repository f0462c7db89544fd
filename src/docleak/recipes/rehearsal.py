"""A rehearsal of a table: what its rows need and what of it is there, and each row once with as little as can be.

A row that lacks nothing is computed in a process of its own, with models and pages of the size that its scale has, one
unit of one step (``TableStudy.least``), in a folder that is deleted at the end, once for all tables that have it in
common; a rehearsal that is cut off goes on from the parts that ended. What that took, times what the whole row takes,
is an estimate of the row. A row that lacks a model or documents says which, and where they are; one whose dearest step
needs more memory than there is, how much, and is not computed.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from docleak.documents.loaders import LOADERS, load_pages
from docleak.documents.pages import gathered, grouped
from docleak.documents.pairs import load_pairs
from docleak.errors import DocleakError, RunError
from docleak.files import read_stored, write_json
from docleak.models.loading import locate, title_of
from docleak.models.published import PUBLISHED, published, repositories
from docleak.models.shipped import SHIPPED, SHIPPED_ENCODERS
from docleak.runs.identity import digest_of
from docleak.runs.pool import OnProgress, WorkerDied, results
from docleak.runs.run import Run
from docleak.spec import split_name
from docleak.studies.engine import KNOWN, begin
from docleak.studies.study import DIVIDED, PLACEHOLDER, ROWS, Done, Needed, TableRow, TableStudy

#: Where data sets are handed out, by format. Each was found as the place to get that data set in public repositories or
#: documentation (searched on 23 November 2026); none of the pages themselves was visited.
HANDED_OUT = {
    "sroie": "https://rrc.cvc.uab.es/?ch=13",
    "funsd": "https://guillaumejaume.github.io/FUNSD/",
    "docvqa": "https://rrc.cvc.uab.es/?ch=17",
    "pfl-docvqa": "https://benchmarks.elsa-ai.eu/?ch=2",
    "vrdu": "derived from the PDFs of https://github.com/google-research-datasets/vrdu (docs/data-format.md)",
    "wtq": "https://github.com/ppasupat/WikiTableQuestions",
    "tabfact": "https://github.com/wenhuchen/Table-Fact-Checking",
    "due": "https://duebenchmark.com/data",
    "nlvr": "https://github.com/lil-lab/nlvr",
    "nlvr-true": "https://github.com/lil-lab/nlvr",
    "flickr30k": "https://shannon.cs.illinois.edu/DenotationGraph/",
    "openi": "https://openi.nlm.nih.gov/faq#collection",
    "cifar100": "https://www.cs.toronto.edu/~kriz/cifar.html",
}
#: Models that recipes leave to the user -> the published checkpoints that they are, or are put together from.
#: FeDocVQA's section 4.3 names t5-base and MAE's ViT-B/16 as what it begins with.
MADE_FROM = {"fedocvqa": ("t5-base", "vit-mae-base")}
RECORD = "rehearsal.json"
#: The folder in whose ``rows`` the least parts are, as those of a table.
TABLE = "table"
#: Where a rehearsal works, in its folder: a name that nobody's own files have, as what is there is deleted.
PARTS = "docleak-rehearsal-parts"
#: Bytes of a process besides what its steps hold.
ITS_OWN = 600_000_000


@dataclass(frozen=True)
class Missing:
    """Something that is not here: the ``option`` that names it, ``where`` it is, and the ``bytes`` to download (0:
    unknown)."""

    option: str
    where: str
    bytes: int = 0


@dataclass(frozen=True)
class Rehearsed:
    """A row: what is ``there``, what is ``missing``, the ``work`` of the whole row by kind, and, where it was computed,
    what its least part took: ``seconds`` in all, the ``peak`` bytes of memory (``device_peak`` on an accelerator), and
    the ``estimate`` of seconds for the whole row. ``stops`` is the error that ended it. Of a row that was not computed
    for want of memory ``peak`` is what a step would have taken."""

    there: tuple[str, ...]
    missing: tuple[Missing, ...]
    work: Mapping[str, int]
    seconds: float | None = None
    peak: int = 0
    device_peak: int = 0
    estimate: float | None = None
    stops: str = ""

    @property
    def ready(self) -> bool:
        """Whether it can be computed."""
        return not self.missing and not self.stops


@dataclass(frozen=True)
class Rehearsing:
    """Computes the least part that ``studies`` share, in whatever process it finds itself. In its run it leaves what
    that took, and what it is of each study."""

    studies: Sequence[TableStudy[Any]]
    folder: Path

    def __call__(self, number: int, report: OnProgress) -> None:
        least, record = self.studies[0].least(), self.folder / RECORD
        try:
            run = begin(least, self.folder)
        except RunError:  # of weights, data or a version that have changed since it was cut off
            shutil.rmtree(self.folder, ignore_errors=True)
            run = begin(least, self.folder)
        if not record.is_file():
            write_json(record, _computed(least, run))
        told = read_stored(record)
        units = [(unit, told["units"][unit.id]) for unit in least.units()]
        of_each = []
        for study in self.studies:
            done = gathered(pair for unit, spent in units for pair in study.done(unit, run, spent).items())
            whole = {kind: max(part.of for part in parts) for kind, parts in done.items()}
            of_each.append({**told["took"], "work": whole, "estimate": sum(map(_whole, done.values()))})
        write_json(record, {**told, "of_each": of_each})


def _computed(least: TableStudy[Any], run: Run) -> dict[str, Any]:
    """Compute a least part in its ``run``: the seconds of each unit, and what all of it took."""
    began, seconds = time.perf_counter(), dict[str, float]()
    least.prepare(run, lambda text: None)
    for unit in sorted(least.units(), key=lambda unit: unit.turn):
        at = time.perf_counter()
        record, images = least.compute(unit, run, lambda count: None)
        run.write_unit(unit.id, record, images)
        seconds[unit.id] = time.perf_counter() - at
    least.numbers(run)
    peak, device_peak = _peaks(least.device)
    took = {"seconds": time.perf_counter() - began, "peak": peak, "device_peak": device_peak}
    return {"units": seconds, "took": took}


def _whole(parts: Sequence[Done]) -> float:
    """Seconds of all that a row has of a kind of work."""
    count, seconds = sum(part.count for part in parts), sum(part.seconds for part in parts)
    return seconds * max(part.of for part in parts) / count if count else 0.0


def _peaks(device: str) -> tuple[int, int]:
    """The most bytes that this process had in memory, and on its accelerator."""
    import torch

    on_device = torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else 0
    try:
        import resource
    except ImportError:  # Windows
        return 0, on_device
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, on_device


def rehearse(rows: Sequence[TableRow], place: Path, say: Callable[[str], None] = lambda text: None) -> list[Rehearsed]:
    """Every row; what several have as their least part is computed once in ``place``, a folder for this call or for
    those of several tables, and not again if it is there. ``say`` is told which is at work.

    Nothing is downloaded. A row whose models and documents are there and which fails says with what (``stops``).
    """
    rehearsals = [_looked_at(row) for row in rows]
    ready = [number for number, so_far in enumerate(rehearsals) if so_far.ready]
    for key, numbers in grouped(ready, lambda number: _key(rows[number].study)).items():
        say(f"{rows[numbers[0]].name} ({rows[numbers[0]].model})")
        studies = [rows[number].study for number in numbers]
        if short := _short_of_memory(studies[0].least()):
            for number in numbers:
                rehearsals[number] = replace(rehearsals[number], **short)
            continue
        measured = _measured(studies, place / TABLE / ROWS / key)
        for weights in (place / TABLE / ROWS / key).rglob("*.safetensors"):  # large, and of use to no other row
            weights.unlink()
        for number, record in zip(numbers, measured, strict=True):
            rehearsals[number] = replace(rehearsals[number], **record)
    _drop_shared(place)
    return rehearsals


def _short_of_memory(least: TableStudy[Any]) -> dict[str, Any]:
    """Of a row whose dearest step needs more memory than its device has: how much that is."""
    try:
        peak, there = least.held() + ITS_OWN, _memory_of(least.device)
    except KNOWN:  # of a model that cannot be loaded: the row itself says why
        return {}
    if peak <= there or peak == ITS_OWN:
        return {}
    where = f"{peak / 1e9:.1f} GB for a step, of which {there / 1e9:.1f} are here; --image-size takes smaller pages"
    return {"missing": (Missing("memory", where),), "peak": peak}


def _memory_of(device: str) -> int:
    """Bytes of memory in all."""
    import torch

    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return sys.maxsize


def _drop_shared(place: Path) -> None:
    """What a table's rows share beside it, but for divisions of documents: they are in no unit's time."""
    for folder in [*place.glob("*/*/"), *place.glob("*/")]:
        divided = folder.name.startswith(DIVIDED) or any(folder.glob(f"{DIVIDED}*"))
        if not divided and TABLE not in (folder.name, folder.parent.name):
            shutil.rmtree(folder)


def fewest(tables: Sequence[Sequence[TableRow]]) -> list[Sequence[TableRow]]:
    """Of each table one row, chosen so that few least parts have to be computed: those that most tables share, first.

    A row that lacks something is taken only where all of its table do.
    """
    shared: dict[str, dict[int, TableRow]] = {}
    for number, rows in enumerate(tables):
        for row in [row for row in rows if _looked_at(row).ready] or rows:
            shared.setdefault(_key(row.study), {}).setdefault(number, row)
    chosen: dict[int, TableRow] = {}
    while len(chosen) < len(tables):
        most = max(shared.values(), key=lambda of: len(of.keys() - chosen.keys()))
        chosen = most | chosen
    return [[chosen[number]] for number in range(len(tables))]


def keep_ended(place: Path) -> None:
    """Of what a rehearsal that was cut off left in ``place`` keep the parts that ended; of one that did not, the time
    would be unknown."""
    parts = place / TABLE / ROWS
    for folder in [*place.glob("*"), *parts.glob("*")]:
        if folder.name != TABLE and not (folder / RECORD).is_file():
            shutil.rmtree(folder)


def _key(study: TableStudy[Any]) -> str:
    """Tells least parts apart by what they are told, not by the bytes of the files that they name: these are the same
    in one call, and ``begin`` refuses what was begun on others."""
    least = study.least()
    told = {"kind": least.kind, "settings": least.settings(), "columns": least.shown()}
    return digest_of(told, files=False)


def _measured(studies: Sequence[TableStudy[Any]], folder: Path) -> list[dict[str, Any]]:
    """What became of each study's least part, which they share."""
    work = Rehearsing(studies, folder)
    try:
        with closing(results(work, [0], workers=1, on_progress=lambda *told: None, apart=True)) as ended:
            error = next(error for _, error in ended)
    except WorkerDied as death:
        return [{"stops": str(death)} for _ in studies]
    if isinstance(error, KNOWN):
        return [{"stops": f"{type(error).__name__}: {error}"} for _ in studies]
    if error is not None:
        raise error
    return list(read_stored(folder / RECORD)["of_each"])


# -- what a row needs --------------------------------------------------------------------------------------------------


def _looked_at(row: TableRow) -> Rehearsed:
    """What of the row is there and what is missing, before anything is computed."""
    there, missing, faults = [], [], []
    for need in row.study.needed(row.model):
        try:
            lack = _missing(need, row.model)
            if lack is None:
                there.append(_opened(need))
            else:
                missing.append(lack)
        except DocleakError as fault:
            faults.append(str(fault))
    unique = tuple(dict.fromkeys(missing))
    return Rehearsed(tuple(dict.fromkeys(there)), unique, row.study.work(), stops="; ".join(faults))


def _missing(need: Needed, model: str) -> Missing | None:
    """What is not on this machine of what a row reads, or None; nothing is downloaded. ``model`` is the row's."""
    name = split_name(need.source)[0]
    if need.kind != "model":
        return Missing(need.option, HANDED_OUT.get(name, "")) if PLACEHOLDER in need.source else None
    if PLACEHOLDER in need.source:
        parts = [published(part) for part in MADE_FROM.get(model, ())]
        where = " and ".join(part.repository for part in parts)
        how = f"docleak models assemble, from {where}" if len(parts) > 1 else where
        return Missing(need.option, how or "a model of your own", sum(part.bytes for part in parts))
    if need.source in {**SHIPPED, **SHIPPED_ENCODERS}:
        return None
    where, revision = locate(need.source, owned=False)
    if Path(where).is_dir():
        return None
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(where, "config.json", revision=revision), str):
        return None
    name = where.rpartition("/")[2]
    same = repositories().get(where, name if name in PUBLISHED else "")
    same = same or next((known for known in PUBLISHED if name.endswith(f"-{known}")), "")
    return Missing(need.option, need.source, published(same).bytes if same else 0)


@lru_cache(maxsize=32)
def _opened(need: Needed) -> str:
    """What is there, in words; raises what its loader raises."""
    name = split_name(need.source)[0]
    if need.kind == "model":
        return f"model {title_of(need.source)}"
    if need.kind == "pairs":
        return f"{len(load_pairs(need.source, count=need.count, seed=0)):,} pairs of {name}, as many as are needed"
    return f"{len(load_pages(need.source, seed=0)):,} pages of {name if name in LOADERS else need.source}"
