"""Where tokens pass a feed-forward layer one by one, in each architecture, and what keeps them apart until there."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from docleak.errors import AttackError
from docleak.models.base import DocumentModel

#: What peft puts between a layer's name and that of its weight.
BASE = ".base_layer"


@dataclass(frozen=True)
class Anatomy:
    """One architecture. Names are patterns over a layer's number ``{n}``.

    ``expand`` is the layer whose rows are bins, ``partner`` the other factor of a gated one, ``contract`` what follows.
    ``silenced`` are set to zero in every layer used, so that a token meets no other before ``expand``; ``plain`` norms
    get weight 1 and bias 0. ``last`` says whether the last layer can be used: where only later tokens have a loss, its
    attention has to stay. ``table`` and ``places`` are the tables that are added (the first one times ``scale`` or, if
    that is 0, the root of its width), ``centred`` whether a layer norm takes their mean away.
    """

    expand: str
    contract: str
    table: str
    silenced: tuple[str, ...]
    plain: tuple[str, ...]
    partner: str = ""
    places: str = ""
    first_place: int = 2
    scale: float = 1.0
    centred: bool = True
    last: bool = True


#: What brings the picture to a language model's width, by family; silenced where it is there, to keep bins for words.
PROJECTORS = (
    "model.connector.modality_projection.proj",
    "model.multi_modal_projector.linear",
    "model.visual.merger.mlp.2",
)

_DONUT = "decoder.model.decoder."
_V3 = "layoutlmv3."
_T5 = "t5.encoder.block.{n}."
ANATOMIES: Mapping[str, Anatomy] = {
    "donut": Anatomy(
        expand=_DONUT + "layers.{n}.fc1", contract=_DONUT + "layers.{n}.fc2", table=_DONUT + "embed_tokens",
        places=_DONUT + "embed_positions", scale=0.0, last=False,
        silenced=(_DONUT + "layers.{n}.self_attn.out_proj", _DONUT + "layers.{n}.encoder_attn.out_proj"),
        plain=(_DONUT + "layernorm_embedding", _DONUT + "layers.{n}.final_layer_norm"),
    ),
    "layoutlmv3": Anatomy(
        expand=_V3 + "encoder.layer.{n}.intermediate.dense", contract=_V3 + "encoder.layer.{n}.output.dense",
        table=_V3 + "embeddings.word_embeddings", places=_V3 + "embeddings.position_embeddings",
        silenced=(
            _V3 + "encoder.layer.{n}.attention.output.dense", _V3 + "norm", _V3 + "embeddings.token_type_embeddings",
            *(f"{_V3}embeddings.{side}_position_embeddings" for side in "xyhw"),
        ),
        plain=(
            _V3 + "embeddings.LayerNorm", _V3 + "LayerNorm", _V3 + "encoder.layer.{n}.attention.output.LayerNorm",
            _V3 + "encoder.layer.{n}.output.LayerNorm",
        ),
    ),
    "vt5": Anatomy(
        expand=_T5 + "layer.1.DenseReluDense.wi_0", partner=_T5 + "layer.1.DenseReluDense.wi_1",
        contract=_T5 + "layer.1.DenseReluDense.wo", table="t5.shared", centred=False,
        silenced=(_T5 + "layer.0.SelfAttention.o", "spatial.linear", "visual_projection"),
        plain=(_T5 + "layer.1.layer_norm",),
    ),
    "language": Anatomy(
        expand="{language}layers.{n}.mlp.gate_proj", partner="{language}layers.{n}.mlp.up_proj",
        contract="{language}layers.{n}.mlp.down_proj", table="{language}embed_tokens", centred=False, last=False,
        silenced=("{language}layers.{n}.self_attn.o_proj", *PROJECTORS),
        plain=("{language}layers.{n}.post_attention_layernorm",),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Body:
    """A model's parameters by the names of its anatomy; ``layers`` are the numbers of those that can hold bins."""

    anatomy: Anatomy
    parameters: Mapping[str, Tensor]
    layers: tuple[int, ...]
    language: str = ""

    @classmethod
    def of(cls, model: DocumentModel) -> Body:
        """AttackError for a model without such a layer."""
        parameters = {name.replace(BASE, ""): p for name, p in model.module.named_parameters()}
        anatomy, language = ANATOMIES.get(model.architecture), ""
        if anatomy is None:
            anatomy = ANATOMIES["language"]
            gates = (re.search(r"(.*)layers\.\d+\.mlp\.gate_proj\.weight$", name) for name in parameters)
            language = next((str(gate[1]) for gate in gates if gate), "")
        pattern = re.escape(anatomy.expand.replace("{language}", language)).replace(r"\{n\}", r"(\d+)")
        numbers = {int(m[1]) for name in parameters if (m := re.fullmatch(rf"{pattern}\.weight", name))}
        layers = sorted(numbers) if anatomy.last else sorted(numbers)[:-1]
        if not layers:
            raise AttackError(
                f"{model.name!r}, a {model.architecture}, has no feed-forward layer that its tokens pass one by one "
                "under a name that is known; expected a Donut, LayoutLMv3, VT5, or a language model of two gated "
                "layers or more."
            )
        return cls(anatomy, parameters, tuple(layers), language)

    def name(self, pattern: str, number: int = 0) -> str:
        """The name of the layer of that pattern."""
        return pattern.replace("{language}", self.language).replace("{n}", str(number))

    def weight(self, pattern: str, number: int = 0) -> Tensor:
        """Its weight."""
        return self.parameters[self.name(pattern, number) + ".weight"]

    def bias(self, pattern: str, number: int = 0) -> Tensor | None:
        """Its bias; None where it has none."""
        return self.parameters.get(self.name(pattern, number) + ".bias")

    @torch.no_grad()
    def prepare(self, left: float = 0.0) -> None:
        """Keep tokens apart in every layer that is used; ``left`` of what would mix them stays."""
        there = self.parameters
        for name in {self.name(pattern, number) for pattern in self.anatomy.silenced for number in self.layers}:
            for part in (name + ".weight", name + ".bias"):
                if part in there:
                    there[part].mul_(left)
        for name in {self.name(pattern, number) for pattern in self.anatomy.plain for number in self.layers}:
            there[name + ".weight"].fill_(1.0)
            if name + ".bias" in there:
                there[name + ".bias"].zero_()

    def candidates(self) -> Candidates:
        """What any token at any place is when it reaches the bins, up to its length."""
        anatomy = self.anatomy
        tokens = self.weight(anatomy.table).detach().double()
        tokens = tokens * (anatomy.scale or math.sqrt(tokens.shape[1]))
        places = (
            self.weight(anatomy.places).detach().double() if anatomy.places else tokens.new_zeros(1, tokens.shape[1])
        )
        if anatomy.places:
            places = places[anatomy.first_place :]
        if anatomy.centred:
            tokens, places = (table - table.mean(1, keepdim=True) for table in (tokens, places))
        return Candidates(tokens, places, placed=bool(anatomy.places))


