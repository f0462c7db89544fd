"""Answers held against the key: what was handed in is checked file by file, then every track is measured.

The leaderboard is a JSON file of scored entries of one edition, and the page made from it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as of_field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from docleak.documents import Page
from docleak.documents.folder import load
from docleak.documents.page import Field, Image, Word, fault_list
from docleak.documents.scrub import blank_template
from docleak.errors import DocleakError, RunError
from docleak.files import parse_json, read_json_object, shaped, write_atomically, write_json
from docleak.metrics import Estimate, OcrEngine, exact, score_page
from docleak.metrics.estimate import ratio_of
from docleak.metrics.membership import membership_rates
from docleak.report.table import Column, Row, Table
from docleak.studies.benchmark.files import ANSWER, ENTRY, KEY, Benchmark
from docleak.studies.gradient.texts import words_in

#: What is measured of a track, in a table's order.
FIELDS, TOKENS, PSNR, AUC, TPR = "fields read", "tokens, F1", "PSNR, dB", "AUC", "TPR at 10 % FPR"
ADVICE = "docs/benchmark.md says what is handed in."
OF_BOARD = "It is what docleak benchmark score writes; pass another file."
Scores = Mapping[str, Mapping[str, Estimate]]


@dataclass(frozen=True)
class SaidWord:
    """A word of page ``page`` (from 0) in pixels of that page."""

    text: str
    box: tuple[float, float, float, float]
    page: int = 0


@dataclass(frozen=True)
class Answer:
    """answer.json of one case; what is left out was not read."""

    words: tuple[SaidWord, ...] = ()
    tokens: tuple[int, ...] = ()
    answer: str = ""
    scores: Mapping[str, float] = of_field(default_factory=dict)
    seconds: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """entry.json: whose answers these are, and to what."""

    name: str
    version: int
    edition: str
    about: str = ""
    commit: str = ""


@dataclass(frozen=True)
class HandedIn:
    """An entry of files of the right shape; ``pictures`` by case and page; ``missing`` cases have no answer."""

    entry: Entry
    answers: Mapping[str, Answer]
    pictures: Mapping[str, Mapping[int, Image]]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Key:
    """The truth of every case, and the pages by name."""

    cases: Mapping[str, Mapping[str, Any]]
    pages: Mapping[str, Page]


def read_key(folder: Path, benchmark: Benchmark) -> Key:
    """The key in ``folder``; RunError where there is none, or that of another edition."""
    if not (folder / KEY).is_file():
        raise RunError(
            f"{folder} holds no {KEY}. Pass the --key that docleak benchmark export wrote; of a public seed anybody "
            "can export it again."
        )
    told = read_json_object(folder / KEY, error=RunError, advice="Export the benchmark anew.")
    if told.get("edition") != benchmark.edition:
        raise RunError(f"{folder} is the key of edition {told.get('edition')}, the benchmark is {benchmark.edition}.")
    return Key(told["cases"], {page.name: page for page in load(folder)})


def read_answers(folder: Path, benchmark: Benchmark) -> HandedIn:
    """The entry in ``folder``; RunError lists everything that cannot be scored: other versions, shapes and sizes."""
    entry = shaped(Entry, _json(folder / ENTRY), RunError, f"{folder / ENTRY}", ADVICE)
    wanted = int(benchmark.about["version"]), benchmark.edition
    if (entry.version, entry.edition) != wanted:
        raise RunError(
            f"{folder} answers version {entry.version}, edition {entry.edition}; the benchmark is version {wanted[0]}, "
            f"edition {wanted[1]}. Attack this one, or score with that one."
        )
    answers: dict[str, Answer] = {}
    pictures: dict[str, dict[int, Image]] = {}
    faults = [
        f"{path.name} is a link, which is not followed" for path in sorted(folder.rglob("*")) if path.is_symlink()
    ]
    faults += [f"{path.name}: there is no such case" for path in sorted(folder.iterdir())
               if path.is_dir() and path.name not in benchmark.cases]  # fmt: skip
    for name, case in benchmark.cases.items():
        if not (folder / name / ANSWER).is_file():
            if (folder / name).is_dir() and any((folder / name).iterdir()):
                faults.append(f"{name}: {ANSWER} is missing, and other files are there")
            continue
        try:
            answers[name] = shaped(Answer, _json(folder / name / ANSWER), RunError, f"{name}: {ANSWER}", ADVICE)
            pictures[name] = _pictures(folder / name, benchmark, name)
            faults += [f"{name}: {fault}" for fault in _faults(answers[name], case)]
        except DocleakError as fault:
            faults.append(str(fault))
    if faults:
        raise RunError(f"{folder} cannot be scored:{fault_list(faults)}\n{ADVICE}")
    return HandedIn(entry, answers, pictures, tuple(name for name in benchmark.cases if name not in answers))


def _json(file: Path) -> Any:
    try:
        return parse_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise RunError(f"{file} cannot be read as JSON ({fault}). {ADVICE}") from fault


def _faults(answer: Answer, case: Mapping[str, Any]) -> Sequence[str]:
    """What does not fit the case, as phrases."""
    if answer.seconds is not None and answer.seconds < 0:
        return [f"{answer.seconds:g} seconds; expected 0 or more, or none"]
    if case["sent"] == "answers":
        odd = sorted(set(answer.scores) ^ set(case["providers"]))
        return [f"scores of {len(odd)} providers too many or too few, such as {odd[0]!r}"] if odd else []
    count = len(case["pages"])
    bad = [word.page for word in answer.words if not 0 <= word.page < count]
    faults = [f"a word of page {bad[0]}; there are pages 0 to {count - 1}"] if bad else []
    return faults + (["scores of providers, which this case does not ask for"] if answer.scores else [])


def _pictures(place: Path, benchmark: Benchmark, name: str) -> dict[int, Image]:
    """The pages handed in, (H, W, 3) uint8 of the templates' size."""
    pages = benchmark.cases[name].get("pages", ())
    expected = {f"page-{number}.png": number for number in range(len(pages))}
    strange = sorted(path.name for path in place.iterdir() if path.name not in {ANSWER, *expected})
    if strange:
        raise RunError(f"{name}: {strange[0]} is not asked for; expected {', '.join([ANSWER, *expected])}")
    pictures = {}
    for file, number in expected.items():
        if not (place / file).is_file():
            continue
        with PIL.Image.open(benchmark.folder / "cases" / name / pages[number]["template"]) as template:
            size = template.size
        try:
            with PIL.Image.open(place / file, formats=["PNG"]) as picture:
                if picture.size != size:
                    raise RunError(f"{name}: {file} is {picture.size[0]} x {picture.size[1]} pixels; expected "
                                   f"{size[0]} x {size[1]}")  # fmt: skip
                pictures[number] = np.array(picture.convert("RGB"))
        except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as fault:
            raise RunError(f"{name}: {file} is no PNG that can be read ({fault})") from fault
    return pictures


