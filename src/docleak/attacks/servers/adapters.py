"""Tokens out of low-rank adapters' gradients, after PEFTLeak (Sami et al., CVPR 2025): a server that made both the
frozen model and the adapters on it gets inputs back although only adapters are sent.

Theirs are bottleneck adapters in vision transformers, with an activation of their own. LoRA has none; ours borrows that
of the layer it is on: the frozen layer is made empty, so that the adapter alone decides which rows fire. The gradient
of B then holds, row by row, A times the tokens: r numbers of each, by which a token is recognised among all there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from docleak.attacks.servers.anatomy import Body
from docleak.attacks.servers.bins import edges, filled, singles
from docleak.attacks.servers.tokens import inputs_at, level, nearly_one
from docleak.attacks.servers.view import Loot, PublicPages, Sent
from docleak.errors import AttackError
from docleak.models.base import DocumentModel

DOWN, UP = ".lora_A.default.weight", ".lora_B.default.weight"


@dataclass(frozen=True)
class AdapterServer:
    """``gain`` as in ``TokenServer``; with r numbers of a token it takes a cosine nearer to 1 to be ``sure``."""

    name: str = "adapter-bins"
    paper: str = "after Sami et al. (2025)"
    summary: str = "LoRA on an emptied feed-forward layer made bins: tokens from the adapters' gradient alone"
    changes: str = "weights, and the frozen base model"
    gain: float = 20.0
    sure: float = 0.9995

    def obstacle(self, model: DocumentModel) -> str:
        """Why no adapter of the model can be made bins; "" where one can."""
        try:
            body = Body.of(model)
        except AttackError as fault:
            return str(fault)
        if not usable(body).layers:
            return f"{model.name!r} has no LoRA on a feed-forward layer that tokens pass; see docleak models adapt"
        return ""

    @torch.no_grad()
    def manipulate(self, model: DocumentModel, public: PublicPages, *, generator: torch.Generator) -> Sent:
        """A copy with another base and other adapters, of the same shapes."""
        if fault := self.obstacle(model):
            raise AttackError(fault)
        copy = deepcopy(model)
        body = usable(Body.of(copy))
        body.prepare()
        for name, parameter in body.parameters.items():
            if name.endswith(UP):
                parameter.zero_()
        for number in body.layers:
            seen = inputs_at(copy, body, number, public)
            place = body.name(body.anatomy.expand, number)
            down, up = body.parameters[place + DOWN], body.parameters[place + UP]
            scaling = float(_layer(copy, place).scaling["default"])
            drawn = torch.randn(down.shape, generator=generator, dtype=torch.float64) / down.shape[1] ** 0.5
            body.weight(body.anatomy.expand, number).zero_()
            bias = body.bias(body.anatomy.expand, number)
            if bias is None:
                drawn[1] = nearly_one(seen)
            against = torch.ones(len(seen), dtype=torch.float64) if bias is not None else seen @ drawn[1]
            cut = edges(seen @ drawn[0] / against, len(up))
            sharp = self.gain / torch.diff(cut).median().clamp_min(1e-12)
            down.copy_(drawn)
            up[:, 0] = sharp / scaling
            if bias is not None:
                bias.copy_(-sharp * cut)
            else:
                up[:, 1] = -sharp * cut / scaling
            level(body, number, (sharp * (seen @ drawn[0])[:, None] - sharp * cut * against[:, None]), generator)
        return Sent(copy)

    def read(self, sent: Sent, update: Mapping[str, Tensor]) -> Loot:
        """Tokens by what A makes of them, from the gradients of B."""
        body = usable(Body.of(sent.model))
        candidates = body.candidates()
        matches = []
        for number in body.layers:
            place = body.name(body.anatomy.expand, number)
            sums = singles(update[place + UP].detach().double())
            behind = candidates.through(body.parameters[place + DOWN].detach().double())
            matches += behind.nearest(sums[filled(sums)])
        return Loot.of_tokens(matches, self.sure)


def usable(body: Body) -> Body:
    """The body with those layers alone whose bins can be adapters of rank 3 or more."""
    downs = {n: body.parameters.get(body.name(body.anatomy.expand, n) + DOWN) for n in body.layers}
    return replace(body, layers=tuple(n for n, down in downs.items() if down is not None and len(down) >= 3))


def _layer(model: DocumentModel, place: str) -> Any:
    return model.module.get_submodule(place)


ATTACK = AdapterServer()