@dataclass(frozen=True)
class Candidates:
    """``tokens`` (V, d) and ``places`` (P, d): token v at place p is the direction of their sum."""

    tokens: Tensor
    places: Tensor
    placed: bool

    def through(self, layer: Tensor) -> Candidates:
        """The same behind a linear layer (r, d) that acts on unit inputs; lengths are kept apart by ``nearest``."""
        return Candidates(self.tokens @ layer.T, self.places @ layer.T, self.placed)

    def nearest(self, inputs: Sequence[Tensor] | Tensor) -> list[tuple[int, int, float]]:
        """(token, place or -1, cosine without its sign) of the likeliest for each of ``inputs`` (n, d)."""
        norms = (
            (self.tokens.square().sum(1)[:, None] + self.places.square().sum(1) + 2 * self.tokens @ self.places.T)
            .clamp_min(1e-300)
            .sqrt()
        )  # (V, P)
        matches = []
        for one in inputs:
            unit = one.double() / one.double().norm().clamp_min(1e-300)
            cosine = ((self.tokens @ unit)[:, None] + self.places @ unit) / norms
            best = int(cosine.abs().argmax())
            token, place = divmod(best, cosine.shape[1])
            matches.append((token, place if self.placed else -1, float(cosine.abs().flatten()[best])))
        return matches
