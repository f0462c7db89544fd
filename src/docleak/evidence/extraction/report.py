"""The report of a CDMI game: one self-contained HTML page, its numbers as JSON, and the verdict in words."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow

from docleak.attacks.weights.membership import perplexity
from docleak.documents.page import Image
from docleak.errors import RunError
from docleak.evidence.extraction.curves import draw_curves, draw_reliability
from docleak.evidence.extraction.exhibits import COPIES, EXHIBITS
from docleak.evidence.extraction.shadow import CALIBRATION, EVENTS
from docleak.evidence.extraction.table import GameTable, as_json, read_table
from docleak.evidence.extraction.verdict import Verdict, of_answers, verdict_of
from docleak.files import read_stored, reported, write_atomically
from docleak.report.pictures import picture
from docleak.report.templating import render
from docleak.runs.run import Run

LIMITS = (
    "An attack that fails is not all attacks. The fields were read token by token, from a guessed vocabulary of one "
    "public model; an adversary with a better one reads more.",
    "The adversary is told how many tokens a field has, and where they stand. Without that it reads less.",
    "Copies are counted among the pages of this audit. What the model's start was trained on is not known here.",
    "“Read exactly” is judged on tokens: a field that differs in one sign counts as not read, though a person may "
    "know it.",
    "With few documents intervals are wide: a rate of 0 of 100 fields still allows a few in a hundred.",
)
#: (what, name in the table, its baseline's name or ""), in the order of the report.
MEASURES = (
    ("IpF: how many times better than public data alone", "improvement_factor", ""),
    ("Fields read exactly, one attempt", "perfect", "baseline_perfect"),
    ("Tokens wrong, one attempt (Hamming)", "hamming", "baseline_hamming"),
    ("Levenshtein distance, one attempt", "levenshtein", "baseline_levenshtein"),
    ("Jaro-Winkler distance, one attempt", "jaro_winkler", "baseline_jaro_winkler"),
    ("Fields read exactly, best attempt by its own choice", "accuracy_at_100%", "baseline_accuracy_at_100%"),
    ("  among the surest 5 %", "accuracy_at_5%", "baseline_accuracy_at_5%"),
    ("  among the surest 1 %", "accuracy_at_1%", "baseline_accuracy_at_1%"),
    ("AccAUC", "accuracy_auc", "baseline_accuracy_auc"),
    ("HamAAC", "hamming_aac", "baseline_hamming_aac"),
)
#: Names of the table whose values are shares.
SHARES = ("perfect", "hamming", "levenshtein", "jaro_winkler", "accuracy_at_100%", "accuracy_at_5%", "accuracy_at_1%")


def write_report(run: Run, *, rng: np.random.Generator) -> Path:
    """Write ``report.html`` and ``results.json`` into the run, from what is on disk; returns the report's path.

    RunError if no field is finished.
    """
    table = read_table(run, rng=rng)
    copies, answers = _saved(run, COPIES, {}), _saved(run, CALIBRATION, None)
    found = section(run, table)
    verdict = found["verdict"]
    html = render(
        "extraction.html.j2",
        **found,
        run={"path": str(run.path), **run.manifest()}, limits=LIMITS,
        curves=picture(_decoded(draw_curves(table)), "AccAt and HamAt of the attack and of public data alone"),
        answers=answers, uncalibrated=run.info.get("uncalibrated", ""),
        diagram=picture(_decoded(draw_reliability(answers)), "What was stated and what came true") if answers else None,
        ranked=[
            {"field": field, "copies": copies.get(field.name), "stated": stated_of(answers, field.name)}
            for field in table.fields
        ],
        about=about(run), calls=table.calls, seconds=table.seconds,
    )  # fmt: skip
    results = {
        "verdict": verdict.headline, "severity": verdict.severity, **as_json(table), "copies": copies,
        "calibration": answers,
    }  # fmt: skip
    with reported(run.path / "report.html"):
        write_atomically(run.path / "results.json", (json.dumps(results, indent=1) + "\n").encode())
        write_atomically(run.path / "report.html", html.encode("utf-8", "backslashreplace"))
    return run.path / "report.html"


def section(run: Run, table: GameTable) -> dict[str, Any]:
    """What is said and shown of a finished game wherever it is reported: verdict, numbers, fields, who could do it."""
    units = {str(unit["unit"]): unit for unit in run.units() if "attempts" in unit}
    copies, answers = _saved(run, COPIES, {}), _saved(run, CALIBRATION, None)
    return {
        "verdict": verdict_in(run, table),
        "threat": run.info.get("threat", ""),
        "measures": [_measure(table, *row) for row in MEASURES],
        "fields": len(table.fields),
        "documents": table.estimates["improvement_factor"].groups,
        "exhibits": [
            {**exhibit(run, i, units[name], copies.get(name)), "stated": stated_of(answers, name)}
            for i, name in enumerate(_saved(run, EXHIBITS, []))
        ],
    }


def verdict_in(run: Run, table: GameTable) -> Verdict:
    """The verdict on a game; one that was interrupted gives no all-clear."""
    planned = int(run.info.get("secrets", 0))
    found = verdict_of(table, _saved(run, COPIES, {}), control=bool(run.config.get("control")), planned=planned)
    answers = _saved(run, CALIBRATION, None)
    return replace(found, sentences=(*found.sentences, *of_answers(answers))) if answers else found


def stated_of(answers: Mapping[str, Any] | None, field: str) -> dict[str, float] | None:
    """Event -> the probability that the adversary states for a field; None where it was not calibrated."""
    if answers is None:
        return None
    events = {event: answers["events"][event]["stated"] for event in EVENTS}
    return {event: stated[field] for event, stated in events.items() if field in stated}


def about(run: Run) -> list[str]:
    """What was attacked, what the public model is, and which fields were not played, in sentences."""
    config, info = run.config, run.info
    card = info.get("card", {})
    lines = []
    if config.get("target"):
        lines.append(f"The model is {config['target']}, as it was given; its pages are {config['documents']}.")
    elif "target" in card:
        best = card["target"]["best"].get(config["criterion"], card["target"]["epochs"][-1])
        where = "public pages, as a control" if config.get("control") else f"{card['split']['private']} private pages"
        lines.append(
            f"The model ({config['model']}, task {config['task']}) was trained by docleak on {where}; it is that of "
            f"epoch {best['number']}, validation accuracy {best['validation']['accuracy']:.3f}."
        )
    if "public" in card:
        found = card["public"]["best"]["precision"]["validation"]["accuracy"]
        lines.append(
            f"The adversary's public model was trained on {card['split']['public']} other pages; it guesses "
            f"{found:.0%} of masked tokens on pages that it has not seen."
        )
    if left := info.get("left_out"):
        parts = ", ".join(f"{count} {reason}" for reason, count in left.items())
        lines.append(f"Private fields that were not played: {parts}. Nothing is known of them.")
    return lines


def exhibit(run: Run, number: int, unit: Mapping[str, Any], copies: Mapping[str, Any] | None) -> dict[str, Any]:
    """One field as the adversary saw it, its guesses with their confidence, and for the owner the truth."""
    about_field = f"the field {str(unit['key']).replace('_', ' ')} ({number + 1})"
    return {
        "key": str(unit["key"]).replace("_", " "),
        "page": unit["page"],
        "value": unit["value"],
        "truth": [{"text": _shown(piece), "right": True} for piece in _pieces(unit)],
        "whole": picture(_read(run, f"exhibits/{number}.png"), f"Page {unit['page']} with {about_field} taken off"),
        "near": picture(_read(run, f"exhibits/{number}-near.png"), f"The lines around {about_field} of {unit['page']}"),
        "guesses": _guesses(unit, "attempts"),
        "baseline": _guesses(unit, "baseline")[0],
        "attempts": len(unit["attempts"]),
        "copies": copies,
        "again": len(unit["repeats"]),
    }


def _guesses(unit: Mapping[str, Any], side: str, *, most: int = 3) -> list[dict[str, Any]]:
    """The different readings, the adversary's surest first; ``times`` of how many attempts each was made."""
    found: dict[tuple[int, ...], dict[str, Any]] = {}
    for attempt in unit[side]:
        one = found.setdefault(tuple(attempt["tokens"]), {
            "text": attempt["text"], "times": 0, "confidence": 1 / perplexity(attempt["target"]),
            "pieces": [
                {"text": _shown(piece), "right": ours == theirs}
                for piece, ours, theirs in zip(_pieces(attempt), attempt["tokens"], unit["tokens"], strict=True)
            ],
        })  # fmt: skip
        one["times"] += 1
        one["right"] = sum(piece["right"] for piece in one["pieces"])
    return sorted(found.values(), key=lambda guess: (-guess["times"], -guess["confidence"]))[:most]


