"""The tokens of self-pretraining (Nguyen and Karatzas, 2024, section 3.3): sentinels of three tasks, and places.

Left open by the paper, and settled by the authors' public code: 501 places, the last one the page's far edge; the
sentinels of text-layout modeling are T5's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from docleak.documents.page import Page, Word
from docleak.errors import ModelError

if TYPE_CHECKING:
    import torch

#: L_M: the most words of a page that are masked, each with a sentinel of its own.
SENTINELS = 100
#: |V|: a coordinate in [0, 1] is one of the places 0..500.
RESOLUTION = 500

#: The field of LayoutTokens -> how its tokens are written.
SPELLINGS = {
    "text": "<text_{}>",
    "layout": "<layout_{}>",
    "layout_end": "</layout_{}>",
    "text_layout": "<extra_id_{}>",
    "loc": "<loc_{}>",
}


@dataclass(frozen=True)
class LayoutTokens:
    """Ids of the sentinels, ``SENTINELS`` of each kind, and of the places <loc_0> to <loc_|V|>."""

    text: tuple[int, ...]
    layout: tuple[int, ...]
    layout_end: tuple[int, ...]
    text_layout: tuple[int, ...]
    loc: tuple[int, ...]

    def place(self, word: Word, page: Page) -> list[int]:
        """f_d: the places of a word's x0, y0, x1, y1, each the nearest one."""
        sides = (page.width, page.height) * 2
        return [self.loc[round(v / side * (len(self.loc) - 1))] for v, side in zip(word.box, sides, strict=True)]


def layout_tokens_of(tokenizer: Any, *, name: str) -> LayoutTokens:
    """The tokens that a tokenizer has, ModelError if it lacks any; ``name`` is the model's, for the message."""
    vocabulary = tokenizer.get_vocab()
    places = _places(vocabulary)
    lacking = [token for token in _spelled(max(2, places)) if token not in vocabulary]
    if lacking:
        raise ModelError(
            f"model {name!r} has no tokens for self-pretraining: its vocabulary lacks {len(lacking)}, first "
            f"{lacking[0]!r}. Give them to it with add_layout_tokens before training, at the server and every silo."
        )
    return LayoutTokens(
        **{kind: tuple(vocabulary[token] for token in tokens) for kind, tokens in _spelled_by_kind(places).items()}
    )


def add_layout_tokens(tokenizer: Any, t5: Any, *, generator: torch.Generator, resolution: int | None = None) -> None:
    """Give tokenizer and T5 the tokens they lack, in place; nothing happens to a vocabulary that has them all.

    ``resolution`` is the number of steps across a page: by default that of the places there, or ``RESOLUTION``. The new
    rows of T5's table are drawn as the old ones lie: normal, with their mean and deviation per coordinate. All are
    special tokens, so that no answer shows them. ModelError if the places there are of another resolution.
    """
    import torch
    from tokenizers import AddedToken

    vocabulary = tokenizer.get_vocab()
    there = _places(vocabulary)
    if resolution is None:
        resolution = there - 1 if there else RESOLUTION
    if resolution < 1 or there not in (0, resolution + 1):
        raise ModelError(
            f"a resolution of {resolution} was asked for, and the vocabulary has {there} places; expected 1 or more, "
            "and one place more than that, or none. Begin with a checkpoint without places."
        )
    new = [token for token in _spelled(resolution + 1) if token not in vocabulary]
    if not new:
        return
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in new], special_tokens=True)
    ids = torch.tensor(tokenizer.convert_tokens_to_ids(new))
    with torch.no_grad():
        old = t5.shared.weight[: int(ids.min())]
        rows = torch.randn(len(ids), old.shape[1], generator=generator).to(old) * old.std(0) + old.mean(0)
        if len(tokenizer) > len(t5.shared.weight):  # t5-base has a few rows more than tokens
            with torch.random.fork_rng(devices=[]):  # transformers draws rows of its own
                t5.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        t5.shared.weight[ids.to(rows.device)] = rows


def _places(vocabulary: Mapping[str, int]) -> int:
    """How many places a vocabulary has, counted from <loc_0> on."""
    return next(i for i in count() if SPELLINGS["loc"].format(i) not in vocabulary)


def _spelled_by_kind(places: int) -> dict[str, list[str]]:
    counts = dict.fromkeys(SPELLINGS, SENTINELS) | {"loc": places}
    return {kind: [SPELLINGS[kind].format(i) for i in range(n)] for kind, n in counts.items()}


def _spelled(places: int) -> list[str]:
    return [token for tokens in _spelled_by_kind(places).values() for token in tokens]
