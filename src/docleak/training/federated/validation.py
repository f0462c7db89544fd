"""How a model does on documents that nobody trains on: its answers, its loss, and what questions are scored by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from docleak.documents.page import Page
from docleak.documents.pages import grouped
from docleak.errors import FederationError
from docleak.metrics.text import accuracy, anls
from docleak.models.base import DocumentModel, device_of, in_mode, pixels_of
from docleak.training.federated.local import batch_loss
from docleak.training.objectives.objective import Example, Objective, objective_of

#: Questions about one page that are answered at once.
ANSWERED_TOGETHER = 16


def answered(model: DocumentModel, page: Page) -> Iterator[tuple[float, float]]:
    """ANLS and accuracy per question of the page that has an answer."""
    questions = [question for question in page.questions if question.answers]
    fitted = model.fit(page)
    pixels = pixels_of(fitted.image, device_of(model))
    with in_mode(model.module):
        for start in range(0, len(questions), ANSWERED_TOGETHER):
            asked = questions[start : start + ANSWERED_TOGETHER]
            with torch.no_grad():
                answers = model.answer(
                    pixels.expand(len(asked), *pixels.shape), [model.encode(fitted, question) for question in asked]
                )
            for question, answer in zip(asked, answers, strict=True):
                yield anls(answer.text, question.answers), accuracy(answer.text, question.answers)


#: Answers to questions that are statements to confirm or refute, as data sets spell them.
VERDICTS = frozenset({"yes", "no", "true", "false", "entailed", "refuted", "0", "1"})


def mean_loss(
    model: DocumentModel, pages: Sequence[Page], objective: str, *, batch_size: int, rng: np.random.Generator
) -> float:
    """The mean loss of the model, in evaluation mode, over every example that the objective finds in ``pages``.

    ``rng`` draws what the objective draws (masks): the same one makes losses of several models comparable. Raises
    FederationError if there is no example.
    """
    task = objective_of(objective)
    examples = _examples(task, pages)
    total = 0.0
    with torch.no_grad(), in_mode(model.module):
        for start in range(0, len(examples), batch_size):
            batch = examples[start : start + batch_size]
            total += len(batch) * float(batch_loss(model, pages, batch, task, rng))
    return total / len(examples)


def document_losses(
    model: DocumentModel, pages: Sequence[Page], objective: str, *, batch_size: int, rng: np.random.Generator
) -> dict[str, tuple[float, int]]:
    """Document -> the sum of its examples' losses, and how many they are, in the order of ``pages`` and without
    documents that have no example; otherwise as ``mean_loss``."""
    task = objective_of(objective)
    examples = grouped(_examples(task, pages), lambda one: pages[one.page].document or f"page {one.page}")
    losses = {}
    with torch.no_grad(), in_mode(model.module):
        for document, of in examples.items():
            batches = [of[start : start + batch_size] for start in range(0, len(of), batch_size)]
            total = sum(len(batch) * float(batch_loss(model, pages, batch, task, rng)) for batch in batches)
            losses[document] = (total, len(of))
    return losses


def _examples(task: Objective, pages: Sequence[Page]) -> Sequence[Example]:
    if examples := task.examples(pages):
        return examples
    raise FederationError(f"{len(pages)} pages have no {task.needs} to validate on.")


def metric_of(pages: Sequence[Page]) -> str:
    """``accuracy`` where all answers are verdicts (TabFact), else ``anls`` (Nguyen and Karatzas, 2024, Table 1)."""
    answers = {answer.lower() for page in pages for question in page.questions for answer in question.answers}
    return "accuracy" if answers and answers <= VERDICTS else "anls"