def score(
    benchmark: Benchmark, given: HandedIn, key: Key, engine: OcrEngine | None, *, missing_as_zero: bool = False
) -> dict[str, dict[str, Estimate]]:
    """Track -> what was measured of it, with 95 % intervals over its cases (of answers: over providers).

    A case without an answer counts as one in which nothing was read, if ``missing_as_zero``; else RunError names all of
    them. A track of which no case was answered is then not entered, and has no numbers. What a case's answer leaves out
    was not read; a page without a picture is its blank form.
    """
    if not given.answers:
        raise RunError(f"the entry answers none of {len(benchmark.cases)} cases; there is nothing to score. {ADVICE}")
    if given.missing and not missing_as_zero:
        raise RunError(
            f"{len(given.missing)} of {len(benchmark.cases)} cases have no answer: {', '.join(given.missing)}. Answer "
            "them, or pass --missing-as-zero, which counts them as not read, and whole tracks as not entered."
        )
    estimates: dict[str, dict[str, Estimate]] = {}
    for track, names in benchmark.of_track().items():
        of_answers = benchmark.cases[names[0]]["sent"] == "answers"
        if not set(names) & set(given.answers):
            heads = (AUC, TPR) if of_answers else (FIELDS, TOKENS, PSNR)
            estimates[track] = dict.fromkeys(heads, Estimate(None, why="not entered"))
        elif of_answers:
            estimates[track] = _membership(benchmark, given, key, names[0])
        else:
            estimates[track] = _updates(benchmark, given, key, names, engine)
    return estimates


