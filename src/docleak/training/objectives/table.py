"""The objectives by name, as a plan, a command line or a message to a silo gives them."""

from __future__ import annotations

from dataclasses import replace

from docleak.errors import FederationError
from docleak.training.objectives.denoising import (
    LAYOUT_MODELING,
    TEXT_LAYOUT_MODELING,
    TEXT_MODELING,
    Denoising,
    SelfPretraining,
)
from docleak.training.objectives.objective import Objective, QuestionAnswering

QUESTIONS = "qa"
TASKS = {task.name: task for task in (TEXT_MODELING, LAYOUT_MODELING, TEXT_LAYOUT_MODELING)}


def objective_of(text: str) -> Objective:
    """``qa``: questions and answers. ``tm``, ``lm``, ``tlm``, or several as in ``tm+lm+tlm``: self-pretraining.

    A task's share of masked words is the paper's unless given, as in ``tm@0.3+tlm``. FederationError for other names,
    for a task named twice, and for a share that is none.
    """
    if text == QUESTIONS:
        return QuestionAnswering()
    tasks = tuple(_task(part) for part in text.split("+"))
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise FederationError(
            f"objective {text!r} names a task twice; expected each of {', '.join(TASKS)} at most once."
        )
    return SelfPretraining(tasks)


def _task(text: str) -> Denoising:
    name, at, rate = text.partition("@")
    if name not in TASKS:
        raise FederationError(
            f"unknown objective {text!r}; known: {QUESTIONS}, or any of {', '.join(TASKS)} with + between them."
        )
    if not at:
        return TASKS[name]
    try:
        return replace(TASKS[name], mask_rate=float(rate))
    except ValueError as error:
        raise FederationError(
            f"objective {text!r}: {rate!r} is no share of words; expected a number, as 0.3."
        ) from error
