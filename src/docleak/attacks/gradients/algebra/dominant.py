"""The page whose gradient outweighs the rest of a LayoutLMv3 client's batch, read as if it were the batch (docleak).

A model that is sure of most answers sends next to nothing of them: of a batch, the page that it is least sure of makes
nearly all of the gradient, and the other pages are noise of a size that nobody knows. So that page's tokens and boxes
are those that most likely add up to the tables' rows (``likeliest``), its picture is solved beside the one blank
template of the batch that fits, and then the page is put to the test: its own gradient, computed again, has to be the
batch's. That a gradient is dominated by what a model does not know yet is what fishing (Wen et al., 2022) brings about
on purpose; here it takes an honest server, and a model that has learned.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.boxes import Tables, spans_of
from docleak.attacks.gradients.algebra.layoutlmv3 import (
    COORDINATES,
    POSITIONS,
    TEXT_TENSORS,
    WORDS,
    Layout,
    encoded,
    group_words,
)
from docleak.attacks.gradients.algebra.likeliest import Likeliest, owners
from docleak.attacks.gradients.algebra.patches import (
    PATCH_TENSORS,
    System,
    misfit,
    numbers_of,
    require_tensors,
    solve,
)
from docleak.attacks.gradients.algebra.recovered import Condition, Recovered
from docleak.attacks.gradients.algebra.span import best_spans
from docleak.attacks.gradients.algebra.subset_sums import Cover, Floats, Indices, Mask, Precision, noise_of, rows_in_use
from docleak.attacks.gradients.engine import inference_mode_of
from docleak.attacks.gradients.matching import dummy_gradient
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.errors import AttackError
from docleak.models.base import Encoded
from docleak.models.layoutlmv3 import LayoutLMv3

#: What is left of the gradient, as a share of its squared length, where the page is claimed to be one of the batch ...
CLAIMED = 0.1
#: ... and where it is believed to be read whole: each wrong token or box leaves far more (docs/results/batches.md).
WHOLE = 1e-3
#: Nats by which every token and box has to beat the next best for that.
CLEAR = 20.0
#: So many answers are put to the test of a text most of whose tokens are clear, the likeliest first.
SPANS = 12
#: First guesses are also made by proof, with the rest taken for noise of these shares of the longest row.
SHARES = (3e-3, 1e-3, 3e-4, 1e-4)
#: Rows of positions shorter than this share of the longest belong to no page that outweighs another.
FAINT = 1e-6


@dataclass(frozen=True)
class Dominant:
    """One page, read out of a batch. Which one of the client's it is, nobody is told.

    ``recovered`` has it alone; its ``exact`` is the adversary's belief that the text is whole and right. ``left`` is
    the share of the squared gradient that the page's own does not explain, ``slot`` the number of the template that its
    picture fits, ``sure`` the number of its tokens that are clear.
    """

    recovered: Recovered
    left: float
    slot: int
    sure: int

    @property
    def claimed(self) -> bool:
        """Whether the adversary takes it for a page of the batch at all."""
        return self.left <= CLAIMED


def recover_dominant(view: GradientView, knowledge: Knowledge) -> Dominant:
    """The reading of one page that explains most of the gradient of several, believed or not.

    Raises AttackError for other architectures, gradients without the tensors of words and patches, and updates of
    several local steps.
    """
    started = time.perf_counter()
    require_tensors(view, (*TEXT_TENSORS, *PATCH_TENSORS), one_page=False)
    if view.local is not None:
        raise AttackError("one page of a batch is read out of a gradient, and this is an update of local steps.")
    alone = replace(view, batch_size=1, later=())
    pixels, determined, slot = _picture(alone, knowledge)
    tables = {name: numbers_of(view.gradient[name]) for name in TEXT_TENSORS}
    candidates = []
    for reading in _readings(cast(LayoutLMv3, view.model), tables):
        tried = SPANS if 2 * int((reading.odds >= CLEAR).sum()) > len(reading.odds) else 1
        for span in best_spans(alone, pixels, reading.example, reading.words, tried):
            at = {"start": torch.tensor(span.start), "end": torch.tensor(span.end)}
            example = replace(reading.example, tensors={**reading.example.tensors, **at})
            candidates.append((_left(view, pixels, example), example, reading))
            if candidates[-1][0] <= CLAIMED:
                break
    left, example, reading = min(candidates, key=lambda one: one[0])
    clear = float(min(reading.odds.min(initial=np.inf), reading.box_odds.min(initial=np.inf)))
    conditions = (
        Condition(
            "the page's own gradient is the batch's", f"it leaves {left:.1e} of its squared length", left <= WHOLE
        ),
        Condition(
            "every token and box beats the next best", f"the least by {clear:.1f} nats of {CLEAR:.0f}", clear >= CLEAR
        ),
    )
    recovered = Recovered(
        (example,), all(c.holds for c in conditions), conditions, time.perf_counter() - started, pixels, determined
    )
    return Dominant(recovered, left, slot, int((reading.odds >= CLEAR).sum()))


def clearest(view: GradientView) -> list[tuple[int, int]]:
    """(place, token) of every token that is clear, of the text of which most are; needs no template and no picture."""
    require_tensors(view, TEXT_TENSORS, one_page=False)
    tables = {name: numbers_of(view.gradient[name]) for name in TEXT_TENSORS}
    texts = _readings(cast(LayoutLMv3, view.model), tables)
    best = max(texts, key=lambda text: int((text.odds >= CLEAR).sum()))
    ids = best.example.tensors["input_ids"].tolist()
    return [(place, int(token)) for place, token in enumerate(ids) if best.odds[place] >= CLEAR]


@dataclass(frozen=True)
class _Reading:
    """A page's text without the answer's span: token positions of its ``words``, and how clear tokens (T,) and boxes
    (W,) are, in nats."""

    example: Encoded
    words: list[list[int]]
    odds: Floats
    box_odds: Floats


def _readings(model: LayoutLMv3, tables: Mapping[str, Floats]) -> Iterator[_Reading]:
    """The different texts that the search ends in, from several first guesses."""
    noise = max(noise_of(tables[name]) for name in (WORDS, *COORDINATES.values()))
    positions = tables[POSITIONS][int(model.module.config.pad_token_id) + 1 :]
    used = rows_in_use(tables[WORDS], noise)
    size = np.linalg.norm(positions, axis=1)
    longest = int(np.flatnonzero(size > FAINT * size.max())[-1]) + 1 if size.any() else 0
    if not len(used) or not longest:
        raise AttackError("no row of the tables of words and positions rises above the noise, so no page does.")
    separator, lengths, seen = int(model.tokenizer.sep_token_id), [longest], set()
    for length in lengths:  # those that texts turn out to have are added
        vectors = positions[:length]
        for start in _starts(vectors, tables[WORDS][used]):
            tokens = owners(vectors, tables[WORDS][used], start)
            ids = used[tokens.owner]
            end = _end(ids, separator)
            if end < length:
                lengths += [end] if end not in lengths else []
            elif ids.tobytes() not in seen:
                seen.add(ids.tobytes())
                yield _reading(model, ids, tokens, vectors, tables, noise)


def _starts(vectors: Floats, sums: Floats) -> Iterator[Indices | None]:
    yield None
    sizes, width = np.linalg.norm(vectors, axis=1), vectors.shape[1]
    for share in SHARES:
        noise = share * float(sizes.max()) / 2 / width**0.5
        cover = Cover(vectors, sizes, np.ones(len(vectors), dtype=np.intp), sums, Precision(noise=noise))
        while cover.explain():
            pass
        cover.guess()
        yield cover.owner


def _end(ids: Indices, separator: int) -> int:
    """The length of ``<s> question </s></s> page </s>``; of all tokens where they are not of that form."""
    at = np.flatnonzero(ids == separator)
    pairs = at[:-1][np.diff(at) == 1]
    behind = at[at > pairs[0] + 1] if len(pairs) else at[:0]
    return int(behind[0]) + 1 if len(behind) else len(ids)


def _reading(
    model: LayoutLMv3, ids: Indices, tokens: Likeliest, vectors: Floats, tables: Mapping[str, Floats], noise: float
) -> _Reading:
    names = model.tokenizer.convert_ids_to_tokens(ids.tolist())
    words, rest = group_words(names, model.tokenizer.sep_token)
    x, y, height, width = (tables[name] for name in COORDINATES.values())
    boxes, odds = np.zeros((len(ids), 4), dtype=np.intp), np.zeros(len(words))
    axes = [axis.likeliest() for axis in spans_of(vectors, words, rest, Tables(x, y, height, width), noise)]
    if axes and words:
        across, down = axes
        odds = np.minimum(across.odds, down.odds)
        for word, first, second in zip(words, across.owner, down.owner, strict=True):
            boxes[word] = first[0], second[0], first[1], second[1]
    return _Reading(encoded(ids, names, Layout(words, boxes, False), model), words, tokens.odds, odds)


def _picture(view: GradientView, knowledge: Knowledge) -> tuple[Tensor, Tensor, int]:
    """The page beside the template that fits the gradient best, what is determined of it, and that one's number."""
    system = System.of(view)
    sides: list[tuple[float, int, Floats, Mask]] = []
    for number in range(len(knowledge.template)):
        template, private = knowledge.template[number : number + 1], knowledge.private[number : number + 1]
        known, unknown = system.blocks(template), system.blocks(private[:, None])[..., 0] > 0
        sides.append((misfit(system, known, unknown), number, known, unknown))
    _, slot, known, unknown = min(sides, key=lambda side: side[:2])
    solution = solve(system, known, unknown)
    template, private = knowledge.template[slot : slot + 1], knowledge.private[slot : slot + 1]
    pixels = torch.where(private[:, None], system.picture(solution.pixels, template).clamp(0, 1), template)
    determined = system.picture(solution.determined[..., None], template)[:, 0] > 0
    return pixels, determined & private, slot


def _left(view: GradientView, pixels: Tensor, example: Encoded) -> float:
    """The share of the squared gradient that the page's own, as one of a mean, leaves unexplained; or, where that is
    next to nothing, as all of them: a batch may be filled up with one page."""
    with inference_mode_of(view):
        page = dummy_gradient(view.model, pixels, [example], view.names, create_graph=False)
    one, every = (_unexplained(view, {n: v * share for n, v in page.items()}) for share in (1 / view.batch_size, 1.0))
    return every if every <= WHOLE else one


def _unexplained(view: GradientView, page: Mapping[str, Tensor]) -> float:
    sent = view.as_sent(page)
    left = sum(float((value - sent[name]).double().square().sum()) for name, value in view.gradient.items())
    return left / sum(float(value.double().square().sum()) for value in view.gradient.values())
