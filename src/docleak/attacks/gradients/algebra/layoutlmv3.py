"""The text side of a LayoutLMv3 or LiLT client from its gradient, by linear algebra: tokens, boxes, span or tags.

Each position has a row of its own in the learned position table, so that row's gradient is the gradient of the input
there; a word's row has the sum over the positions where it stands. ``Cover`` turns the sums back into positions. That
the word table gives away the set of words is known since Melis et al. (2019); order, boxes and span are docleak's own.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.boxes import Tables, recover_boxes
from docleak.attacks.gradients.algebra.patches import PATCH_TENSORS, numbers_of, recover_pixels, require_tensors
from docleak.attacks.gradients.algebra.recovered import Condition, Recovered
from docleak.attacks.gradients.algebra.span import HEAD, head_of, recover_span, recover_tags
from docleak.attacks.gradients.algebra.subset_sums import (
    Cover,
    Floats,
    Indices,
    Precision,
    noise_of,
    rounding_of,
    rows_in_use,
)
from docleak.attacks.gradients.view import GradientView
from docleak.models.base import Encoded
from docleak.models.layoutlmv3 import LayoutLMv3
from docleak.models.lilt import Lilt
from docleak.models.tagging import Tagger

__all__ = ["recover_pixels", "recover_text"]

TABLE = "layoutlmv3.embeddings.{}.weight"
WORDS, POSITIONS = TABLE.format("word_embeddings"), TABLE.format("position_embeddings")
COORDINATES = {axis: TABLE.format(f"{axis}_position_embeddings") for axis in "xyhw"}
TEXT_TENSORS = (WORDS, POSITIONS, *COORDINATES.values(), HEAD)
#: LiLT's names of the same tables; its boxes go through a linear layer before they meet a table of positions.
OF_LILT = {
    WORDS: "lilt.embeddings.word_embeddings.weight",
    POSITIONS: "lilt.embeddings.position_embeddings.weight",
    **{name: f"lilt.layout_embeddings.{axis}_position_embeddings.weight" for axis, name in COORDINATES.items()},
    HEAD: "qa_outputs.weight",
}
BOX_POSITIONS = "lilt.layout_embeddings.box_position_embeddings.weight"
BOX_LINEAR = "lilt.layout_embeddings.box_linear_embeddings.weight"
#: A coarser rounding than bfloat16's is no rounding; something else was done to the gradient.
COARSEST = 2.0**-8
#: What byte-level tokenizers put before a token that begins a word.
WORD_MARK = "\u0120"


def recover_text(view: GradientView, template: Tensor | None = None, private: Tensor | None = None) -> Recovered:
    """The client's tokens, boxes and answer span, in the form of ``LayoutLMv3.encode``.

    ``template`` (1, 3, H, W) in [0, 1] and ``private`` (1, H, W) help with the picture, which the span depends on a
    little; without them all of the page is unknown. Word texts are read off the tokens and numbered as seen; words that
    truncation cut away are not in the gradient. Raises AttackError for other architectures, batches of several pages,
    and gradients without the tensors.
    """
    started = time.perf_counter()
    model = cast(LayoutLMv3, view.model)
    named = dict(OF_LILT) if isinstance(model, Lilt) else {name: name for name in TEXT_TENSORS}
    if isinstance(model, Tagger):
        named[HEAD] = head_of(view)
    require_tensors(view, [*named.values(), *([BOX_POSITIONS] if isinstance(model, Lilt) else [])])
    tables = {name: numbers_of(view.gradient[there]) for name, there in named.items()}
    noise = max(noise_of(tables[name]) for name in (WORDS, *COORDINATES.values()))
    tokens = _tokens(tables, noise, model)
    if isinstance(model, Lilt):
        linear = numbers_of(model.module.get_parameter(BOX_LINEAR))
        tokens = replace(
            tokens, placed=_from_first(numbers_of(view.gradient[BOX_POSITIONS]), model)[: len(tokens.ids)] @ linear
        )
    names = model.tokenizer.convert_ids_to_tokens(tokens.ids.tolist())
    layout = _layout(tokens, names, model.tokenizer.sep_token, tables, asked=not isinstance(model, Tagger))
    example = encoded(tokens.ids, names, layout, model)
    picture, determined = _picture(view, template, private)
    if isinstance(model, Tagger):
        example, said = recover_tags(view, model, picture, example, layout.words)
    else:
        span = recover_span(view, picture, example, layout.words)
        answer = {"start": torch.tensor(span.start), "end": torch.tensor(span.end)}
        example = Encoded({**example.tensors, **answer}, example.tokens, example.words_seen)
        fit = f"sine of the angle {max(span.sines):.1e}, next best {min(span.next_sines):.1e}"
        said = Condition("one answer span fits the last layer's row", fit, span.sure)
    exact = tokens.proved and layout.proved and said.holds
    conditions = (*_conditions(view, tokens, layout), said)
    seconds = time.perf_counter() - started
    if determined is None:
        return Recovered((example,), exact, conditions, seconds)
    return Recovered((example,), exact, conditions, seconds, picture, determined)


@dataclass(frozen=True)
class _Tokens:
    """``ids`` (T,) at each position, the input's ``gradients`` (T, h) there, and of its box's tables (``placed``);
    ``proved``: they explain every row."""

    ids: Indices
    gradients: Floats
    placed: Floats
    precision: Precision
    proved: bool


def _from_first(table: Floats, model: LayoutLMv3) -> Floats:
    """Rows of a table of positions from the first token's on: RoBERTa's numbering begins behind the padding's."""
    return table[int(model.module.config.pad_token_id) + 1 :]