def _updates(
    benchmark: Benchmark, given: HandedIn, key: Key, names: Sequence[str], engine: OcrEngine | None
) -> dict[str, Estimate]:
    fields, tokens, decibels = list[list[float]](), list[list[float]](), list[list[float]]()
    for name in names:
        answer = given.answers.get(name, Answer())
        truth = key.cases[name]
        pages = [key.pages[page] for page in truth["pages"]]
        pictures = given.pictures.get(name, {})
        scored = [score_page(p, pictures.get(n, blank_template(p)), engine) for n, p in enumerate(pages)]
        fields.append([
            float(bool(one.exact) or exact(answer.answer, one.value) or _words_tell(pages[n], field, n, answer))
            for n, page in enumerate(scored)
            for field, one in zip((f for f in pages[n].fields if f.private), page.fields, strict=True)
        ])  # fmt: skip
        public = set(benchmark.cases[name]["public_tokens"])
        tokens.append([_f1(set(answer.tokens) - public, set(truth["tokens"]))])
        decibels.append([page.psnr for page in scored if page.psnr is not None])
    return {
        FIELDS: _mean(fields, "fields"),
        TOKENS: _mean(tokens, "cases"),
        PSNR: _mean(decibels, "pages", share=False),
    }


def _words_tell(page: Page, field: Field, number: int, answer: Answer) -> bool:
    """Whether the words handed in at the field's places are its value, no more and no less."""
    words = [Word(word.text, word.box) for word in answer.words if word.page == number]
    return exact(" ".join(word.text for word in words_in(words, page.field_boxes(field))), field.value)


def _f1(said: Collection[int], true: Collection[int]) -> float:
    """Twice the share of ids that both have, of all ids said and all true."""
    return 2 * len(set(said) & set(true)) / max(1, len(said) + len(true))


def _mean(cases: Sequence[Sequence[float]], of: str, *, share: bool = True) -> Estimate:
    """Over all values, with an interval over cases."""
    kept = [values for values in cases if values]
    why = "" if kept else "nothing was there to measure"
    return ratio_of(kept, np.random.default_rng(0), share=share, of=of, why=why)


def _membership(benchmark: Benchmark, given: HandedIn, key: Key, name: str) -> dict[str, Estimate]:
    """How well the scores tell members from others."""
    members, names = key.cases[name]["members"], sorted(benchmark.cases[name]["providers"])
    said = given.answers[name].scores
    scores = np.array([said[one] for one in names], dtype=np.float64)
    truth = np.array([bool(members[one]) for one in names])
    rates = membership_rates(scores, scores > np.median(scores), truth, rng=np.random.default_rng(0))
    return {AUC: rates["auc"], TPR: rates["tpr_at_10_fpr"]}


def row_of(given: HandedIn, scores: Scores, engine: str) -> dict[str, Any]:
    """One entry as the file holds it."""
    seconds = [answer.seconds for answer in given.answers.values() if answer.seconds is not None]
    return {
        "name": given.entry.name,
        "about": given.entry.about,
        "commit": given.entry.commit,
        "seconds": round(sum(seconds), 1) if seconds else None,
        "answered": len(given.answers),
        "missing": list(given.missing),
        "ocr": engine,
        "scored": datetime.now(UTC).isoformat(timespec="seconds"),
        "tracks": {track: {k: v.to_json() for k, v in measured.items()} for track, measured in scores.items()},
    }


