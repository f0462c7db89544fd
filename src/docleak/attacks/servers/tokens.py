"""Tokens out of a feed-forward layer: Decepticons (Fowl et al., ICLR 2023), and trap weights (Boenisch et al., When the
Curious Abandon Honesty, EuroS&P 2023), in the layers of document models.

Attention is silenced, so that every token reaches the first feed-forward layers as its own vector and its place's.
Decepticons' rows are bins: one direction, ascending thresholds, one gradient for all, so that neighbours differ by the
tokens in between. Trap weights are random rows with a threshold that about one token of a batch passes; what a row's
gradient says is read as it is. Ours: thresholds by a ratio of two directions where a layer has no bias (T5, Llama). Not
here: Decepticons' code for which sentence a token is from, which a batch of pages needs to be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from docleak.attacks.hooks import read_by
from docleak.attacks.servers.anatomy import Body
from docleak.attacks.servers.bins import edges, filled, singles
from docleak.attacks.servers.view import Loot, PublicPages, Sent
from docleak.errors import AttackError
from docleak.models.base import DocumentModel


@dataclass(frozen=True)
class TokenServer:
    """``bins`` of one direction, or ``traps`` of random ones; rows are ``gain`` times as long as the spread of what
    they measure asks for, which makes them sharp. A token counts as read from a cosine of ``sure`` on.

    To look less manipulated, only a ``share`` of the rows is used, set for few tokens, among random rows of the same
    length; and ``left`` of what mixes tokens stays in place of nothing.
    """

    name: str
    paper: str
    summary: str
    rows: Literal["bins", "traps"]
    changes: str = "weights"
    gain: float = 20.0
    sure: float = 0.995
    share: float = 1.0
    left: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.share <= 1 and 0 <= self.left < 1):
            raise AttackError(
                f"{self.name} has share={self.share} and left={self.left}; expected a share above 0, at most 1, and "
                "less than 1 left."
            )

    def obstacle(self, model: DocumentModel) -> str:
        """Why no token can be kept apart in the model; "" where it can."""
        try:
            body = Body.of(model)
        except AttackError as fault:
            return str(fault)
        frozen = [name for name in (body.name(body.anatomy.expand, n) + ".weight" for n in body.layers)
                  if not body.parameters[name].requires_grad]  # fmt: skip
        return f"{frozen[0]} is not trained, so that no gradient of it is sent" if frozen else ""

    def manipulate(self, model: DocumentModel, public: PublicPages, *, generator: torch.Generator) -> Sent:
        """A copy whose first feed-forward layers hold bins or traps, set by what public pages look like there."""
        if fault := self.obstacle(model):
            raise AttackError(fault)
        copy = deepcopy(model)
        body = Body.of(copy)
        body.prepare(self.left)
        for number in body.layers:
            seen = inputs_at(copy, body, number, public)
            passing = len(seen) * public.expected / len(public.inputs)
            self._set(body, number, seen, passing, generator)
        return Sent(copy)

    @torch.no_grad()
    def _set(self, body: Body, number: int, seen: Tensor, passing: float, generator: torch.Generator) -> None:
        """``passing`` tokens are expected in what comes back."""
        weight, bias = body.weight(body.anatomy.expand, number), body.bias(body.anatomy.expand, number)
        rows, width = weight.shape
        used = max(2, round(self.share * rows))
        drawn = torch.randn(rows, width, generator=generator, dtype=torch.float64) / width**0.5
        by = nearly_one(seen)
        against = torch.ones(len(seen), dtype=torch.float64) if bias is not None else seen @ by
        measured = seen @ drawn.T / against[:, None]  # (n, rows)
        if self.rows == "bins":
            drawn[:used] = drawn[0]
            known = measured[:, 0]
            cut = edges(known if used == rows else known[known >= known.quantile(max(0.0, 1 - used / passing))], used)
            sharp = self.gain / torch.diff(cut).median().clamp_min(1e-12)
        else:
            cut = measured[:, :used].quantile(1 - min(0.5, 1 / passing), dim=0)
            sharp = self.gain / measured.std(0).median()
        beyond = measured.abs().max().expand(rows - used)  # the others never fire
        cut = torch.cat([cut, 2 * beyond])
        drawn = sharp * drawn
        if bias is not None:
            bias.copy_(-sharp * cut)
        else:
            drawn[:used] -= sharp * cut[:used, None] * by
        weight.copy_(drawn)
        if self.rows == "bins":
            said = seen @ drawn[:used].T - (sharp * cut[:used] if bias is not None else 0)
            level(body, number, said, generator)

    def read(self, sent: Sent, update: Mapping[str, Tensor]) -> Loot:
        """Each token once for each place at which a row, or the difference of two, looks like it."""
        body = Body.of(sent.model)
        candidates = body.candidates()
        matches = []
        for number in body.layers:
            gradient = update[body.name(body.anatomy.expand, number) + ".weight"].detach().double()
            gradient = gradient[: max(2, round(self.share * len(gradient)))]
            inputs = singles(gradient) if self.rows == "bins" else gradient
            matches += candidates.nearest(inputs[filled(inputs)])
        return Loot.of_tokens(matches, self.sure)


@torch.no_grad()
def level(body: Body, number: int, said: Tensor, generator: torch.Generator) -> None:
    """Let every row used pass the same gradient on, and write next to nothing; ``said`` (n, rows used) is what public
    inputs make of them."""
    anatomy = body.anatomy
    out = body.weight(anatomy.contract, number)
    column = torch.randn(len(out), generator=generator).to(out)
    if anatomy.partner:
        partner = body.weight(anatomy.partner, number)
        row = torch.randn(partner.shape[1], generator=generator).to(partner) / partner.shape[1] ** 0.5
        partner[: said.shape[1]] = row
    fired = said.relu().sum(1)
    size = float(fired[fired > 0].mean()) if bool((fired > 0).any()) else 1.0
    out[:, : said.shape[1]] = (0.1 / size * column)[:, None]


@torch.no_grad()
def inputs_at(model: DocumentModel, body: Body, number: int, public: PublicPages) -> Tensor:
    """What public pages send into the layer of bins, (n, d) in float64."""
    with read_by([model.module.get_submodule(body.name(body.anatomy.expand, number))]) as read:
        model.loss(public.pixels, public.inputs)
    seen = torch.cat([inputs.detach().flatten(0, -2).double().cpu() for _, inputs in read])
    return seen[seen.norm(dim=1) > 1e-6]  # what was silenced arrives as nothing


def nearly_one(seen: Tensor) -> Tensor:
    """The direction (d,) along which all of ``seen`` (n, d) measure about 1: what a layer without a bias has of one."""
    ridge = 1e-2 * seen.square().sum() / seen.shape[1] * torch.eye(seen.shape[1], dtype=seen.dtype)
    direction: Tensor = torch.linalg.solve(seen.T @ seen + ridge, seen.sum(0))
    return direction


DECEPTICONS = TokenServer(
    "decepticons", "Fowl et al. (2023)",
    "attention silenced, feed-forward rows made bins: tokens, with places where the model has learned them", "bins",
)  # fmt: skip
TRAPS = TokenServer(
    "trap-weights", "Boenisch et al. (2023)",
    "attention silenced, feed-forward rows that about one token of a batch passes: tokens as they are", "traps",
)  # fmt: skip