def _measure(table: GameTable, words: str, name: str, baseline: str) -> dict[str, Any]:
    return {
        "words": words.strip(),
        "inner": words.startswith(" "),
        "share": name in SHARES,
        "ours": table.estimates[name],
        "theirs": table.estimates[baseline] if baseline else None,
    }


def _pieces(record: Mapping[str, Any]) -> list[str]:
    """Word pieces of a field or an attempt; their numbers in a run of before they were saved."""
    return list(record.get("pieces") or map(str, record["tokens"]))


def _shown(piece: str) -> str:
    """A word piece for people: one that begins a word has a space before it."""
    return piece.removeprefix("##") if piece.startswith("##") else f" {piece}"


def _saved(run: Run, name: str, missing: Any) -> Any:
    file = run.path / name
    if not file.is_file():
        return missing
    return read_stored(file, advice="Delete it and rerun the command.")


def _read(run: Run, relative: str) -> Image:
    file = run.path / relative
    try:
        with Pillow.open(file) as image:
            return np.asarray(image.convert("RGB"), dtype=np.uint8)
    except (OSError, ValueError) as fault:
        raise RunError(
            f"{file} cannot be read ({fault}). Delete {EXHIBITS} beside it and rerun the command."
        ) from fault


def _decoded(png: bytes) -> Image:
    with Pillow.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"), dtype=np.uint8)
