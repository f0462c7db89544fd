"""Self-pretraining's three tasks, and the objectives' names as a plan, a command line or a message to a silo has them.

Without PyTorch: what a plan names is looked at where nothing is trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from docleak.errors import FederationError, refuse, those
from docleak.models.layout_tokens import SENTINELS, LayoutTokens

QUESTIONS = "qa"


@dataclass(frozen=True)
class Denoising:
    """One task: ``mask_rate`` (p_m) of the words, at most ``most_masked`` (L_M) of them.

    ``shows`` is what the input still has of a masked word; the output has the rest of it. ``prompt`` begins the input.
    """

    name: str
    prompt: str
    shows: Literal["place", "text", "nothing"]
    mask_rate: float
    most_masked: int = SENTINELS

    def __post_init__(self) -> None:
        faults = those(
            (not 0 < self.mask_rate <= 1, f"mask_rate is {self.mask_rate}; expected more than 0, at most 1"),
            (not 1 <= self.most_masked <= SENTINELS,
             f"most_masked is {self.most_masked}; expected 1 to {SENTINELS}, the number of sentinels"),
        )  # fmt: skip
        refuse(FederationError, faults, f"objective {self.name!r}: ")

    def masked(self, words: int, rng: np.random.Generator) -> list[int]:
        """M: which of so many words are masked, in order."""
        return [int(i) for i in np.flatnonzero(rng.random(words) < self.mask_rate)[: self.most_masked]]

    def parts(
        self, tokens: LayoutTokens, number: int, text: list[int], place: list[int]
    ) -> tuple[list[int], list[int], list[int], list[int]]:
        """What stands for the ``number``-th masked word: before, of and behind it in the input; and in the output."""
        if self.shows == "place":
            opening = tokens.text[number]
            return [opening, *place], [], [], [opening, *text]
        if self.shows == "text":
            opening = tokens.layout[number]
            return [opening], text, [tokens.layout_end[number]], [opening, *place]
        opening = tokens.text_layout[number]
        return [opening], [], [], [opening, *text, *place]


TEXT_MODELING = Denoising("tm", "text modeling.", "place", 0.5)
LAYOUT_MODELING = Denoising("lm", "layout modeling.", "text", 0.75)
TEXT_LAYOUT_MODELING = Denoising("tlm", "joint text-layout modeling.", "nothing", 0.15)
TASKS = {task.name: task for task in (TEXT_MODELING, LAYOUT_MODELING, TEXT_LAYOUT_MODELING)}


def tasks_of(text: str) -> tuple[Denoising, ...]:
    """The tasks that an objective's name has (see ``objective.objective_of``), none for ``qa``.

    FederationError for other names, for a task named twice, and for a share that is none.
    """
    if text == QUESTIONS:
        return ()
    tasks = tuple(_task(part) for part in text.split("+"))
    names = [task.name for task in tasks]
    if len(set(names)) < len(names):
        raise FederationError(
            f"objective {text!r} names a task twice; expected each of {', '.join(TASKS)} at most once."
        )
    return tasks


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
