"""Objectives: which examples a client's pages hold, and how one is given to the model; questions, or the pages
themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from docleak.documents.page import Page, Question
from docleak.errors import FederationError
from docleak.models.base import DocumentModel, Encoded
from docleak.models.t5 import T5Reader
from docleak.models.words_beside import FRAME
from docleak.training.objectives.tasks import LAYOUT_MODELING, TEXT_LAYOUT_MODELING, TEXT_MODELING, Denoising, tasks_of


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


def denoised(model: T5Reader, page: Page, task: Denoising, masked: Collection[int]) -> Encoded:
    """A page with the words ``masked`` (indices) taken out as the task says, and the labels that bring them back.

    Sentinels, places and masked words have the zero box. ``words_seen`` are those in the input or the labels: what does
    not fit in ``max_tokens`` is left out word by word, from the page's end. Without masked words the labels are the end
    token alone. ModelError if the model has no layout tokens.
    """
    tokens = model.layout_tokens
    ids = model.ids(task.prompt)
    boxes = [list(model.config.prompt_box)] * len(ids)
    owners = [FRAME] * len(ids)
    labels: list[int] = []
    room = model.config.max_tokens - 1
    number = seen = 0
    for index, (text, box) in enumerate(model.words(page)):
        if index in masked:
            place = tokens.place(page.words[index], page)
            before, kept, behind, wanted = task.parts(tokens, number, text, place)
            number, box = number + 1, [0, 0, 0, 0]
        else:
            before, kept, behind, wanted = [], text, [], []
        shown = [*before, *kept, *behind]
        if len(ids) + len(shown) > room:
            break
        seen = index + 1
        ids += shown
        boxes += [box] * len(shown)
        owners += [FRAME] * len(before) + [index] * len(kept) + [FRAME] * len(behind)
        labels += wanted
    end = model.tokenizer.eos_token_id
    tensors = {
        "input_ids": torch.tensor([*ids, end]),
        "bbox": torch.tensor([*boxes, [0, 0, 0, 0]]),
        "word_ids": torch.tensor([*owners, FRAME]),
        "labels": torch.tensor([*labels, end]),
    }
    return Encoded(tensors, tuple(model.tokenizer.convert_ids_to_tokens([*ids, end])), tuple(range(seen)))


@dataclass(frozen=True)
class SelfPretraining:
    """Masked words, to be written again (Nguyen and Karatzas, 2024, section 3.3): every page with words is an example,
    masked anew each time, once for each of ``tasks``; n_k counts these pages.

    The paper masks tokens that have boxes, taken for OCR words here: all pieces of a word go together, and share a
    sentinel. Left open, and settled as in the authors' public code: an input begins with its task's name; of the words
    drawn on a page, the first L_M are masked; a masked word that stays in the input has the zero box. Unlike that code,
    a word that does not fit in the input is not in the output either, the output is not cut at 256 tokens (so that
    layout modeling reaches L_M), and text modeling has no closing sentinel, as printed.
    The paper's n_k is "the local data size", of pretraining nothing more; its public code averages the tasks' losses
    over a batch, as here.
    FederationError for a model that is no T5 reader, ModelError for one without layout tokens (see ``prepare``).
    """

    tasks: tuple[Denoising, ...] = (TEXT_MODELING, LAYOUT_MODELING, TEXT_LAYOUT_MODELING)
    needs: str = "page with words"

    def prepare(self, model: DocumentModel, *, generator: torch.Generator) -> None:
        """Layout tokens, whose rows are drawn with ``generator``; nothing for a model that has them."""
        _reader(model).add_layout_tokens(generator=generator)

    def examples(self, pages: Sequence[Page]) -> list[Example]:
        return [Example(i) for i, page in enumerate(pages) if page.words]

    def encode(self, model: DocumentModel, page: Page, example: Example, rng: np.random.Generator) -> list[Encoded]:
        reader = _reader(model)
        return [denoised(reader, page, task, task.masked(len(page.words), rng)) for task in self.tasks]


def _reader(model: DocumentModel) -> T5Reader:
    if not isinstance(model, T5Reader):
        raise FederationError(
            f"self-pretraining takes a T5 reader (vt5 or fedocvqa), and {model.name!r} is a {model.architecture}. "
            "Train it on questions (objective 'qa')."
        )
    return model


def objective_of(text: str) -> Objective:
    """``qa``: questions and answers. ``tm``, ``lm``, ``tlm``, or several as in ``tm+lm+tlm``: self-pretraining.

    A task's share of masked words is the paper's unless given, as in ``tm@0.3+tlm``. FederationError as of
    ``tasks_of``.
    """
    tasks = tasks_of(text)
    return SelfPretraining(tasks) if tasks else QuestionAnswering()
