"""EXTRACT and SCRUB of the reconstruction game (Dentan et al., 2024, section 3.2), on pages in tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from docleak.documents.locate import repeats_of
from docleak.documents.page import Field, Page
from docleak.errors import DocumentError
from docleak.models.encoders.questions import hidden_in
from docleak.models.encoders.tokens import BOX_SCALE, TokenPage

#: Fields of fewer or more tokens say nothing or cost too much (section 5.1).
SHORTEST, LONGEST = 3, 15
#: Pixels by which the patch outgrows the boxes: scaling a picture smears ink by one.
MARGIN = 1


@dataclass(frozen=True)
class SecretField:
    """The truth of the game, which stays with whoever evaluates: a field's positions in its page, and its tokens.

    ``repeats`` are the positions where the page prints the same value again.
    """

    document: str
    page: str
    key: str
    value: str
    positions: tuple[int, ...]
    tokens: tuple[int, ...]
    repeats: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The page, and the field's first position there."""
        return f"{self.page}@{self.positions[0]}"


def extract(
    page: Page, tokens: TokenPage, *, shortest: int = SHORTEST, longest: int = LONGEST
) -> tuple[SecretField, ...]:
    """The private fields of ``page`` with ``shortest`` to ``longest`` tokens that are all within the model's length; of
    several that begin at one word the first."""
    again = repeats_of(page)
    secrets = []
    for field, places, fault in _judged(page, tokens, shortest, longest):
        if fault:
            continue
        words = [w for other in again if (other.key, other.value) == (field.key, field.value) for w in other.words]
        secrets.append(
            SecretField(
                document=tokens.document,
                page=tokens.name,
                key=field.key,
                value=field.value,
                positions=places,
                tokens=tuple(tokens.ids[list(places)].tolist()),
                repeats=positions_of(tokens, words),
            )
        )
    return tuple(secrets)


def unplayable(pages: Sequence[Page], tokens: Mapping[str, TokenPage]) -> dict[str, int]:
    """Reason -> how many private fields of ``pages`` ``extract`` leaves out; ``tokens`` are the pages by name."""
    judged = (one for page in pages for one in _judged(page, tokens[page.name], SHORTEST, LONGEST))
    return dict(sorted(Counter(fault for _, _, fault in judged if fault).items()))


def _judged(page: Page, tokens: TokenPage, shortest: int, longest: int) -> Iterator[tuple[Field, tuple[int, ...], str]]:
    """Each private field with its positions, and why it cannot be played; "" where it can."""
    there, begun = set(tokens.words.tolist()), set[int]()
    for field in (one for one in page.fields if one.private):
        places = positions_of(tokens, field.words)
        if not field.words:
            fault = "without a place on the page"
        elif not set(field.words) <= there:
            fault = "beyond the model's length"
        elif len(places) < shortest:
            fault = f"of fewer than {shortest} tokens"
        elif len(places) > longest:
            fault = f"of more than {longest} tokens"
        elif places[0] in begun:
            fault = "that begin at the word where another one does"
        else:
            fault = ""
            begun.add(places[0])
        yield field, places, fault


def positions_of(tokens: TokenPage, words: Sequence[int]) -> tuple[int, ...]:
    """Where the pieces of these words stand, word by word in the order given."""
    return tuple(i for word in words for i in (tokens.words == word).nonzero().flatten().tolist())


def scrub(tokens: TokenPage, positions: Sequence[int], *, mask_id: int) -> TokenPage:
    """The page with [MASK] at ``positions`` and one white patch over each of their boxes in the picture.

    What stays is public in the game: the other tokens, all boxes, the labels, and how many tokens were there. What the
    page's questions repeat of the field is masked as well, line by line. Raises DocumentError for a position that is no
    word of the page.
    """
    where = torch.tensor(list(positions), dtype=torch.int64)
    if not len(where) or where.min() < 0 or where.max() >= len(tokens) or bool((tokens.words[where] < 0).any()):
        raise DocumentError(
            f"page {tokens.name!r} has {len(tokens)} tokens; a field at {list(positions)} is not on it. Expected "
            "positions of words."
        )
    ids = tokens.ids.clone()
    ids[where] = mask_id
    breaks = (where[1:] - where[:-1] != 1).nonzero().flatten() + 1
    runs = torch.tensor_split(tokens.ids[where], breaks.tolist())
    image = tokens.image if tokens.image is None else patched(tokens.image, tokens.boxes[where])
    return replace(tokens, ids=ids, image=image, questions=hidden_in(tokens.questions, runs, mask_id))


def patched(image: Tensor, boxes: Tensor) -> Tensor:
    """The picture (3, H, W) with one white patch over each of the boxes (N, 4), in 0..1000."""
    image = image.clone()
    height, width = image.shape[1:]
    for x0, y0, x1, y1 in {tuple(box) for box in boxes.tolist()}:
        rows = slice(max(math.floor(y0 * height / BOX_SCALE) - MARGIN, 0), math.ceil(y1 * height / BOX_SCALE) + MARGIN)
        columns = slice(max(math.floor(x0 * width / BOX_SCALE) - MARGIN, 0), math.ceil(x1 * width / BOX_SCALE) + MARGIN)
        image[:, rows, columns] = 255
    return image
