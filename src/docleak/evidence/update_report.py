"""The report of an audit of captured updates: one self-contained HTML page, its numbers as JSON, and a summary."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docleak.errors import RunError
from docleak.evidence.update_verdicts import Pictures, doubts_of, name_of, sentences, severity_of, verdict_on
from docleak.files import reported, write_atomically
from docleak.metrics import PageScore
from docleak.report.pictures import picture
from docleak.report.templating import render
from docleak.runs.run import Run
from docleak.studies.gradient.pictures import ALTS, KINDS

THREAT = (
    "It is the server of a federated training, or whoever reads its traffic: it follows the protocol and looks.",
    "It has the weights it sent, what each client sent back, and the training configuration it gave the clients.",
    "Words: it is given nothing else. Pictures: it is given the blank templates, and the clients' questions and "
    "answers, as in the published attack; not the order in which they were trained on, nor dropout masks.",
    "It does not touch the model or the protocol, and sees no page.",
)
SECURE_THREAT = (
    "It is the server of a federated training with secure aggregation, or whoever reads its traffic: it follows the "
    "protocol and looks.",
    "It has the weights it sent, each client's masked words, the sum of the updates, and the training configuration.",
    "It does not conspire with clients, does not touch model or protocol, and sees no page.",
)
SECURE_LIMITS = (
    "That masked words look like noise here shows that this implementation masks them; that they cannot be unmasked "
    "rests on the protocol and its keys (docs/secure-aggregation.md).",
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


def write_report(run: Run) -> Path:
    """Write ``report.html`` and ``results.json``; returns the path of the report. RunError without a finished unit."""
    updates, cells = _records(run)
    secure = any("masked" in record or "sum" in record for record in updates)
    info = run.info
    context = {
        "run": {"path": str(run.path), **run.manifest()},
        "model": info.get("model", {}),
        "updates": [_shown(run, record) for record in updates],
        "verdict": verdict_on(updates, unfinished(info, updates)),
        "absent": [*absent(info), *missing(info, updates, cells)],
        "doubted": any(doubts_of(record) for record in updates[:1]),
        "cells": [{**cell, "seen": Pictures.of(cell["pictures"])} for cell in cells],
        "falls": falls(cells),
        "chart": chart(cells),
        "threat": SECURE_THREAT if secure else THREAT,
        "limits": (*SECURE_LIMITS, *LIMITS[:2], LIMITS[-1]) if secure else LIMITS,
    }
    html = render("updates.html.j2", **context)
    told = [{**record, "severity": severity_of(record), "label": severity_of(record).label} for record in updates]
    results = {
        "signature": info.get("signature"),
        "verdict": _told(info, updates),
        "updates": told,
        "cells": cells,
        "falls": falls(cells),
    }
    with reported(run.path / "report.html"):
        write_atomically(run.path / "results.json", (json.dumps(results, indent=1) + "\n").encode())
        write_atomically(run.path / "report.html", html.encode("utf-8", "backslashreplace"))
    return run.path / "report.html"


def summary_text(run: Run) -> str:
    """The verdicts, and how leakage falls."""
    updates, cells = _records(run)
    found = verdict_on(updates, unfinished(run.info, updates))
    lines = [f"{found.label}. {found.sentence}"]
    for record in updates:
        lines += [f"{name_of(record)}: {severity_of(record).label}", *(f"  {line}" for line in sentences(record))]
    return "\n".join([*lines, *absent(run.info), *missing(run.info, updates, cells), *falls(cells)])


def results_of(run: Run) -> dict[str, Any]:
    """The verdicts for machines: the overall one, and of each update its doubts and possible causes."""
    updates, cells = _records(run)
    silent = {"absent": absent(run.info), "missing": missing(run.info, updates, cells)}
    return {**_told(run.info, updates), **silent, "updates": [
        {"round": record["round"], "client": record["client"], "severity": severity_of(record),
         "label": severity_of(record).label, "doubts": doubts_of(record),
         "causes": record.get("check", {}).get("causes", [])}
        for record in updates
    ]}  # fmt: skip


def _told(info: Mapping[str, Any], updates: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    found = verdict_on(updates, unfinished(info, updates))
    return {"severity": found.severity, "label": found.label, "sentence": found.sentence}


def absent(info: Mapping[str, Any]) -> list[str]:
    """Clients of the capture's other rounds that sent nothing in this one."""
    names = info.get("absent", [])
    return [f"Nothing came in this round from {', '.join(names)}, who sent in another round."] if names else []


