"""The report of an audit of captured updates: one self-contained HTML page, its numbers as JSON, and a summary."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docleak.documents.storage import reported, write_atomically
from docleak.errors import RunError
from docleak.evidence.report_pictures import ALTS, KINDS, picture
from docleak.evidence.report_words import LABELS
from docleak.evidence.run import Run
from docleak.evidence.templating import percent, render
from docleak.metrics import PageScore

#: Share of tokens, with at least this precision, from which the words count as told.
TOLD, SURE = 0.5, 0.8
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


@dataclass(frozen=True)
class Pictures:
    """Private fields read over all pages of an attack, and the first page's PSNR."""

    exact: int
    blank: int
    legible: int
    scored: int
    psnr: float | None

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> Pictures | None:
        """From a unit's record; None where nothing was attacked."""
        if "score" not in saved:
            return None
        rebuilt, blank, truth = (
            [f for page in saved[key] for f in PageScore.from_json(page).fields]
            for key in ("score", "floor", "ceiling")
        )
        return cls(
            exact=sum(bool(f.exact) for f in rebuilt),
            blank=sum(bool(f.exact) for f in blank),
            legible=sum(bool(f.exact) for f in truth),
            scored=sum(f.exact is not None for f in rebuilt),
            psnr=saved["score"][0]["psnr"],
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
        "cells": [{**cell, "seen": Pictures.of(cell["pictures"])} for cell in cells],
        "falls": falls(cells),
        "chart": chart(cells),
        "threat": SECURE_THREAT if secure else THREAT,
        "limits": (*SECURE_LIMITS, *LIMITS[:2], LIMITS[-1]) if secure else LIMITS,
    }
    html = render("updates.html.j2", **context)
    results = {"signature": info.get("signature"), "updates": updates, "cells": cells, "falls": falls(cells)}
    with reported(run.path / "report.html"):
        write_atomically(run.path / "results.json", (json.dumps(results, indent=1) + "\n").encode())
        write_atomically(run.path / "report.html", html.encode("utf-8", "backslashreplace"))
    return run.path / "report.html"


def summary_text(run: Run) -> str:
    """The verdicts, and how leakage falls."""
    updates, cells = _records(run)
    lines = [line for record in updates for line in (f"{_name(record)}:", *(f"  {s}" for s in sentences(record)))]
    return "\n".join([*lines, *falls(cells)])


def sentences(record: Mapping[str, Any]) -> list[str]:
    """What one captured update gave away, in plain words: its words, then its pictures."""
    if "masked" in record:
        return [_of_masks(record["masked"]), _of_words(record["words"], masked=True)]
    if "sum" in record:
        return [f"The sum of all silos' updates, which is all that the server learns. {_of_words(record['words'])}"]
    return [_of_words(record["words"]), _of_pictures(record["pictures"])]


def severity_of(record: Mapping[str, Any]) -> str:
    """A key of LABELS, by the worse of words and pictures."""
    words, seen = record["words"], Pictures.of(record["pictures"])
    if "masked" in record and record["masked"].get("hidden"):
        return "none"
    told = "recall" in words and (words["precision"] or 0) >= SURE and (words["recall"] or 0) >= TOLD
    if told or (seen and seen.scored and seen.exact - seen.blank >= seen.scored / 2):
        return "severe"
    some = "recall" in words and (words["precision"] or 0) >= SURE and words["right"] > 0
    if some or (seen and seen.exact > seen.blank):
        return "partial"
    return "none" if seen or "recall" in words else "unknown"


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
        "name": _name(record),
        "severity": severity,
        "label": LABELS[severity],
        "sentences": sentences(record),
        "trio": [
            {"kind": kind, "label": KINDS[kind], **picture(run.read_image(record["unit"], images[kind]), ALTS[kind])}
            for kind in KINDS
            if kind in images
        ],
        "read": [field for score in scores for field in score.fields],
    }


def _name(record: Mapping[str, Any]) -> str:
    return f"Round {record['round']}, client {record['client']}"


def _of_masks(found: Mapping[str, Any]) -> str:
    if "failed" in found:
        return f"Masked words; they could not be compared with the silo's update: {found['failed'].rstrip('.')}."
    verdict = "noise to the server" if found["hidden"] else "NOT HIDDEN: do not trust this aggregation"
    return (
        f"Masked words: {verdict}. Over {found['numbers']:,} numbers their correlation with the update that this silo "
        f"trained is {found['correlation']:+.5f} (of noise: {found['chance']:.5f} either way), and they are spread as "
        f"evenly as chance spreads them with probability {found['p_uniform']:.2g}."
    )


def _of_words(words: Mapping[str, Any], *, masked: bool = False) -> str:
    if masked and "failed" not in words:
        chance, among = words["control"]
        held, of = words["fields"]
        return (
            f"Words, attacked all the same: {percent(words['precision'])} of what is read is right; "
            f"{percent(held / of if of else None)} of the private fields seem told, and "
            f"{percent(chance / among if among else None)} of the fields of made-up pages that nobody has."
        )
    if "failed" in words:
        return f"Words: not read: {words['failed'].rstrip('.')}."
    line = (
        f"Words: of {words['true']} different tokens that the client trained on, the server reads {words['right']} "
        f"({percent(words['recall'])}), out of {words['tokens']} of the vocabulary; "
        f"{percent(words['precision'])} of what it reads is right."
    )
    held, of = words["fields"]
    if of:
        chance, among = words["control"]
        line += (
            f" All tokens of {held} of {of} private fields are told; of the fields of made-up pages that nobody has, "
            f"{percent(chance / among if among else None)}."
        )
    for axis, places in words["places"].items():
        line += f" Coordinates {axis}: {places['right']} of {places['found']} read are right."
    return line


def _of_pictures(saved: Mapping[str, Any]) -> str:
    seen = Pictures.of(saved)
    if seen is None:
        return f"Pictures: not attacked: {saved['why'].rstrip('.')}."
    psnr = "" if seen.psnr is None else f", {seen.psnr:.1f} dB on the first page"
    return (
        f"Pictures: {seen.exact} of {seen.scored} private fields read exactly{psnr} (blank template: {seen.blank}, "
        f"true page: {seen.legible})."
    )


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
