"""What an audit of captured updates says: a verdict on each update, what was received, and how leakage falls."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from docleak.documents.loaders import SYNTHETIC
from docleak.errors import RunError
from docleak.metrics import PageScore
from docleak.report.page import Reading, Section, run_facts
from docleak.report.pictures import new_figure, picture, svg_figure
from docleak.report.severity import Part, Severity
from docleak.report.statement import Scope
from docleak.report.table import Column, Row, Table
from docleak.report.templating import percent, render
from docleak.runs.run import Run
from docleak.spec import counted_words
from docleak.studies.fields import ALTS, KINDS
from docleak.studies.updates.verdict import (
    Pictures,
    counted,
    doubts_of,
    fields_measured,
    name_of,
    part_of,
    sentences,
    severity_of,
)

#: What the attack on pictures is given, as in the published attack.
GIVEN = "the blank templates, the clients' questions and answers and, where the model takes them, the OCR words"
THREAT = {
    "adversary": "the server of a federated training, or whoever reads its traffic: it follows the protocol and looks",
    "sees": ["the weights it sent, what each client sent back, and the training configuration it gave the clients"],
    "knows": ["for words: nothing else",
              f"for pictures: {GIVEN}, as in the published attack; not the order in which they were trained on, nor "
              "dropout masks"],
    "cannot": ["touch the model or the protocol, or see a page"],
}  # fmt: skip
SECURE_THREAT = {
    "adversary": "the server of a federated training with secure aggregation, or whoever reads its traffic: it follows "
    "the protocol and looks",
    "sees": ["the weights it sent, each client's masked words, the sum of the updates, and the training configuration"],
    "cannot": ["conspire with clients, touch model or protocol, or see a page"],
}
HIDDEN_THREAT = {
    **THREAT,
    "adversary": "whoever sees a client's update before secure aggregation masks it; the server does not",
    "sees": ["the weights the server sent, what each client computed, and the training configuration"],
}
SECURE_LIMITS = (
    "That masked words look like noise here shows that this implementation masks them; that they cannot be unmasked "
    "rests on the protocol and its keys (docs/secure-aggregation.md).",
    "Measured is what the server has. A silo takes its own update off the sum: of two, each has the other's.",
    "The sum says what a sum says: with few clients, or over rounds that differ by one client, much. Only differential "
    "privacy bounds it.",
)
LIMITS = (
    "Words are a set: which tokens were there, without their order and number. With VT5 and LayoutLMv3 the coordinates "
    "that were used are told as well, and which word stands where is not.",
    "Where the vocabulary is small, a set holds many values by chance: compare with the fields of made-up pages.",
    "The table trains the first client again, without dropout, on one question of each of its pages; what it sent "
    "itself stands above it.",
    "A picture that stayed blurred is no proof of safety: a better attack, or a larger budget, may succeed.",
    "One client of one round is an example of what can happen, not a rate at which it happens.",
)


def read_run(run: Run) -> Reading:
    """Everything recomputed from the run's units. RunError if no update is finished."""
    records, info = run.units(), run.info
    updates = [record for record in records if record["kind"] == "update"]
    if not updates:
        raise RunError(f"{run.path} has no finished unit of an audit of updates. Run docleak audit updates first.")
    cells = sorted((r for r in records if r["kind"] == "cell"), key=lambda c: (c["steps"], c["batch_size"]))
    unfinished = _unfinished(info, updates)
    missing = [*_missing(info, unfinished, cells)]
    absent = info.get("absent", [])
    silent = [f"Nothing came in this round from {', '.join(absent)}, who sent in another round."] if absent else []
    secure = any("masked" in record or "sum" in record for record in updates)
    hidden = bool(updates) and all(record.get("hidden_by") for record in updates)
    threat = SECURE_THREAT if secure else HIDDEN_THREAT if hidden else THREAT
    came, owner = ("secure aggregation masks on the way to the server,", "clients computed") if hidden else (
        "a federated server received", "the server received")  # fmt: skip
    shown = [_shown(run, record) for record in updates]
    table = table_of(cells)
    doubted = any(doubts_of(record) for record in updates[:1])
    pictures = f"; pictures with {GIVEN} given" if any("score" in r["pictures"] for r in (*updates, *cells)) else ""
    said = [line for one in shown for line in (f"{one['name']}: {one['label']}", *(f"  {s}" for s in one["sentences"]))]
    return Reading(
        question="What did the clients' updates give away?",
        lead=f"{counted_words(len(updates), 'update')} that {came} from clients training "
        f"{info.get('model', {}).get('name', 'the model')}: words attacked with nothing "
        f"{'else' if hidden else 'that the server does not have'}{pictures}.",
        parts=(*map(part_of, updates),
               *(Part(name, Severity.UNMEASURED, "No unit of it is finished.") for name in unfinished)),
        counted=counted(updates),
        articles=render("updates.html.j2", updates=shown, verdicts=True),
        remarks=(*silent, *missing, *falls(cells)),
        sections=(
            Section("threat", "Threat model", "Threat model: who could do this",
                    render("threat.html.j2", model=threat), open=True),
            Section("received", "What was received", "What was received",
                    render("updates.html.j2", updates=shown, verdicts=False)),
            Section("falls", "Steps and batches", "How leakage falls with local steps and batch size",
                    render("falls.html.j2", table=table, doubted=doubted, chart=chart(cells))),
        ),
        lines=(*said, *silent, *missing, *falls(cells)),
        results={
            "updates": [{**record, "severity": severity_of(record), "label": severity_of(record).label,
                         "doubts": doubts_of(record)} for record in updates],
            "cells": cells, "falls": falls(cells), "absent": silent, "missing": missing,
        },
        tables={"falls": table},
        limits=(*SECURE_LIMITS, *LIMITS[:2], LIMITS[-1]) if secure else LIMITS,
        measures=fields_measured(
            updates, _whose(run, updates, unfinished),
            [f"The run is not finished: {_reached(info, updates)}."] if unfinished else [],
        ),
        scope=Scope(
            system=f"Federated training of {info.get('model', {}).get('name', 'the model')}",
            material=f"{counted_words(len(updates), 'update')} as {owner} "
            f"{'it' if len(updates) == 1 else 'them'}",
            adversary=str(HIDDEN_THREAT["adversary"]) if hidden
            else "the server of the training, or whoever reads its traffic",
            categories=tuple(sorted({key for record in updates for key in record.get("categories", ())})),
            remedies=tuple(falls(cells)),
            remedy="" if secure else _steps_and_batches(run.config), unfinished=_reached(info, updates, cells),
        ),
        runs=(run_facts(run.path, run.manifest()),), synthetic=info.get("source") == SYNTHETIC,
    )  # fmt: skip