def _tokens(tables: dict[str, Floats], noise: float, model: LayoutLMv3) -> _Tokens:
    positions = _from_first(tables[POSITIONS], model)
    length = int(rows_in_use(positions, noise).max(initial=0)) + 1
    used = rows_in_use(tables[WORDS], noise)
    if not len(used):  # nothing stands out of the noise
        used = np.square(tables[WORDS]).sum(axis=1).argmax(keepdims=True)
    gradients, sums = positions[:length], tables[WORDS][used]
    rounding = min(rounding_of(gradients, sums), COARSEST) if noise == 0 else Precision().rounding
    precision = Precision(rounding, noise)
    norms = np.linalg.norm(gradients, axis=1)
    cover = Cover(gradients, norms, np.ones(length, dtype=np.intp), sums, precision)
    while cover.explain():
        pass
    cover.guess()
    return _Tokens(used[cover.owner], gradients, gradients, precision, cover.solved)


@dataclass(frozen=True)
class Layout:
    """``words`` are the token positions of each word of the page, ``boxes`` (T, 4) the box of each token."""

    words: list[list[int]]
    boxes: Indices
    proved: bool


def _layout(
    tokens: _Tokens, names: Sequence[str], separator: str | None, tables: dict[str, Floats], *, asked: bool
) -> Layout:
    x, y, height, width = (tables[name] for name in COORDINATES.values())
    arguments = (Tables(x, y, height, width), tokens.precision)
    words, rest = group_words(names, separator, asked=asked)
    grouped = recover_boxes(tokens.placed, words, rest, *arguments)
    boxes = np.zeros((len(names), 4), dtype=np.intp)
    for word, box in zip(words, grouped.boxes, strict=True):
        boxes[word] = box
    if (
        tokens.proved and not grouped.proved and tokens.precision.noise == 0
    ):  # perhaps some tokens do not share boxes as we think: each for itself
        single = recover_boxes(tokens.placed, [[position] for position in range(len(names))], [], *arguments)
        if single.proved:
            return Layout(_split(words, single.boxes), single.boxes, True)
    return Layout(words, boxes, grouped.proved)


def _split(words: list[list[int]], boxes: Indices) -> list[list[int]]:
    """Words cut where the box changes from one token to the next."""
    cut: list[list[int]] = []
    for word in words:
        for position in word:
            if position == word[0] or not np.array_equal(boxes[position], boxes[position - 1]):
                cut.append([])
            cut[-1].append(position)
    return cut


def group_words(
    names: Sequence[str], separator: str | None, *, asked: bool = True
) -> tuple[list[list[int]], list[int]]:
    """Token positions of each word behind ``<s> question </s></s>``, or behind ``<s>`` where nothing is ``asked``, and
    those of all other tokens.

    A word begins where a token has the space mark. Without the two separators every token counts as the page's.
    """
    at = [i for i, name in enumerate(names) if name == separator]
    pairs = [i for i, j in pairwise(at) if j == i + 1]
    first = 1 if not asked else pairs[0] + 2 if pairs else 0
    last = at[-1] if at and at[-1] > first else len(names)
    words: list[list[int]] = []
    for i in range(first, last):
        if i == first or names[i].startswith(WORD_MARK):
            words.append([i])
        else:
            words[-1].append(i)
    return words, [*range(first), *range(last, len(names))]


def encoded(ids: Indices, names: Sequence[str], layout: Layout, model: LayoutLMv3) -> Encoded:
    """Everything of ``LayoutLMv3.encode`` but the span."""
    word_ids = torch.full((len(ids),), -1)
    for number, word in enumerate(layout.words):
        word_ids[word] = number
    tensors = {"input_ids": torch.from_numpy(ids), "bbox": torch.from_numpy(layout.boxes), "word_ids": word_ids}
    tensors |= {"start": torch.tensor(0), "end": torch.tensor(0)}
    texts = [model.tokenizer.convert_tokens_to_string([names[i] for i in word]).strip() for word in layout.words]
    return Encoded(tensors, (*names, *texts), tuple(range(len(texts))))


def _picture(view: GradientView, template: Tensor | None, private: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The page, (1, 3, H, W), as far as its gradient gives it away, white otherwise; and what is determined of it."""
    width, height = view.model.image_size
    parameter = next(view.model.module.parameters())
    if template is None or private is None:
        template = torch.ones(1, 3, height, width, device=parameter.device)
        private = torch.ones(1, height, width, dtype=torch.bool, device=parameter.device)
    if any(name not in view.gradient for name in PATCH_TENSORS):
        return template, None
    pixels, determined, _ = recover_pixels(view, template, private)
    return pixels, determined


def _conditions(view: GradientView, tokens: _Tokens, layout: Layout) -> tuple[Condition, ...]:
    noise, rounding = tokens.precision.noise, tokens.precision.rounding
    evidence = f"standard deviation {noise:.1e}" if noise else f"none; sums agree to {rounding:.1e}"
    return (
        Condition("one page in the batch", str(view.batch_size), view.batch_size == 1),
        Condition("no noise on the gradient", evidence, noise == 0 and rounding < COARSEST),
        Condition("the tokens explain every row of the word table", f"{len(tokens.ids)} positions", tokens.proved),
        Condition("the boxes explain every row of the x, y, h, w tables", f"{len(layout.words)} words", layout.proved),
    )
