"""The calibrated answer: a shadow game that the adversary plays on its own pages, and how true its answers are.

OUT/shadow/              the shadow game, a run of its own
OUT/calibration.json     per field the stated probabilities, and their reliability, which only the owner can measure
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from docleak.attacks.weights import Attempt, choose, plausibility
from docleak.attacks.weights.calibration import Floats, at_least, fit_calibrator
from docleak.errors import DocumentError, ModelError
from docleak.evidence.extraction.game import Game, GameConfig, ShadowConfig, trainings
from docleak.evidence.extraction.own import OwnConfig, public_start
from docleak.evidence.extraction.play import AnyConfig, open_game, play
from docleak.files import reported, write_json
from docleak.metrics.calibration import brier, calibration_error, reliability
from docleak.metrics.extraction import Numbers, over_documents
from docleak.runs.run import Run

SHADOW, CALIBRATION = "shadow", "calibration.json"
#: What may be true of a reading, and the share of its tokens that is right then at least.
EVENTS: dict[str, float] = {"half": 0.5, "whole": 1.0}
TOKEN = "token"
Reading = tuple[list[Attempt], int]


def shadow_config(config: AnyConfig, game: Game) -> AnyConfig:
    """The game that the adversary of ``game`` can play by itself: its public pages only, trained like the target."""
    if isinstance(config, GameConfig):
        return ShadowConfig(config)
    assert isinstance(config, OwnConfig)
    task, start = game.target.task, config.start or public_start("", game.target).name
    return GameConfig(
        documents=config.public, pages=config.pages, model=start, task=task,
        bimodal=game.target.bimodal, fields=config.fields, attempts=config.attempts, metric=config.metric,
        repeats=config.repeats, validation=config.validation, seed=config.seed, attack=config.attack,
        target_training=trainings(task, epochs=0, learning_rate=config.public_training.learning_rate)[0],
        public_training=config.public_training,
    )  # fmt: skip


def play_shadow(run: Run, config: AnyConfig, game: Game, **how: Any) -> str:
    """Play the shadow game of a finished ``run`` with the options of ``play``, and write CALIBRATION.

    Returns "", or why there is no answer: too few public documents, no fields on them, or no labels for the task.
    """
    try:
        own = shadow_config(config, game)
        shadow = open_game(own, run.path / SHADOW)
        play(shadow, own, **how)
    except (DocumentError, ModelError) as fault:
        run.write_info("uncalibrated", str(fault))
        return str(fault)
    calibrate(run, shadow, rng=np.random.default_rng(game.config.seed))
    return ""


def calibrate(run: Run, shadow: Run, *, rng: np.random.Generator) -> None:
    """Fit on the fields of ``shadow``, state probabilities for those of ``run``, measure them; write CALIBRATION."""
    metric = str(run.config["metric"])
    known, asked = (finished_fields(each) for each in (shadow, run))
    readings, questions = ([_reading(unit, metric) for unit in units] for units in (known, asked))
    taught, came_true = (
        [_right(unit, reading) for unit, reading in zip(units, read, strict=True)]
        for units, read in ((known, readings), (asked, questions))
    )
    calibrator = fit_calibrator(readings, taught)
    tokens = [calibrator.tokens(*reading) for reading in questions]
    documents = [str(unit["document"]) for unit in asked]
    owners = [name for name, each in zip(documents, came_true, strict=True) for _ in each]
    single = [one for each in taught for one in each]
    flat = [one for each in came_true for one in each]
    events: dict[str, Any] = {
        TOKEN: measured(np.concatenate(tokens), flat, _constant(single), owners, rng=rng) | _counts(single)
    }
    for event, share in EVENTS.items():
        stated = [at_least(share, each) for each in tokens]
        known_true, true = ([float(np.mean(each)) >= share for each in rights] for rights in (taught, came_true))
        events[event] = measured(np.array(stated), true, _constant(known_true), documents, rng=rng) | _counts(
            known_true
        )
        events[event]["stated"] = {str(unit["unit"]): p for unit, p in zip(asked, stated, strict=True)}
    with reported(run.path):
        write_json(run.path / CALIBRATION, {"calibrator": asdict(calibrator), "shadow": len(known), "events": events})


def measured(
    stated: Floats, true: Sequence[bool], constant: float, documents: Sequence[str], *,
    rng: np.random.Generator,
) -> dict[str, Any]:  # fmt: skip
    """Brier score and ECE of what was stated and of one constant, and by how much the former's Brier score is lower."""
    p, y, same = stated, np.array(true, dtype=float), np.full(len(stated), constant)

    def gained(chosen: Numbers) -> float:
        return brier(same[chosen], y[chosen]) - brier(p[chosen], y[chosen])

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
    }


def finished_fields(run: Run) -> list[dict[str, Any]]:
    """The finished fields of a game."""
    return [unit for unit in run.units() if "attempts" in unit]


def _reading(unit: Mapping[str, Any], metric: str) -> Reading:
    attempts = [Attempt(tuple(a["tokens"]), tuple(a["target"]), tuple(a["public"])) for a in unit["attempts"]]
    return attempts, choose(attempts, partial(plausibility, metric=metric))


def _right(unit: Mapping[str, Any], reading: Reading) -> list[bool]:
    attempts, chosen = reading
    return [a == b for a, b in zip(unit["tokens"], attempts[chosen].tokens, strict=True)]


def _counts(right: Sequence[bool]) -> dict[str, int]:
    return {"shadow_true": sum(right), "shadow_count": len(right)}


def _constant(right: Sequence[bool]) -> float:
    """What an adversary says of every field who only counted on its shadow: the share, never 0 or 1."""
    return (sum(right) + 1) / (len(right) + 2)
