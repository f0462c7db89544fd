"""A model's answers to a page's questions, scored."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from docleak.documents.page import Page
from docleak.metrics.text import accuracy, anls
from docleak.models.base import DocumentModel, pixels_of

#: Questions about one page that are answered at once.
ANSWERED_TOGETHER = 16


def answered(model: DocumentModel, page: Page) -> Iterator[tuple[float, float]]:
    """ANLS and accuracy per question of the page that has an answer."""
    questions = [question for question in page.questions if question.answers]
    fitted = model.fit(page)
    pixels = pixels_of(fitted.image, next(model.module.parameters()).device)
    training = model.module.training
    model.module.eval()
    for start in range(0, len(questions), ANSWERED_TOGETHER):
        asked = questions[start : start + ANSWERED_TOGETHER]
        with torch.no_grad():
            answers = model.answer(
                pixels.expand(len(asked), *pixels.shape), [model.encode(fitted, question) for question in asked]
            )
        for question, answer in zip(asked, answers, strict=True):
            yield anls(answer.text, question.answers), accuracy(answer.text, question.answers)
    model.module.train(training)