def _whose(run: Run, updates: Sequence[Mapping[str, Any]], unfinished: Sequence[str]) -> str:
    """Whose updates were measured: all clients of the capture's round, or which."""
    config, names = run.config, list(dict.fromkeys(str(record["client"]) for record in updates))
    if not (config.get("clients") or config.get("before") or unfinished):
        return "all clients"
    return f"client{'s' * (len(names) > 1)} {', '.join(names)}"


def _steps_and_batches(config: Mapping[str, Any]) -> str:
    """The command that measures on the same updates how leakage falls with local steps and batch size."""
    words = ["docleak", "audit", "updates", *([str(config["updates"])] if config.get("updates") else [])]
    for name in ("before", "after", "documents", "model", "round", "local"):
        words += [f"--{name}", str(config[name])] if config.get(name) else []
    for client in config.get("clients", ()):
        words += ["--client", str(client)]
    return shlex.join([*words, "--steps", "1,4,16", "--batch-sizes", "1,4"])


def _unfinished(info: Mapping[str, Any], updates: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of updates that were to be audited and have no record yet."""
    done = {record["unit"] for record in updates}
    return [name_of(planned) for planned in info.get("planned", []) if planned["unit"] not in done]


def _reached(
    info: Mapping[str, Any], updates: Sequence[Mapping[str, Any]], cells: Sequence[Mapping[str, Any]] | None = None
) -> str:
    """How far the audit is, in words; "" where it is finished. Without ``cells`` nothing is said of their table."""
    planned, of = len(info.get("planned", ())), int(info.get("cells", 0))
    parts = [f"{len(updates)} of {counted_words(planned, 'update')}"] if len(updates) < planned else []
    if cells is not None and len(cells) < of:
        parts.append(f"{len(cells)} of {counted_words(of, 'cell')} of the table of steps and batches")
    return ", ".join(parts)


def _missing(info: Mapping[str, Any], unfinished: Sequence[str], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """What an interrupted audit has not done yet."""
    lines = []
    if unfinished:
        lines.append(f"Not finished: {'; '.join(unfinished)}. Run the same command again to go on.")
    if left := max(0, info.get("cells", 0) - len(cells)):
        lines.append(f"Of the table of steps and batches {left} of {info['cells']} cells are not finished.")
    return lines


def _shown(run: Run, record: Mapping[str, Any]) -> dict[str, Any]:
    """An update as the templates show it."""
    images, severity, said = record["images"], severity_of(record), sentences(record)
    scores = [PageScore.from_json(page) for page in record["pictures"].get("score", ())]
    return {
        **record,
        "name": name_of(record), "severity": severity, "label": severity.label,
        "sentences": said, "headline": said[0], "lines": said[1:],
        "trio": [
            {"kind": kind, "label": KINDS[kind],
             **picture(run.read_image(record["unit"], images[kind]), f"{ALTS[kind]}: {name_of(record)}")}
            for kind in KINDS if kind in images
        ],
        "read": [field for score in scores for field in score.fields],
    }  # fmt: skip


def table_of(cells: Sequence[Mapping[str, Any]]) -> Table:
    """A row per cell: tokens told of all that was trained on, and the first page's picture."""
    columns = {"batch_size": Column("Pages in a batch", 0), "words": Column("Words: tokens told"),
               "picture": Column("Picture of the first page")}  # fmt: skip
    rows = [
        Row(str(cell["steps"]), {"batch_size": cell["batch_size"], "words": _told(cell["words"]),
                                 "picture": _seen(cell["pictures"])})
        for cell in cells
    ]  # fmt: skip
    return Table("", columns, rows, first="Local steps", open=True)


def _told(words: Mapping[str, Any]) -> str:
    if "failed" in words:
        return "–"
    right = f"{words['right']} of {words['true']}; {percent(words['precision'])} right"
    return f"{percent(words['recall'])} ({right})"


def _seen(saved: Mapping[str, Any]) -> str:
    seen = Pictures.of(saved)
    if seen is None:
        return f"– ({saved['why']})" if saved["why"] else "–"
    psnr = "–" if seen.psnr is None else f"{seen.psnr:.1f} dB"
    return f"{psnr} ({seen.exact} of {seen.scored} fields exact)"


def falls(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """How leakage falls with local steps and batch size, from the cells of the table."""
    if not cells:
        return []
    least = min(cells, key=lambda c: (c["steps"], c["batch_size"]))
    others = (
        (_most(c for c in cells if c["batch_size"] == least["batch_size"] and c is not least), "local steps"),
        (_most(c for c in cells if c["steps"] == least["steps"] and c is not least), "pages in a batch"),
        (_most(c for c in cells if c["steps"] > least["steps"] and c["batch_size"] > least["batch_size"]), "of both"),
    )
    return [_compared(least, other, what) for other, what in others if other]


def _most(cells: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The one of most work among those that were measured: of a client with few pages large batches are not."""
    there = list(cells)
    measured = [cell for cell in there if _recall(cell) is not None or _psnr(cell) is not None]
    return max(measured or there, key=lambda c: (c["steps"] * c["batch_size"], c["steps"]), default=None)


def _compared(least: Mapping[str, Any], other: Mapping[str, Any], what: str) -> str:
    parts = []
    told = [_recall(cell) for cell in (least, other)]
    one, two = (Pictures.of(cell["pictures"]) for cell in (least, other))
    if told[0] is not None and told[1] is not None:
        parts.append(f"tokens told go from {told[0]:.0f} % to {told[1]:.0f} %")
    if one and two and one.psnr is not None and two.psnr is not None:
        parts.append(
            f"the first page's picture from {one.psnr:.1f} to {two.psnr:.1f} dB, fields read exactly from {one.exact} "
            f"of {one.scored} to {two.exact} of {two.scored}"
        )
    ends = (f"{counted_words(c['steps'], 'step')} of {counted_words(c['batch_size'], 'page')}" for c in (least, other))
    return f"With more {what} ({' to '.join(ends)}): {'; '.join(parts) or 'nothing was measured'}."


def _recall(cell: Mapping[str, Any]) -> float | None:
    recall = cell["words"].get("recall")
    return None if recall is None else 100 * float(recall)


def _psnr(cell: Mapping[str, Any]) -> float | None:
    seen = Pictures.of(cell["pictures"])
    return None if seen is None else seen.psnr


def chart(cells: Sequence[Mapping[str, Any]]) -> str:
    """Two panels over the local steps, a line per batch size: tokens told, and PSNR of the pictures (SVG)."""
    steps = sorted({cell["steps"] for cell in cells})
    if len(steps) < 2:
        return ""
    figure = new_figure(7.2, 2.7)
    panels = (("Words: tokens told, %", _recall), ("Picture: PSNR, dB", _psnr))
    for axis, (title, value) in zip(figure.subplots(1, 2), panels, strict=True):
        for size in sorted({cell["batch_size"] for cell in cells}):
            points = [(c["steps"], value(c)) for c in cells if c["batch_size"] == size and value(c) is not None]
            if points:
                axis.plot(*zip(*sorted(points), strict=True), marker="o", label=f"batch of {size}")
        axis.set(title=title, xlabel="local steps", xscale="log")
        axis.set_xticks(steps, [str(step) for step in steps])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(fontsize="small")
    return svg_figure(figure)
