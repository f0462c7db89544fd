"""A few of the silo's own examples, and the loss of a document model on them: what the guard tries a gradient with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from docleak.documents.page import Page
from docleak.errors import DocumentError
from docleak.models.base import DocumentModel, pixels_of

#: Examples that are enough to see whether inputs come back one by one, and few beside an epoch.
EXAMPLES = 4


def probe(model: DocumentModel, pages: Sequence[Page], *, examples: int = EXAMPLES) -> Callable[[], Tensor]:
    """The mean loss of ``model`` on a question of each of the first pages that have one, to be called by the guard.

    DocumentError where no page has a question with an answer.
    """
    chosen = []
    for page in pages:
        question = next((one for one in page.questions if one.answers), None)
        if question is not None:
            chosen.append((model.fit(page), question))
        if len(chosen) == examples:
            break
    if not chosen:
        raise DocumentError(f"none of {len(pages)} pages has a question with an answer; the guard needs one to try.")
    device = next(model.module.parameters()).device
    pixels = torch.stack([pixels_of(page.image, device) for page, _ in chosen])
    inputs = [model.encode(page, question) for page, question in chosen]

    def loss() -> Tensor:
        with torch.random.fork_rng(devices=[]):
            return model.loss(pixels, inputs).mean()

    return loss