def enlisted(file: Path, benchmark: Benchmark, row: Mapping[str, Any]) -> dict[str, Any]:
    """Put the row into the file, in place of one of its name, and write the page beside it; returns all.

    RunError for a file of another edition, and where the rows were read by another OCR engine.
    """
    about = {key: benchmark.about[key] for key in ("version", "edition", "seed", "tracks", "cases")}
    board: dict[str, Any] = {"benchmark": about, "rows": []}
    if file.exists():
        board = read_json_object(file, error=RunError, advice=OF_BOARD)
        if board.get("benchmark") != about or not isinstance(board.get("rows"), list):
            told = board.get("benchmark")
            edition = told.get("edition") if isinstance(told, dict) else "none"
            raise RunError(f"{file} is of edition {edition}, the benchmark is {about['edition']}. {OF_BOARD}")
    for number, one in enumerate(board["rows"], 1):
        if not isinstance(one, dict) or (lacking := sorted(row.keys() - one.keys())):
            said = f"lacks {', '.join(lacking)}" if isinstance(one, dict) else "is no object"
            raise RunError(f"{file}: row {number} {said}. {OF_BOARD}")
    rows = [one for one in board["rows"] if one["name"] != row["name"]]
    if other := {str(one["ocr"]) for one in rows} - {str(row["ocr"])}:
        raise RunError(f"{file} holds rows read by {other.pop()}; this one was read by {row['ocr']}. Use one engine.")
    board["rows"] = [*rows, dict(row)]
    write_json(file, board)
    write_atomically(file.with_suffix(".md"), as_page(board).encode())
    return board


def table_of(track: str, about: str, rows: list[Mapping[str, Any]]) -> Table:
    """A track's entries, the best by its first column on top."""
    measured = {row["name"]: {k: Estimate.of_json(v) for k, v in row["tracks"][track].items()} for row in rows}
    heads = list(next(iter(measured.values())))
    columns = {head: Column(head, 1 if head == PSNR else 2) for head in heads}
    entered = [name for name, values in measured.items() if values[heads[0]].value is not None]
    order = sorted(entered, key=lambda name: [-(measured[name][head].value or 0.0) for head in heads])
    if not order:
        return Table(f"{track}: {about}", columns, [], "Nobody entered.", first="entry")
    first = measured[order[0]]
    n = "; ".join(f"{head}: {first[head].n} {first[head].of}".rstrip() for head in heads)
    of = "providers" if AUC in heads else "cases"
    caption = f"n: {n}. Intervals of 95 % over {first[heads[0]].groups} {of}."
    return Table(f"{track}: {about}", columns, [Row(name, measured[name]) for name in order], caption, first="entry")


def as_page(board: Mapping[str, Any]) -> str:
    """The leaderboard as Markdown."""
    about, rows = board["benchmark"], board["rows"]
    seed = "private" if about["seed"] is None else f"{about['seed']}, which is public: the rows are on their honour"
    text = (
        "# Leaderboard\n\nWritten by `docleak benchmark score --leaderboard`; do not edit. "
        f"Version {about['version']}, edition `{about['edition']}`, seed {seed}. Entries stand by their first number; "
        "two whose intervals overlap are in no sure order.\n\n"
    )
    entries = [
        Row(row["name"], {"about": row["about"], "cases": f"{row['answered']} of {len(about['cases'])}",
                          "seconds": row["seconds"], "commit": row["commit"], "scored": row["scored"]})
        for row in rows
    ]  # fmt: skip
    columns = {"about": Column("about, by their own word"), "cases": Column("cases answered"),
               "seconds": Column("seconds, by their own word", 0), "commit": Column("commit"),
               "scored": Column("scored")}  # fmt: skip
    text += Table("Entries", columns, entries, f"Pictures were read by {rows[0]['ocr']}.", first="entry").to_markdown()
    return text + "".join("\n" + table_of(track, said, rows).to_markdown() for track, said in about["tracks"].items())
