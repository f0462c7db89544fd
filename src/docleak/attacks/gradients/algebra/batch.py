"""What a LayoutLMv3 client's gradient over several pages gives away without optimisation, and what it does not.

The rows of the word table and of the coordinate tables that moved are the tokens and the edges of all boxes of the
batch, exactly. Where a token stood is another matter: a position's row is the sum over the pages, d_t = sum_b e_bt, and
a token's row the sum over its places. With B pages these are T + V sums over B T unknown vectors, and they do not tell
the tokens of a position: if u and v stand at one and u and w at another, exchanging v and w leaves every sum as it is.
What can be told is told by three things. Tokens that occur once have a row that is their vector, so that a position of
such tokens is the sum of their rows. Every vector is orthogonal to the input it belongs to (see ``layernorm``), so that
places whose box is known, those of the question with its box of zeros, can be tested one by one. And every page begins
and ends with known tokens. Nothing ties a place to a page.

Sums prove what they tell. The test does not: on trained models, where it is less sharp, a wrong token passes now and
then, and a page whose vectors are far smaller than another's is overlooked (docs/results/gi-dqa/closed-form.md).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from docleak.attacks.gradients.algebra.boxes import Tables
from docleak.attacks.gradients.algebra.layoutlmv3 import COARSEST, COORDINATES, POSITIONS, TABLE, WORDS
from docleak.attacks.gradients.algebra.patches import numbers_of, require_tensors
from docleak.attacks.gradients.algebra.recovered import Condition
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
from docleak.models.layoutlmv3 import LayoutLMv3

TYPES = TABLE.format("token_type_embeddings")
#: A cosine counts as 0 up to this many times what it is at a place whose token is known ...
SLACK = 6.0
#: ... or up to this, whichever is more; beyond BLIND the test tells nothing.
LEAST, BLIND = 1e-6, 1e-4
#: There are many boxes for a place: so many may come as close as the next best one has to by chance.
BY_CHANCE = 0.3
#: The best token must fit this many times better than the next best one.
CLEAR = 20.0
#: How many positions of the question may stay open before the search for the next one ends.
GAP = 4

Box = tuple[int, int, int, int]


@dataclass(frozen=True)
class BatchText:
    """``tokens`` (n,) are the ids of the batch; ``coordinates`` those in use per axis, of 0..1000.

    ``length`` is that of the longest page, ``ends`` are the lengths that could be told of others. ``places`` maps a
    position to all of its tokens, each once, in no order: which of them is of which page is not told. ``boxes`` maps
    (position, token) to x0, y0, x1, y1 where that is told too.
    """

    tokens: tuple[int, ...]
    coordinates: Mapping[str, tuple[int, ...]]
    length: int
    ends: tuple[int, ...]
    places: Mapping[int, tuple[int, ...]]
    boxes: Mapping[tuple[int, int], Box]
    conditions: tuple[Condition, ...]
    seconds: float


def recover_batch(view: GradientView) -> BatchText:
    """Tokens, coordinates and the places that are told, of a batch of any size.

    Raises AttackError for other architectures and gradients without the tables.
    """
    started = time.perf_counter()
    tables = (WORDS, POSITIONS, *COORDINATES.values())
    require_tensors(view, tables, one_page=False)
    gradients = {name: numbers_of(view.gradient[name]) for name in tables}
    noise = max(noise_of(gradients[name]) for name in (WORDS, *COORDINATES.values()))
    coordinates = {axis: _ids(rows_in_use(gradients[name], noise)) for axis, name in COORDINATES.items()}
    peeling = _Peeling(view, gradients[WORDS], gradients[POSITIONS], noise)
    peeling.run()
    return BatchText(
        _ids(peeling.tokens),
        coordinates,
        len(peeling.positions),
        tuple(peeling.ends),
        dict(sorted(peeling.places.items())),
        peeling.boxes(coordinates),
        _conditions(view, peeling),
        time.perf_counter() - started,
    )


class _Peeling:
    """What is left of each sum, ``positions`` (T, h) and ``words`` (V, h), while places are explained one by one.

    A place with the box of zeros has ``inputs`` (V, h) of its token + ``empty`` (T, h) of its position as its input.
    """

    def __init__(self, view: GradientView, words: Floats, positions: Floats, noise: float) -> None:
        model = cast(LayoutLMv3, view.model)
        parameters = dict(model.module.named_parameters())
        behind = int(model.module.config.pad_token_id) + 1  # RoBERTa's numbering: the first token has this position
        length = int(rows_in_use(positions[behind:], noise).max(initial=0)) + 1
        self.positions = positions[behind : behind + length].copy()
        self.tokens = rows_in_use(words, noise)
        self.words = words[self.tokens].copy()
        rounding = rounding_of(self.positions, self.words) if noise == 0 else Precision().rounding
        self.agree = rounding < COARSEST
        self.precision = Precision(rounding if self.agree else Precision().rounding, noise)
        self.spent = np.linalg.norm(self.words, axis=1)
        self.tables = Tables(*(numbers_of(parameters[name]) for name in COORDINATES.values()))
        x, y, height, width = (numbers_of(parameters[name])[0] for name in COORDINATES.values())
        box = np.concatenate([x, y, x, y, height, width])
        self.inputs = _centred(numbers_of(parameters[WORDS])[self.tokens])
        self.no_box = _centred(box[None])[0]
        self.empty = _centred(
            numbers_of(parameters[POSITIONS])[behind : behind + length] + numbers_of(parameters[TYPES])[0] + box
        )
        begin, end = (int(i) for i in model.tokenizer.convert_tokens_to_ids(
            [model.tokenizer.cls_token, model.tokenizer.sep_token]
        ))  # fmt: skip
        self.begin, self.end = (int(np.searchsorted(self.tokens, token)) for token in (begin, end))
        self.known = bool(np.isin([begin, end], self.tokens).all())
        self.places: dict[int, tuple[int, ...]] = {}
        self.ends: list[int] = []
        self.vectors: dict[tuple[int, int], Floats] = {}  # (position, number of the token) -> its own vector
        self.floor, self.tolerance = 1.0, 1.0

    @property
    def sees(self) -> bool:
        """Whether the test of one place tells anything."""
        return self.tolerance <= BLIND

    def run(self) -> None:
        """Explain positions until none is left that can be."""
        last = len(self.positions) - 1
        if self.known and last > 0:
            known = [(0, self.begin), (last, self.end)]
            self.floor = max(
                float(cosines(self.positions[[t]], self.inputs[[n]] + self.empty[[t]])[0]) for t, n in known
            )
            self.tolerance = max(SLACK * self.floor, LEAST)
            for t, number in known:
                self._settle(t, (number,))
        while self._question() or self._sums():
            pass
        self._end()

    def _settle(self, position: int, numbers: tuple[int, ...]) -> None:
        """Explain a position by tokens: the rows of all but the last are of this place alone."""
        *others, rest = numbers
        for number in others:
            self.positions[position] -= self.words[number]
            self.words[number] = 0.0
        size = float(np.linalg.norm(self.positions[position]))
        self.words[rest] -= self.positions[position]
        self.positions[position] = 0.0
        self.spent[rest] += size
        if np.linalg.norm(self.words[rest]) <= self.precision.tolerance(self.spent[rest], 1, self.words.shape[1]):
            self.words[rest] = 0.0
        self.places[position] = tuple(sorted(int(self.tokens[number]) for number in numbers))

    def _question(self) -> bool:
        """Explain positions whose box is all zeros, from the first on until too many stay open; True if any was."""
        changed, gap, t = False, 0, 0
        while self.sees and gap <= GAP and t < len(self.positions):
            tokens = () if t in self.places else self._at(t)
            if tokens:
                self._settle(t, tokens)
                changed = True
            gap = 0 if t in self.places else gap + 1
            t += 1
        return changed

    def _at(self, t: int) -> tuple[int, ...]:
        """The tokens at a position with the box of zeros: one, or one that occurs nowhere else and another."""
        alone = self._rest(self.positions[t], t)
        if alone is not None:
            return (alone,)
        for number in np.flatnonzero(cosines(self.words, self.inputs + self.empty[t]) <= self.tolerance):
            rest = self._rest(self.positions[t] - self.words[number], t)
            if rest is not None and rest != number:
                return int(number), rest
        return ()

    def _rest(self, vector: Floats, t: int) -> int | None:
        """The token that alone explains a vector at a position with the box of zeros, or None."""
        fits = cosines(np.broadcast_to(vector, self.inputs.shape), self.inputs + self.empty[t])
        return self._clear(fits)

    def _clear(self, fits: Floats) -> int | None:
        """The best of cosines (n,), if it is 0 as far as can be seen and no other one nearly is."""
        best = int(fits.argmin())
        second = float(np.delete(fits, best).min(initial=1.0))
        return best if fits[best] <= self.tolerance and CLEAR * fits[best] < second else None

    def _sums(self) -> bool:
        """Positions that are sums of whole rows, of tokens that occur nowhere else."""
        open_ = np.array([t for t in range(len(self.positions)) if t not in self.places], dtype=np.intp)
        left = np.flatnonzero(np.abs(self.words).max(axis=1, initial=0) > 0)
        if not len(open_) or not len(left):
            return False
        terms = np.ones(len(left), dtype=np.intp)
        cover = Cover(self.words[left], self.spent[left], terms, self.positions[open_], self.precision)
        while cover.explain():
            pass
        settled = False
        for row in np.setdiff1d(np.arange(len(open_)), cover.open):
            numbers = tuple(int(n) for n in left[cover.owner == row])
            if not numbers:  # nothing of this position came: the sum of no rows, which tells of no token
                continue
            settled = True
            self.vectors |= {(int(open_[row]), number): self.words[number].copy() for number in numbers}
            self._settle(int(open_[row]), numbers)
        return settled

    def boxes(self, coordinates: Mapping[str, Sequence[int]]) -> dict[tuple[int, int], Box]:
        """The box of every token whose own vector is known: the one of all in use that the vector is orthogonal to."""
        x, y = (spans(coordinates[edge], coordinates[size]) for edge, size in (("x", "w"), ("y", "h")))
        boxes = {}
        for (t, number), vector in self.vectors.items() if self.sees and len(x) and len(y) else ():
            fits = self._box_cosines(t, number, vector, x, y)
            best = self._clear(fits.ravel())
            near = max(CLEAR * float(fits.min()), SLACK * self.floor)
            chance = fits.size * near / float(np.median(fits))
            if best is not None and chance <= BY_CHANCE:
                (x0, x1), (y0, y1) = x[best // len(y)], y[best % len(y)]
                boxes[t, int(self.tokens[number])] = (int(x0), int(y0), int(x1), int(y1))
        return boxes

    def _box_cosines(self, t: int, number: int, vector: Floats, x: Indices, y: Indices) -> Floats:
        """|cosine| (X, Y) of a vector with the input of a token, for each pair of spans (X, 2) and (Y, 2)."""
        known = self.inputs[number] + self.empty[t] - self.no_box
        parts = [vector[part] for part in self.tables.slices()]
        across = self.tables.x @ parts[0], self.tables.x @ parts[2], self.tables.width @ parts[5]
        down = self.tables.y @ parts[1], self.tables.y @ parts[3], self.tables.height @ parts[4]
        first, second = (a[p[:, 0]] + b[p[:, 1]] + c[p[:, 1] - p[:, 0]] for p, (a, b, c) in ((x, across), (y, down)))
        sums = np.abs(vector @ known + first[:, None] + second)
        return np.asarray(sums / (np.linalg.norm(vector) * np.linalg.norm(known)))

    def _end(self) -> None:
        """Where a shorter page ends, if but one separator is left."""
        if not self.sees or not self.words[self.end].any():
            return
        row = np.broadcast_to(self.words[self.end], self.empty.shape)
        at = self._clear(cosines(row, self.inputs[self.end] + self.empty))
        if at is not None:
            self.ends.append(at + 1)


def cosines(vectors: Floats, inputs: Floats) -> Floats:
    """|cosine| (n,) of vectors (n, h) with inputs (n, h): 0 where they belong together; 1 for vectors of zeros."""
    sizes = np.linalg.norm(vectors, axis=1) * np.linalg.norm(inputs, axis=1)
    dots = np.abs(np.einsum("nh,nh->n", vectors, inputs))
    return np.asarray(np.divide(dots, sizes, out=np.ones_like(dots), where=sizes > 0))


def spans(edges: Sequence[int], sizes: Sequence[int]) -> Indices:
    """(n, 2): pairs of a first and a last edge whose distance is one of the sizes."""
    values = np.asarray(edges, dtype=np.intp)
    pairs = np.stack(np.meshgrid(values, values, indexing="ij"), axis=-1).reshape(-1, 2)
    return np.asarray(pairs[np.isin(pairs[:, 1] - pairs[:, 0], sizes)])


def _conditions(view: GradientView, peeling: _Peeling) -> tuple[Condition, ...]:
    noise, rounding = peeling.precision.noise, peeling.precision.rounding
    pages, length, words = view.batch_size, len(peeling.positions), len(peeling.tokens)
    evidence = f"standard deviation {noise:.1e}" if noise else f"none; sums agree to {rounding:.1e}"
    evidence = evidence if peeling.agree else "the word table's rows do not add up to the positions'"
    test = f"cosine {peeling.floor:.0e} at places that are known"
    unknown, sums = pages * length, length + words
    placed = len(peeling.places)
    return (
        Condition("no noise on the gradient", evidence, noise == 0 and peeling.agree),
        Condition("the norm's test tells places of the question", test, peeling.sees),
        Condition("as many sums as unknown vectors", f"{sums} of {unknown} at most", sums >= unknown),
        Condition("every position is explained", f"{placed} of {length}", placed == length),
        Condition("one page in the batch, so that places are of that page", str(pages), pages == 1),
    )


def _centred(rows: Floats) -> Floats:
    return np.asarray(rows - rows.mean(axis=1, keepdims=True))


def _ids(values: Indices) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
