"""An objective: which examples a client's pages hold, and how one is given to the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from docleak.documents.page import Page, Question
from docleak.models.base import DocumentModel, Encoded


@dataclass(frozen=True)
class Example:
    """What n_k counts: the page's place among the client's, and the question, where the objective asks one."""

    page: int
    question: Question | None = None


class Objective(Protocol):
    """What a local round trains on. ``needs`` says, in words, what a page must hold to be an example."""

    @property
    def needs(self) -> str:
        """As in "a client without ... has nothing to train on"."""

    def prepare(self, model: DocumentModel, *, generator: torch.Generator) -> None:
        """Give the model, in place, what it lacks for the objective: before round 0, at the server and every silo."""

    def examples(self, pages: Sequence[Page]) -> list[Example]:
        """Every example of the pages, in order; an epoch goes over each once."""

    def encode(self, model: DocumentModel, page: Page, example: Example, rng: np.random.Generator) -> list[Encoded]:
        """An example about a fitted page as ``model.loss`` takes it: one input, or more, which count alike."""


@dataclass(frozen=True)
class QuestionAnswering:
    """Every question with an answer is an example, and n_k counts questions; nothing is random."""

    needs: str = "question with an answer"

    def prepare(self, model: DocumentModel, *, generator: torch.Generator) -> None:
        """Nothing: every model answers questions."""

    def examples(self, pages: Sequence[Page]) -> list[Example]:
        return [Example(i, question) for i in range(len(pages)) for question in pages[i].questions if question.answers]

    def encode(self, model: DocumentModel, page: Page, example: Example, rng: np.random.Generator) -> list[Encoded]:
        assert example.question is not None  # made by ``examples``
        return [model.encode(page, example.question)]
