"""The calibrated answer: what the adversary learns of its own game on public pages, and how true its answers are.

OUT/calibration.json     per field the stated probabilities, and their reliability, which only the owner can measure
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from docleak.attacks.weights import Attempt, choose
from docleak.attacks.weights.calibration import Floats, at_least, fit_calibrator
from docleak.files import read_stored, reported, write_json
from docleak.metrics.calibration import brier, calibration_error, reliability
from docleak.metrics.extraction import Numbers, over_documents
from docleak.runs.run import Run
from docleak.studies.weights.table import attempt_of, fields_of, score_of

CALIBRATION = "calibration.json"
#: What may be true of a reading, and the share of its tokens that is right then at least.
EVENTS: dict[str, float] = {"half": 0.5, "whole": 1.0}
TOKEN = "token"


def calibrate(run: Run, *, rng: np.random.Generator) -> None:
    """Fit on the fields of the adversary's own game, state probabilities for the others, measure them; write
    CALIBRATION."""
    metric = str(run.config["metric"])
    known, asked = (fields_of(run, shadow=shadow) for shadow in (True, False))
    readings, questions = ([_reading(unit, metric) for unit in units] for units in (known, asked))
    taught, came_true = (
        [_right(unit, *reading) for unit, reading in zip(units, read, strict=True)]
        for units, read in ((known, readings), (asked, questions))
    )
    calibrator = fit_calibrator(readings, taught)
    tokens = [calibrator.tokens(*reading) for reading in questions]
    documents = [str(unit["document"]) for unit in asked]
    owners = [name for name, rights in zip(documents, came_true, strict=True) for _ in rights]
    single, flat = ([right for rights in fields for right in rights] for fields in (taught, came_true))
    events = {TOKEN: measured(np.concatenate(tokens), flat, single, owners, rng=rng)}
    for event, share in EVENTS.items():
        stated = [at_least(share, probabilities) for probabilities in tokens]
        known_true, true = ([float(np.mean(rights)) >= share for rights in fields] for fields in (taught, came_true))
        events[event] = measured(np.array(stated), true, known_true, documents, rng=rng)
        events[event]["stated"] = {str(unit["unit"]): p for unit, p in zip(asked, stated, strict=True)}
    with reported(run.path):
        write_json(run.path / CALIBRATION, {"calibrator": asdict(calibrator), "shadow": len(known), "events": events})


def answers_in(run: Run) -> dict[str, Any] | None:
    """What ``calibrate`` wrote, or None where it did not."""
    file = run.path / CALIBRATION
    return dict(read_stored(file, advice="Delete it and rerun the command.")) if file.is_file() else None


def measured(
    stated: Floats, true: Sequence[bool], known: Sequence[bool], documents: Sequence[str], *, rng: np.random.Generator
) -> dict[str, Any]:
    """Brier score and ECE of what was stated and of one constant, and by how much the former's Brier score is lower.

    The constant is what an adversary says of every field who only counted what was right of ``known``, its own: the
    share, never 0 or 1.
    """
    constant = (sum(known) + 1) / (len(known) + 2)
    p, y, same = stated, np.array(true, dtype=float), np.full(len(stated), constant)

    def gained(chosen: Numbers) -> Floats:
        before, after = (((said[chosen] - y[chosen]) ** 2).mean(-1) for said in (same, p))  # Brier scores
        return np.asarray(before - after)

    return {
        "count": len(y),
        "true": int(y.sum()),
        "constant": constant,
        "brier": brier(p, y),
        "constant_brier": brier(same, y),
        "gained": asdict(over_documents(documents, gained, rng=rng)),
        "ece": calibration_error(p, y),
        "constant_ece": calibration_error(same, y),
        "bins": [asdict(one) for one in reliability(p, y)],
        "shadow_true": sum(known),
        "shadow_count": len(known),
    }


def _reading(unit: Mapping[str, Any], metric: str) -> tuple[list[Attempt], int]:
    attempts = unit["attempts"]
    return [attempt_of(one) for one in attempts], choose(attempts, partial(score_of, metric=metric))


def _right(unit: Mapping[str, Any], attempts: Sequence[Attempt], chosen: int) -> list[bool]:
    return [a == b for a, b in zip(unit["tokens"], attempts[chosen].tokens, strict=True)]
