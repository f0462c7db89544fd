"""Ask a model about pages of one's own: what a black box says, how sure it is, and how far it is from the true answer.

Tito et al. (2024, section 5.2.3): with zero knowledge the adversary reads the text alone; with partial knowledge it
also gets confidence and loss. It knows the answers to its own questions, and nothing of the training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from docleak.attacks.answers.features import Reply
from docleak.documents.page import Page, Question
from docleak.documents.redaction import similarity
from docleak.errors import AttackError
from docleak.models.base import DocumentModel, Encoded, device_of, in_mode, pixels_of


@dataclass(frozen=True, eq=False)
class Item:
    """A question about a page; the question's first answer, if it has one, is what the loss is taken of."""

    page: Page
    question: Question


@dataclass(frozen=True)
class Spoken:
    """A model's answer, its ``confidence`` in 0..1, and the adapter's own ``loss`` on the true answer.

    The loss is in nats, the mean over the answer's tokens, and None for a question without an answer; both are None
    where the view does not give them.
    """

    text: str
    confidence: float | None = None
    loss: float | None = None


@dataclass(frozen=True, eq=False)
class AnswersView:
    """A model behind an interface that takes a page and a question.

    ``scores`` says whether it gives confidence and loss beside its text. ``dropout_seed`` takes the loss with dropout
    on, as the authors' code does; its masks depend on the seed, the page's name and the question, not on the order of
    the questions, for which every loss is taken on its own.
    """

    model: DocumentModel
    scores: bool = False
    dropout_seed: int | None = None

    @property
    def text(self) -> str:
        """The threat model in a sentence."""
        given = "its answers, their confidence, and its loss on them" if self.scores else "its answers as text"
        return f"black-box access to the model: any page and question may be sent, and {given} come back"


def ask(view: AnswersView, items: Iterable[Item], *, batch_size: int = 32) -> list[Spoken]:
    """One answer per item, in order; ``items`` are taken in batches of ``batch_size``, so they may be made on the way.

    Questions that stand one after the other about the same Page object share its pixels. The model answers in
    evaluation mode and is left as it was. Raises AttackError for a batch size below 1.
    """
    if batch_size < 1:
        raise AttackError(f"batch_size is {batch_size}; expected 1 or more questions at a time.")
    with in_mode(view.model.module):
        return [spoken for batch in batches(items, batch_size) for spoken in _ask_batch(view, batch)]


def answerable(pages: Iterable[Page]) -> Iterator[Item]:
    """Every question that has an answer, each once of a document: listed again, on another of its pages, too, it would
    be the same evidence twice. Pages are read on the way, in order."""
    asked = set[tuple[str, ...]]()
    for page in pages:
        for question in page.questions:
            told = page.provider, page.document or page.name, question.text.strip(), *question.answers
            if question.answers and told not in asked:
                asked.add(told)
                yield Item(page, question)


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in lists of ``size``, the last one shorter."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def reply_of(item: Item, spoken: Spoken) -> Reply:
    """What the adversary notes down of an answer: ``accuracy`` as in DocVQA, ``nls`` the plain similarity.

    Both ignore case and outer spaces and take the nearest of the question's answers. Tables print ANLS instead, which
    counts similarities below 0.5 as 0; as a feature the similarity itself says more (the paper writes NLS). The key is
    the question's, or its text. Raises AttackError for a question without answers.
    """
    page, question = item.page, item.question
    return Reply(
        provider=page.provider,
        document=page.document or page.name,
        key=question.key or question.text,
        accuracy=float(spoken.text.lower().strip() in [answer.lower().strip() for answer in question.answers]),
        nls=nls(spoken.text, question.answers),
        loss=spoken.loss,
        confidence=spoken.confidence,
    )


def nls(text: str, answers: Sequence[str], *, threshold: float = 0.0) -> float:
    """Normalised Levenshtein similarity in 0..1 of a text with the nearest answer, lower case, outer spaces stripped.

    Below ``threshold`` it counts as 0, as does that of an empty text. Raises AttackError without answers.
    """
    if not answers:
        raise AttackError(f"answer {text!r} has nothing to be compared with; expected a question with its answer.")
    given = text.lower().strip()
    nearest = max(similarity(given, answer.lower().strip()) for answer in answers) if given else 0.0
    return nearest if nearest >= threshold else 0.0


@torch.no_grad()
def _ask_batch(view: AnswersView, batch: Sequence[Item]) -> list[Spoken]:
    model = view.model
    device = device_of(model)
    different = {id(item.page): item.page for item in batch}
    places = {number: place for place, number in enumerate(different)}
    owners = [places[id(item.page)] for item in batch]
    pages = [model.fit(page) for page in different.values()]
    pixels = torch.stack([pixels_of(page.image) for page in pages]).to(device)
    inputs = [model.encode(pages[owner], item.question) for owner, item in zip(owners, batch, strict=True)]
    answers = model.answer(pixels, inputs, owners)
    if not view.scores:
        return [Spoken(answer.text) for answer in answers]
    losses: list[float | None] = [None] * len(batch)
    known = [row for row, item in enumerate(batch) if item.question.answers]
    if view.dropout_seed is not None:
        for row in known:
            losses[row] = _loss_with_dropout(view, batch[row], pixels[owners[row], None], inputs[row])
    elif known:
        known_losses = model.loss(pixels, [inputs[row] for row in known], [owners[row] for row in known]).tolist()
        for row, loss in zip(known, known_losses, strict=True):
            losses[row] = float(loss)
    return [Spoken(a.text, min(a.confidence, 1.0), loss) for a, loss in zip(answers, losses, strict=True)]


def _loss_with_dropout(view: AnswersView, item: Item, pixels: torch.Tensor, example: Encoded) -> float:
    """The loss on one example, pixels (1, 3, H, W), under masks of its own; global generators stay as they were."""
    named = "\0".join([str(view.dropout_seed), item.page.name, item.question.text])
    module = view.model.module
    with torch.random.fork_rng():
        torch.manual_seed(int.from_bytes(hashlib.sha256(named.encode()).digest()[:8]) >> 1)
        module.train()
        loss = view.model.loss(pixels, [example])
        module.eval()
    return float(loss)