def unfinished(info: Mapping[str, Any], updates: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of updates that were to be audited and have no record yet."""
    done = {record["unit"] for record in updates}
    return [name_of(planned) for planned in info.get("planned", []) if planned["unit"] not in done]


def missing(
    info: Mapping[str, Any], updates: Sequence[Mapping[str, Any]], cells: Sequence[Mapping[str, Any]]
) -> list[str]:
    """What an interrupted audit has not done yet."""
    lines = []
    if names := unfinished(info, updates):
        lines.append(f"Not finished: {'; '.join(names)}. Run the same command again to go on.")
    if left := max(0, info.get("cells", 0) - len(cells)):
        lines.append(f"Of the table of steps and batches {left} of {info['cells']} cells are not finished.")
    return lines


def falls(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """How leakage falls with local steps and batch size, from the cells of the table."""
    if not cells:
        return []
    least = min(cells, key=lambda c: (c["steps"], c["batch_size"]))
    lines = []
    for other, what in (
        (_furthest(cells, "steps", least), "local steps"),
        (_furthest(cells, "batch_size", least), "pages in a batch"),
        (max(cells, key=lambda c: (c["steps"] * c["batch_size"], c["steps"])), "of both"),
    ):
        if other is not least:
            lines.append(_compared(least, other, what))
    return list(dict.fromkeys(lines))


def chart(cells: Sequence[Mapping[str, Any]]) -> str:
    """Two panels over the local steps, a line per batch size: tokens told, and PSNR of the pictures (SVG)."""
    if len({cell["steps"] for cell in cells}) < 2:
        return ""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 2.7), layout="constrained")
    FigureCanvasSVG(figure)
    panels = (("Words: tokens told, %", _recall), ("Picture: PSNR, dB", _psnr))
    for axis, (title, value) in zip(figure.subplots(1, 2), panels, strict=True):
        for size in sorted({cell["batch_size"] for cell in cells}):
            points = [(c["steps"], value(c)) for c in cells if c["batch_size"] == size and value(c) is not None]
            if points:
                axis.plot(*zip(*sorted(points), strict=True), marker="o", label=f"batch of {size}")
        axis.set(title=title, xlabel="local steps", xscale="log")
        steps = sorted({cell["steps"] for cell in cells})
        axis.set_xticks(steps, [str(step) for step in steps])
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(fontsize="small")
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "docleak"}):  # ids would be drawn anew in every report
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _records(run: Run) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    records = run.units()
    updates = [record for record in records if record.get("kind") == "update"]
    if not updates:
        raise RunError(f"{run.path} has no finished unit of an audit of updates. Run docleak audit --updates first.")
    cells = [record for record in records if record.get("kind") == "cell"]
    return updates, sorted(cells, key=lambda c: (c["steps"], c["batch_size"]))


def _shown(run: Run, record: Mapping[str, Any]) -> dict[str, Any]:
    images = record["images"]
    severity = severity_of(record)
    scores = [PageScore.from_json(page) for page in record["pictures"].get("score", ())]
    return {
        **record,
        "name": name_of(record),
        "severity": severity,
        "label": severity.label,
        "sentences": sentences(record),
        "trio": [
            {"kind": kind, "label": KINDS[kind], **picture(run.read_image(record["unit"], images[kind]), ALTS[kind])}
            for kind in KINDS
            if kind in images
        ],
        "read": [field for score in scores for field in score.fields],
    }


def _furthest(cells: Sequence[Mapping[str, Any]], key: str, least: Mapping[str, Any]) -> Mapping[str, Any]:
    other = "batch_size" if key == "steps" else "steps"
    return max((c for c in cells if c[other] == least[other]), key=lambda c: int(c[key]))


def _compared(least: Mapping[str, Any], other: Mapping[str, Any], what: str) -> str:
    parts = []
    if _recall(least) is not None and _recall(other) is not None:
        parts.append(f"tokens told go from {_recall(least):.0f} % to {_recall(other):.0f} %")
    if _psnr(least) is not None and _psnr(other) is not None:
        one, two = Pictures.of(least["pictures"]), Pictures.of(other["pictures"])
        assert one and two  # both have a PSNR
        parts.append(
            f"the first page's picture from {one.psnr:.1f} to {two.psnr:.1f} dB, fields read exactly from {one.exact} "
            f"of {one.scored} to {two.exact} of {two.scored}"
        )
    ends = (f"{_count(c['steps'], 'step')} of {_count(c['batch_size'], 'page')}" for c in (least, other))
    return f"With more {what} ({' to '.join(ends)}): {'; '.join(parts) or 'nothing was measured'}."


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def _recall(cell: Mapping[str, Any]) -> float | None:
    recall = cell["words"].get("recall")
    return None if recall is None else 100 * float(recall)


def _psnr(cell: Mapping[str, Any]) -> float | None:
    seen = Pictures.of(cell["pictures"])
    return None if seen is None else seen.psnr
