"""The training tasks: which labels a page gives each of them. The paper has four; the last two it conjectures.

Entity extraction by BIO tags, or by SPADE (Hwang et al., 2021): the class of each entity's first token, and for every
token its predecessor in the entity; entity linking by SPADE: for the first token of an entity, that of the one it
belongs to. As in BROS (Hong et al., 2022) the classes and links are asked of the first pieces of words only.
Question answering ("qa"): see ``encoders.questions``. Classification ("classify"): one class per page, asked at [CLS].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from docleak.documents.page import Entity, Page
from docleak.errors import ModelError
from docleak.models.base import IGNORED
from docleak.models.encoders.tokens import TokenPage

Task = Literal["mlm", "ee-bio", "ee-spade", "el", "qa", "classify"]
TASKS: tuple[Task, ...] = get_args(Task)
#: Those whose heads have classes.
CLASSED = ("ee-bio", "ee-spade", "classify")
#: What a page needs beside words, in messages.
NEEDS: dict[str, str] = {
    "el": "links between entities",
    "qa": "a question whose answer is printed on the page",
    "classify": "a template or an issuer, which is what pages are classified by",
}
#: The class of pages whose template or issuer is on no other page.
RARE = "rare"
#: In rows that point at tokens: there is none to point at.
NOTHING = -1
#: Annotations that are no entity: FUNSD's text outside of the form.
OUTSIDE = ("other",)


def entities_of(page: Page) -> tuple[Entity, ...]:
    """What is to be extracted from a page: its annotated entities, or else its fields that have a place."""
    if page.entities:
        return tuple(entity for entity in page.entities if entity.words and entity.label not in OUTSIDE)
    return tuple(Entity(f.key, f.words) for f in page.fields if f.words)


def classes_of(pages: Sequence[Page], *, limit: int = 64) -> tuple[str, ...]:
    """The kinds of entity, sorted. Raises ModelError for none, or so many that they are texts and not kinds."""
    kinds = sorted({entity.label for page in pages for entity in entities_of(page)})
    if not kinds or len(kinds) > limit:
        raise ModelError(
            f"{len(pages)} pages have {len(kinds)} kinds of entity; expected 1 to {limit}. Extraction needs fields "
            "whose keys recur from page to page, or annotated entities."
        )
    return tuple(kinds)


def label_of(page: Page) -> str:
    """What a page is classified by: its template (the kind of layout), or else its issuer; "" if it has neither."""
    return page.template or page.provider


def page_classes(pages: Sequence[Page], *, limit: int = 64) -> tuple[str, ...]:
    """The labels of two pages or more, at most ``limit``, the commonest, sorted; then RARE where others are left.

    Raises ModelError where that is a single class, since nothing is to be told apart.
    """
    counts = Counter(label_of(page) for page in pages)
    common = sorted((name for name, count in counts.items() if name and count > 1), key=lambda n: (-counts[n], n))
    kept = sorted(common[:limit])
    classes = (*kept, RARE) if len(kept) < len(counts) else tuple(kept)
    if len(classes) < 2:
        raise ModelError(
            f"{len(pages)} pages have {len(counts)} templates or issuers, {len(kept)} of them on more than one page; "
            "classification needs two classes. Give pages with recurring templates or issuers."
        )
    return classes


def classes_for(task: Task, pages: Sequence[Page]) -> tuple[str, ...]:
    """The classes of a head for ``task``, () for one that has none; raises what finding them raises."""
    if task == "classify":
        return page_classes(pages)
    return classes_of(pages) if task in CLASSED else ()


def labelled(tokens: TokenPage, page: Page, task: Task, classes: Sequence[str]) -> TokenPage:
    """``tokens`` with the label rows of ``task``; "mlm" has none here, since what is masked is drawn anew each time.

    Entities beyond the model's length are left out; where two overlap, the later one holds. Raises ModelError for a
    class that is not known, a page without links for "el", or one without a template or issuer for "classify".
    """
    if task == "mlm":
        return tokens
    if task == "classify":
        return replace(tokens, labels={"class": _page_class(tokens, page, classes)})
    places = [(entity, _tokens_of(tokens, entity)) for entity in entities_of(page)]
    if task == "el":
        return replace(tokens, labels={"source": _sources(tokens, page)})
    unknown = sorted({entity.label for entity, _ in places} - set(classes))
    if unknown:
        raise ModelError(f"page {page.name!r} has entities {unknown}, the model knows {list(classes)}.")
    on_page = tokens.words >= 0
    if task == "ee-bio":
        tags = torch.where(on_page, 0, IGNORED)
        for entity, place in places:
            kind = classes.index(entity.label)
            tags[place] = 2 + 2 * kind  # O, B-first, I-first, B-second, ...
            tags[place[:1]] = 1 + 2 * kind
        return replace(tokens, labels={"tag": tags})
    initial = torch.where(tokens.first, 0, IGNORED)
    before = torch.where(on_page, NOTHING, IGNORED)
    for entity, place in places:
        if len(place):
            initial[place[0]] = 1 + classes.index(entity.label)
            before[place[1:]] = place[:-1]
    return replace(tokens, labels={"initial": initial, "predecessor": before})


def _page_class(tokens: TokenPage, page: Page, classes: Sequence[str]) -> Tensor:
    name = label_of(page)
    known = name if name in classes else RARE
    if not name or known not in classes:
        what = f"{name!r}, which is none of the model's classes" if name else "neither a template nor an issuer"
        raise ModelError(f"page {page.name!r} has {what}; classification needs {NEEDS['classify']}.")
    labels = torch.full_like(tokens.ids, IGNORED)
    labels[0] = list(classes).index(known)
    return labels


def _sources(tokens: TokenPage, page: Page) -> Tensor:
    if not page.links:
        raise ModelError(f"page {page.name!r} has no links between entities; entity linking needs them (FUNSD has).")
    source = torch.where(tokens.first, NOTHING, IGNORED)
    heads = [_tokens_of(tokens, entity)[:1].tolist() for entity in page.entities]
    for a, b in page.links:
        if heads[a] and heads[b]:
            source[heads[b][0]] = heads[a][0]
    return source


def _tokens_of(tokens: TokenPage, entity: Entity) -> Tensor:
    """The positions of the entity's pieces, in the order of its words."""
    places = [(tokens.words == word).nonzero().flatten() for word in entity.words]
    return torch.cat(places) if places else torch.zeros(0, dtype=torch.int64)


def mask_tokens(
    pages: Sequence[TokenPage], *, vocabulary: Tensor, mask_id: int, generator: torch.Generator, share: float = 0.15
) -> list[TokenPage]:
    """Pages with ``share`` of their tokens to be guessed: of those 80 % [MASK], 10 % another token, 10 % as they are.

    Devlin et al. (2019), section 3.1. At least one token of a page is drawn. ``vocabulary`` are the ids that may stand
    in for one. The picture still shows what is masked, unless ``training.extraction.fit.masked`` hides it.
    """
    masked = []
    for page in pages:
        draw = torch.rand(len(page), generator=generator)
        draw[page.words < 0] = 2.0
        chosen = draw < share
        if not chosen.any():
            chosen[draw.argmin()] = True
        fate = torch.rand(len(page), generator=generator)
        other = vocabulary[torch.randint(len(vocabulary), (len(page),), generator=generator)]
        ids = torch.where(chosen & (fate < 0.8), mask_id, page.ids)
        ids = torch.where(chosen & (fate >= 0.9), other, ids)
        masked.append(replace(page, ids=ids, labels={"token": torch.where(chosen, page.ids, IGNORED)}))
    return masked
