"""Validation of the tasks, as in Table 2 of Dentan et al. (2024): one number in 0..1 per model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from docleak.errors import ModelError
from docleak.models.base import IGNORED
from docleak.models.encoders.model import EncoderModel
from docleak.models.encoders.questions import all_asked
from docleak.models.encoders.scrubbing import patched
from docleak.models.encoders.tasks import NOTHING, Task, mask_tokens
from docleak.models.encoders.tokens import TokenPage

#: An entity: its class and its positions; a link: (from, to); an answer: (first, last); a page's class alone.
Found = tuple[int, ...]


@dataclass(frozen=True)
class Validation:
    """``loss`` is the mean over pages, or over questions; ``accuracy`` that of Table 2: see ``validate``."""

    loss: float
    accuracy: float


@torch.no_grad()
def validate(
    model: EncoderModel, pages: Sequence[TokenPage], *, batch_size: int, seed: int, patch: bool = False
) -> Validation:
    """Loss, and the share of masked tokens guessed ("mlm"), of answers whose span is exactly right ("qa") or of pages
    classified rightly ("classify"), or the F1 score of entities or links (the other tasks).

    Masks are drawn with ``seed``, so that epochs are compared on the same ones; ``patch`` hides in the picture what
    they mask. The paper writes "accuracy"; its values
    for entities and links are those that BROS's authors report as F1.
    """
    model.module.eval()
    if model.task == "mlm":
        ready: Sequence[TokenPage] = masked(model, pages, torch.Generator().manual_seed(seed), patch=patch)
    else:
        ready = all_asked(pages)
    losses: list[float] = []
    right = guessed = true = 0
    for batch_pages in in_batches(sorted(ready, key=len), batch_size):
        batch = model.collate(batch_pages)
        hidden = model.hidden(batch)
        losses += model.module.head.loss(hidden, batch).tolist()
        rows = {name: row.cpu() for name, row in model.module.head.predict(hidden, batch).items()}
        for i, page in enumerate(batch_pages):
            predicted = {name: torch.where(page.labels[name] == IGNORED, IGNORED, row[i, : len(page)])
                         for name, row in rows.items()}  # fmt: skip
            ours, theirs = things(model.task, predicted), things(model.task, page.labels)
            right, guessed, true = right + len(ours & theirs), guessed + len(ours), true + len(theirs)
    f1 = 2 * right / (guessed + true) if guessed + true else 0.0
    return Validation(sum(losses) / len(losses), f1)


def masked(
    model: EncoderModel, pages: Sequence[TokenPage], generator: torch.Generator, *, patch: bool = False
) -> list[TokenPage]:
    """``mask_tokens`` with the model's own vocabulary; ``patch`` hides in the picture, too, what is to be guessed.

    ModelError where a model that sees no picture is to have it patched.
    """
    tokenizer = model.tokenizer
    plain = torch.tensor(sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids)))
    drawn = mask_tokens(pages, vocabulary=plain, mask_id=tokenizer.mask_token_id, generator=generator)
    if not patch:
        return drawn
    hidden = []
    for page in drawn:
        if page.image is None:
            raise ModelError("masked words cannot be hidden in the picture: the model sees none. Train a bimodal one.")
        hidden.append(replace(page, image=patched(page.image, page.boxes[page.labels["token"] != IGNORED])))
    return hidden


def in_batches(pages: Sequence[TokenPage], size: int) -> Iterable[Sequence[TokenPage]]:
    """Consecutive batches; the last may be smaller."""
    return (pages[i : i + size] for i in range(0, len(pages), size))


def things(task: Task, rows: Mapping[str, Tensor]) -> set[Found]:
    """What the label rows (T,) of one page say: masked tokens, entities, links, an answer or a class."""
    if task == "mlm":
        token = rows["token"]
        return {(i, int(token[i])) for i in (token != IGNORED).nonzero().flatten().tolist()}
    if task == "qa":
        return set(zip(*((rows[name] == 1).nonzero().flatten().tolist() for name in ("start", "end")), strict=True))
    if task == "classify":
        return {(int(rows["class"][0]),)}
    if task == "ee-bio":
        return set(tagged(rows["tag"].tolist()))
    if task == "ee-spade":
        return set(chained(rows["initial"].tolist(), rows["predecessor"].tolist()))
    source = rows["source"].tolist()
    return {(a, b) for b, a in enumerate(source) if a not in (NOTHING, IGNORED)}


def tagged(tags: Sequence[int]) -> list[Found]:
    """Entities of a row of BIO tags: (class, positions...). A tag I that follows no tag of its class begins one."""
    entities: list[list[int]] = []
    before = 0
    for i, tag in enumerate(tags):
        if tag > 0:
            kind = (tag - 1) // 2
            continues = tag % 2 == 0 and before > 0 and (before - 1) // 2 == kind
            if continues:
                entities[-1].append(i)
            else:
                entities.append([kind, i])
        before = tag
    return [tuple(entity) for entity in entities]


def chained(initial: Sequence[int], predecessor: Sequence[int]) -> list[Found]:
    """Entities of SPADE's rows: from each first token along the tokens that name it, and so on, as predecessor.

    Where several tokens name the same predecessor, the nearest behind it follows.
    """
    after: dict[int, int] = {}
    for token, before in enumerate(predecessor):
        if before >= 0 and (before not in after or abs(token - before) < abs(after[before] - before)):
            after[before] = token
    entities = []
    for first, kind in enumerate(initial):
        if kind > 0:
            entity, token, seen = [kind - 1, first], first, {first}
            while (token := after.get(token, -1)) >= 0 and token not in seen:
                seen.add(token)
                entity.append(token)
            entities.append(tuple(entity))
    return entities
