"""Which words a client trained on in a whole round, from what its update did to the embedding tables (docleak).

A row of a table moves only if its token was looked up, whatever the number of steps and the size of the batches; decay
takes the same share of every row, known or not. The set of moved rows is the bag of words of everything the client
trained on. VT5's and LayoutLMv3's tables of coordinates give the places of the words in the same way.

Where the table is also the output layer (T5, Donut), each step moves every row, along few directions that all rows have
in common: p_t(v) h_t for token v and the hidden states h_t of the answers. Rows of looked-up tokens leave that common
way. They are told apart as two normal distributions, one with the covariance of the common way, begun from the half of
the rows that agrees best (minimum covariance determinant, Rousseeuw, 1984), and refined by expectation-maximisation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from docleak.attacks.gradients.local_steps import EPSILON, Optimiser
from docleak.errors import AttackError
from docleak.models.base import DocumentModel

#: architecture -> (the table of tokens, tables of coordinates).
TABLES: dict[str, tuple[str, Mapping[str, str]]] = {
    "vt5": ("t5.shared.weight", {"x": "spatial.x.weight", "y": "spatial.y.weight"}),
    "fedocvqa": ("t5.shared.weight", {}),
    "donut": ("decoder.model.decoder.embed_tokens.weight", {}),
    "lilt": (
        "lilt.embeddings.word_embeddings.weight",
        {axis: f"lilt.layout_embeddings.{axis}_position_embeddings.weight" for axis in "xy"},
    ),
    "layoutlmv3": (
        "layoutlmv3.embeddings.word_embeddings.weight",
        {
            "x": "layoutlmv3.embeddings.x_position_embeddings.weight",
            "y": "layoutlmv3.embeddings.y_position_embeddings.weight",
        },
    ),
}
#: In the names of peft: a part that is trained whole beside adapters, and LoRA's factor with a column a token.
COPY, COLUMNS = ".modules_to_save.default.", ".lora_embedding_A.default"
#: From this share of moved rows on, the table is taken to be the output layer as well.
EVERY = 0.9
#: Standard deviation, in steps, of what an AdamW step does to a number whose gradient has a common sign.
SIGN_NOISE = 0.3
#: How much of the looked-up rows' covariance is thought away off its diagonal: they are few.
SHRINKAGE = 0.5
ROUNDS, SETTLED = 40, 1e-3
#: How many times farther than half of the numbers one may be that only rounding moved, and how far, in EPSILON, half of
#: them are: after four hundred steps.
ROUNDED, MOST_ROUNDED = 12.0, 3.0
#: Rows that are looked at together, which bounds memory.
BLOCK = 8192
#: How many times the spread of rows' shares their median is where it is a decay that nobody told.
CLEAR = 5.0


def tables_of(model: DocumentModel) -> tuple[str, Mapping[str, str]]:
    """The name of the model's table of tokens ("" where none is known), and those of its tables of coordinates.

    An adapter may name its own table of tokens (``token_table``), as that of vision-language models does. Where peft
    trains a copy of one (modules_to_save), that is it.
    """
    name, axes = TABLES.get(model.architecture, (str(getattr(model, "token_table", "")), {}))
    copies = {one.replace(COPY, "."): one for one, _ in model.module.named_parameters() if COPY in one}
    return copies.get(name, name), {axis: copies.get(table, table) for axis, table in axes.items()}


@dataclass(frozen=True)
class Bag:
    """``tokens`` are ids without order or number. ``belief`` (V,) is the probability of each.

    ``exact`` where rows that were not looked up did not move at all. ``coordinates`` are values looked up per axis, in
    the model's scale.
    """

    tokens: tuple[int, ...]
    belief: Tensor
    exact: bool
    coordinates: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def bag_of_words(
    model: DocumentModel,
    update: Mapping[str, Tensor],
    *,
    optimiser: Optimiser | None = None,
    steps: float = 1,
    resolution: float = 0.0,
) -> Bag:
    """The bag of words of an update in the units of a gradient (``Optimiser.as_gradient``), or of a gradient.

    ``model`` holds the weights the client started from. ``resolution`` is the largest error of what was received, in
    the units of the weights (a sum in fixed point has one). Raises AttackError for an architecture without a known
    table of tokens, and where its update is missing or zero (frozen).
    """
    name, axes = tables_of(model)
    if not name:
        raise AttackError(f"{model.architecture} has no known table of tokens; bags are read of {', '.join(TABLES)}.")
    parameters = dict(model.module.named_parameters())
    part = name.removesuffix(".weight").removesuffix(".base_layer").removesuffix(".token_adapter")
    if adapters := sorted(one for one in update if one.startswith(f"{part}.") and one != name):
        if (columns := part + COLUMNS) not in adapters:
            raise AttackError(
                f"of {name} came {adapters[0]}, which is not read: whether it tells the words is unknown."
            )
        update, parameters = ({**both, name: both[columns].T} for both in (update, parameters))  # type: ignore[assignment]
    if name not in update or not bool(update[name].any()):
        raise AttackError(f"the update says nothing of {name}: it was frozen or not sent, so there is no bag of words.")
    error = resolution / (optimiser.learning_rate * steps) if optimiser else resolution
    moved = {
        table: _moved(update[table].cpu(), parameters[table].detach().cpu(), optimiser, error)
        for table in (name, *axes.values())
        if table in update
    }
    coordinates = {axis: _ids(moved[table]) for axis, table in axes.items() if table in moved}
    exact = float(moved[name].float().mean()) < EVERY
    if exact:
        belief = moved[name].double()
    else:
        rows, start = update[name].cpu(), parameters[name].detach().cpu()
        share, spread = _decay(rows, start)
        rows = rows - share * start.double() if abs(share) > CLEAR * spread else rows
        belief = looked_up(rows, _floor(start, optimiser, steps))
    return Bag(_ids(belief > 0.5), belief, exact, coordinates)


def steps_by_decay(model: DocumentModel, delta: Mapping[str, Tensor], optimiser: Optimiser) -> float | None:
    """The local steps behind a weight delta, by what decay did to the rows of coordinates that nobody looked up.

    A mean over clients, and so no whole number, where ``delta`` is a mean. Half of the rows must have been left alone.
    None without decay or such a table.
    """
    decay = optimiser.learning_rate * optimiser.weight_decay
    _, axes = tables_of(model)
    named = dict(model.module.named_parameters())
    ratios = [
        (delta[table].cpu().double() / named[table].detach().cpu().double()).flatten()
        for table in axes.values()
        if table in delta
    ]
    if not ratios or decay <= 0:
        return None
    share = float(torch.cat(ratios).nanmedian())
    return math.log1p(-share) / math.log1p(-decay) if 0 < share < 1 else None


def looked_up(rows: Tensor, floor: float) -> Tensor:
    """Probability (V,) that each of the ``rows`` (V, d) left the way that most of them have in common.

    ``floor`` is the standard deviation per number of what is no signal. At least half of the rows must be on that way.
    """
    rows = rows.double()
    belief = _beyond(_agreeing(rows, floor)).double()
    for _ in range(ROUNDS):
        share = belief.mean().clamp(1e-9, 1 - 1e-9)
        common, other = _normal(rows, 1 - belief, floor, 0.0), _normal(rows, belief, floor, SHRINKAGE)
        new = torch.sigmoid(other - common + share.log() - (1 - share).log())
        change, belief = float((new - belief).abs().max()), new
        if change < SETTLED:
            break
    return belief


def _moved(update: Tensor, start: Tensor, optimiser: Optimiser | None, error: float) -> Tensor:
    """Rows (V,) that moved by more than the rounding of their weights and ``error``, in the units of ``update``.

    Where that is about all of them, what most rows lose of themselves is taken for a decay that nobody told (of another
    rate, inside the gradient, scaled for each tensor), unless no fewer moved beside it.
    """
    rate = torch.inf if optimiser is None else optimiser.learning_rate
    rounding = EPSILON * start.abs().clamp_min(1e-30) / rate + error
    moved = (update.abs() > rounding).any(1)
    if float(moved.float().mean()) < EVERY:
        return moved
    share, some = _decay(update, start)[0], slice(None, None, 1 + len(start) // BLOCK)
    spread = ((update[some] - share * start[some].double()) / start[some]).abs().nanmedian().nan_to_num(torch.inf)
    slack = 0.0 if optimiser is None else ROUNDED * float(spread)
    beside = torch.cat(
        [
            ((u - share * w.double()).abs() > r.clamp_min(slack * w.abs()) + 2 * EPSILON * u.abs()).any(1)
            for u, w, r in zip(*(torch.split(rows, BLOCK) for rows in (update, start, rounding)), strict=True)
        ]
    )
    decayed = optimiser is None or float(spread) < MOST_ROUNDED * EPSILON / rate
    return beside if decayed and 0 < float(beside.float().mean()) < EVERY else moved


def _decay(update: Tensor, start: Tensor) -> tuple[float, float]:
    """The share that most rows of ``update`` are of their own weights, and how far half of theirs are from it. Not a
    number where most rows are zeros."""
    pairs = zip(torch.split(update, BLOCK), torch.split(start, BLOCK), strict=True)
    shares = torch.cat([(u * w).sum(1) / w.square().sum(1) for u, w in ((u, w.double()) for u, w in pairs)])
    share = shares.nanmedian()
    return float(share), float((shares - share).abs().nanmedian())


def _floor(start: Tensor, optimiser: Optimiser | None, steps: float) -> float:
    size = float(start.detach().double().square().mean().sqrt())
    if optimiser is None:
        return EPSILON * size
    return SIGN_NOISE / steps if optimiser.kind == "adamw" else EPSILON / 4 * size / optimiser.learning_rate


def _ids(mask: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in mask.nonzero().flatten())


def _agreeing(rows: Tensor, floor: float) -> Tensor:
    """Squared distances (V,) from the half of the rows (as logarithms) whose covariance is least, found by steps."""
    length = rows.norm(dim=1)
    half = (length <= length.median()).double()
    distance = _distance(rows, half, floor)
    for _ in range(ROUNDS):
        new = torch.zeros_like(half)
        new[distance.argsort()[: len(rows) // 2]] = 1.0
        if bool((new == half).all()):
            break
        half, distance = new, _distance(rows, new, floor)
    return distance.log()


def _beyond(distance: Tensor) -> Tensor:
    """Which (V,) lie beyond the best cut of all in two, made in the upper half (Otsu, 1979)."""
    ordered = distance.sort().values
    total, sums = len(ordered), ordered.cumsum(0)
    below = torch.arange(1, total, dtype=ordered.dtype)
    gap = sums[:-1] / below - (sums[-1] - sums[:-1]) / (total - below)
    between = below * (total - below) * gap.square()
    first = total // 2 - 1
    return distance > ordered[int(between[first:].argmax()) + first]


def _moments(rows: Tensor, weight: Tensor, floor: float, shrinkage: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (d,), and eigenvalues and vectors of the weighted covariance."""
    mean = (weight[:, None] * rows).sum(0) / weight.sum()
    centred = (rows - mean) * weight.sqrt()[:, None]
    covariance = centred.T @ centred / weight.sum()
    covariance = (1 - shrinkage) * covariance + shrinkage * torch.diag(covariance.diagonal())
    values, vectors = torch.linalg.eigh(covariance)
    return mean, values.clamp_min(0) + floor**2, vectors


def _distance(rows: Tensor, weight: Tensor, floor: float) -> Tensor:
    mean, values, vectors = _moments(rows, weight, floor, 0.0)
    return (((rows - mean) @ vectors).square() / values).sum(1)


def _normal(rows: Tensor, weight: Tensor, floor: float, shrinkage: float) -> Tensor:
    """Log-density (V,) of the weighted rows' normal distribution."""
    mean, values, vectors = _moments(rows, weight, floor, shrinkage)
    squared = (((rows - mean) @ vectors).square() / values).sum(1)
    return -0.5 * (squared + values.log().sum() + rows.shape[1] * math.log(2 * math.pi))
