"""Fishing: Wen et al., Fishing for User Data in Large-Batch Federated Learning via Gradient Magnification (ICML 2022).
A server changes the output layer, so that one example's gradient outweighs the batch's, and reads that one.

Theirs sends a head whose rows of all classes but one are silenced, or which is cut at one feature. A span head has no
row per class, and a decoder's rows are tied to the tokens that it reads; so ours multiplies what the head makes of its
input by ``gain``: what is answered rightly, or surely, weighs less by a power of it, and the least sure answer stays.
What comes back is read as if it were that one page's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from docleak.attacks.gradients.algebra.bag import looked_up, tables_of
from docleak.attacks.gradients.algebra.dominant import clearest
from docleak.attacks.gradients.algebra.donut import recover_text
from docleak.attacks.gradients.view import GradientView
from docleak.attacks.servers.view import Loot, PublicPages, Sent, Token
from docleak.errors import AttackError
from docleak.models.base import DocumentModel
from docleak.models.donut import Donut
from docleak.models.layoutlmv3 import LayoutLMv3

#: Rows of the table of tokens shorter than this share of the longest are other pages'.
FAINT = 1e-8

#: Architecture -> how the names end of what stands between the network and its scores, and is tied to nothing.
HEADS: Mapping[str, tuple[str, ...]] = {
    "layoutlmv3": ("qa_outputs.out_proj.weight", "qa_outputs.out_proj.bias"),
    "donut": ("decoder.model.decoder.layer_norm.weight", "decoder.model.decoder.layer_norm.bias"),
    "vt5": ("t5.decoder.final_layer_norm.weight",),
    "language": ("language_model.norm.weight", "text_model.norm.weight"),
}


@dataclass(frozen=True)
class Fishing:
    """``gain`` is what scores are multiplied by; with 1 nothing is changed, which is the control."""

    name: str = "fishing"
    paper: str = "after Wen et al. (2022)"
    summary: str = "scores made surer, so that the least sure page outweighs its batch, and is read as if it were it"
    changes: str = "weights of the output layer"
    gain: float = 4.0
    one_page: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.gain > 0:
            raise AttackError(f"{self.name} has gain={self.gain}; expected more than 0.")

    def obstacle(self, model: DocumentModel) -> str:
        """Why the model's scores cannot be scaled; "" where they can."""
        return "" if heads(model) else f"{model.name!r} has no output layer under a name that is known"

    @torch.no_grad()
    def manipulate(self, model: DocumentModel, public: PublicPages, *, generator: torch.Generator) -> Sent:
        """A copy whose scores are ``gain`` times as large."""
        if fault := self.obstacle(model):
            raise AttackError(fault)
        copy = deepcopy(model)
        for parameter in heads(copy):
            parameter.mul_(self.gain)
        return Sent(copy)

    def read(self, sent: Sent, update: Mapping[str, Tensor]) -> Loot:
        """The tokens of one page, with their places where the model has learned them; nothing where none is clear."""
        try:
            return Loot(tokens=tuple(_tokens(GradientView(sent.model, update))))
        except AttackError:  # a part of the gradient without the text's tables
            return Loot()


def heads(model: DocumentModel) -> list[torch.nn.Parameter]:
    """What is scaled."""
    ends = HEADS.get(model.architecture, HEADS["language"])
    return [parameter for name, parameter in model.module.named_parameters() if name.endswith(ends)]


def _tokens(view: GradientView) -> Iterable[Token]:
    if isinstance(view.model, LayoutLMv3):
        return [Token(token, place, 1.0) for place, token in clearest(view)]
    if isinstance(view.model, Donut):
        ids = recover_text(view).inputs[0].tensors["decoder_input_ids"]
        return [Token(int(token), place, 1.0) for place, token in enumerate(ids)]
    table = view.gradient.get(tables_of(view.model)[0])
    if table is None or not bool(table.any()):
        raise AttackError("the update says nothing of the table of tokens.")
    rows = table.detach().cpu().double()
    belief = looked_up(rows, FAINT * float(rows.norm(dim=1).max()) / rows.shape[1] ** 0.5)
    return [Token(int(token), -1, 1.0) for token in (belief > 0.5).nonzero().flatten()]


ATTACK = Fishing()
