"""Question answering by extraction: a page's questions, each read with the page, and where their answers stand.

As in BERT (Devlin et al., 2019, section 4.2) one pass answers one question by the first and last token of a span. The
question is the second segment, so that the page's tokens keep their positions; its boxes are empty, as [CLS]'s is.
transformers' models read the question first: ``question_first`` says in which order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from docleak.documents.locate import WordStream
from docleak.documents.page import Page
from docleak.errors import ModelError
from docleak.models.base import IGNORED
from docleak.models.encoders.tasks import NEEDS, Task, label_of
from docleak.models.encoders.tokens import BOX_SCALE, Asked, TokenPage

#: Tokens kept free behind the page for a question and its [SEP]; longer questions are cut.
ROOM = 32


def suits(page: Page, task: Task) -> bool:
    """Whether the page has words, and what ``task`` needs beside them (``tasks.NEEDS``)."""
    if task == "el":
        return bool(page.words and page.links)
    if task == "qa":
        return bool(page.words) and next(answered(page), None) is not None
    return bool(page.words and (task != "classify" or label_of(page)))


def answered(page: Page) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The page's questions with the words of the answer: those of its field, or else where the answer is printed."""
    stream = WordStream.of([word.text for word in page.words])
    fields = {(field.key, field.value): field.words for field in page.fields}
    for question in page.questions:
        places = [fields.get((question.key or "", a)) or stream.find(a) for a in question.answers]
        if words := next(filter(None, places), ()):
            yield question.text, words


def with_questions(tokens: TokenPage, page: Page, tokenizer: Any, *, ends: int = 1) -> TokenPage:
    """``tokens`` with the questions whose answers are within them, each with ``ends`` [SEP] behind it (RoBERTa's family
    has two). Raises ModelError if there is none."""
    questions = []
    for text, words in answered(page):
        where = torch.isin(tokens.words, torch.tensor(words)).nonzero().flatten().tolist()
        if set(words) <= set(tokens.words.tolist()):
            pieces = tokenizer(text, add_special_tokens=False)["input_ids"][: ROOM - ends]
            questions.append(Asked(torch.tensor([*pieces, *ends * [tokenizer.sep_token_id]]), where[0], where[-1]))
    if not questions:
        raise ModelError(
            f"page {page.name!r} has {len(page.questions)} questions, none with its answer within the {len(tokens)} "
            f"tokens that are read; question answering needs {NEEDS['qa']}."
        )
    return replace(tokens, questions=tuple(questions))


def asked(page: TokenPage) -> list[TokenPage]:
    """What is passed through the model: the page once for each of its questions, or, without questions, as it is.

    The label rows "start" and "end" are 1 at the answer's first and last token, 0 at the page's others.
    """
    return [_asked(page, question) for question in page.questions] or [page]


def all_asked(pages: Sequence[TokenPage]) -> list[TokenPage]:
    """``asked`` for each page in turn."""
    return [one for page in pages for one in asked(page)]


def _asked(page: TokenPage, question: Asked) -> TokenPage:
    more = len(question.ids)
    words = torch.cat([page.words, torch.full((more,), -1)])
    boxes = torch.zeros(more, 4, dtype=page.boxes.dtype)
    boxes[-1] = BOX_SCALE
    labels = {}
    for name, place in (("start", question.start), ("end", question.end)):
        labels[name] = torch.where(words >= 0, 0, IGNORED)
        labels[name][place] = 1
    ids = torch.cat([page.ids, question.ids])
    return replace(page, ids=ids, boxes=torch.cat([page.boxes, boxes]), words=words, labels=labels, questions=())


def question_first(ids: Tensor, mask: Tensor, separator: int) -> tuple[Tensor, Tensor]:
    """The order [CLS] question [SEP] page [SEP] of tokens (B, T) that stand as [CLS] page [SEP] question [SEP]: where
    each place's token is taken from; and True on tokens of the page's segment, in the order they stand in. (B, T)."""
    places = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    page_end = (ids == separator).long().argmax(1, keepdim=True)
    page = (places > 0) & (places <= page_end)
    part = torch.where(places == 0, 0, torch.where(page, 2, 1)) + 3 * ~mask
    return (part * ids.shape[1] + places).argsort(1), page


def hidden_in(questions: Sequence[Asked], runs: Sequence[Tensor], mask_id: int) -> tuple[Asked, ...]:
    """Questions with [MASK] wherever they print one of these ``runs`` of tokens: a question may name a secret, too."""
    return tuple(replace(question, ids=_without(question.ids, runs, mask_id)) for question in questions)


def _without(ids: Tensor, runs: Sequence[Tensor], mask_id: int) -> Tensor:
    kept = ids.clone()
    for run in runs:
        for start in range(len(ids) - len(run) + 1):
            if torch.equal(ids[start : start + len(run)], run):
                kept[start : start + len(run)] = mask_id
    return kept
