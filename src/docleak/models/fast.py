"""The layers of ``transformers`` with the derivatives of ``derivatives``: the same parameters, names and values.

``quicken`` gives the layers of a loaded model subclasses of their own classes; nothing else about it changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import lru_cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.activations import GELUActivation
from transformers.models.donut.modeling_donut_swin import DonutSwinLayer, DonutSwinSelfAttention
from transformers.models.layoutlmv3.modeling_layoutlmv3 import LayoutLMv3Encoder, LayoutLMv3SelfAttention

from docleak.models.derivatives import attention, gelu
from docleak.models.recompute import recomputed, recomputing

Module = TypeVar("Module", bound=nn.Module)


class Gelu(GELUActivation):  # type: ignore[misc]
    """transformers' "gelu"."""

    def forward(self, input: Tensor) -> Tensor:
        return gelu(input)


class SwinSelfAttention(DonutSwinSelfAttention):  # type: ignore[misc]
    """Windows (B, T, C) attend within themselves, with a learned bias per relative position.

    The query is scaled in place of the scores, which are T / d times as many.
    """

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, output_attentions: bool | None = False
    ) -> tuple[Tensor, ...]:
        if self.training and self.dropout.p > 0:
            return super().forward(hidden_states, attention_mask, output_attentions)  # type: ignore[no-any-return]
        windows, length, _ = hidden_states.shape
        query, key, value = _heads(self, hidden_states)
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        bias = bias.view(length, length, -1).permute(2, 0, 1).contiguous()
        mask = attention_mask
        if mask is not None:  # (windows of a page, T, T), the same for every page
            mask = mask.expand(windows // len(mask), *mask.shape).flatten(0, 1)[:, None]
        mixed, share = attention(query * (1 / math.sqrt(self.attention_head_size)), key, value, bias, mask)
        mixed = mixed.transpose(1, 2).flatten(2)
        return (mixed, share) if output_attentions else (mixed,)


class SwinLayer(DonutSwinLayer):  # type: ignore[misc]
    """A block (B, rows * columns, C) that is computed anew in both backward passes where ``recomputation`` asks."""

    def forward(
        self,
        hidden_states: Tensor,
        input_dimensions: tuple[int, int],
        output_attentions: bool | None = False,
        always_partition: bool | None = False,
    ) -> tuple[Tensor, ...]:
        def block(hidden: Tensor) -> Tensor:
            whole = super(SwinLayer, self).forward(hidden, input_dimensions, False, always_partition)
            return whole[0]  # type: ignore[no-any-return]

        if self.training or output_attentions or not recomputing():
            return super().forward(hidden_states, input_dimensions, output_attentions, always_partition)  # type: ignore[no-any-return]
        return (recomputed(block, hidden_states, list(self.parameters())),)


class LayoutSelfAttention(LayoutLMv3SelfAttention):  # type: ignore[misc]
    """Tokens and patches (B, T, C) attend to each other, with fixed biases by relative position.

    Without CogView's detour to the softmax, which is for half precision.
    """

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        rel_pos: Tensor | None = None,
        rel_2d_pos: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        if self.training and self.dropout.p > 0:
            return super().forward(hidden_states, attention_mask, rel_pos, rel_2d_pos, **kwargs)  # type: ignore[no-any-return]
        query, key, value = _heads(self, hidden_states)
        scale = 1 / math.sqrt(self.attention_head_size)
        offset = attention_mask
        for bias in (rel_pos, rel_2d_pos) if self.has_relative_attention_bias else ():
            if bias is not None:
                offset = bias * scale if offset is None else torch.add(offset, bias, alpha=scale)
        mixed, share = attention(query * scale, key, value, mask=offset)
        return mixed.transpose(1, 2).flatten(2), share


class LayoutEncoder(LayoutLMv3Encoder):  # type: ignore[misc]
    """The bias of each pair's relative position is looked up in one table, where transformers takes logarithms and then
    two tables; bit for bit the same."""

    def _cal_1d_pos_emb(self, position_ids: Tensor) -> Tensor:
        return _biases(self.rel_pos_bias.weight, position_ids, self.rel_pos_bins, self.max_rel_pos)

    def _cal_2d_pos_emb(self, bbox: Tensor) -> Tensor:
        across, down = (
            _biases(layer.weight, bbox[:, :, side], self.rel_2d_pos_bins, self.max_rel_2d_pos)
            for layer, side in ((self.rel_pos_x_bias, 0), (self.rel_pos_y_bias, 3))
        )
        return across + down


@torch.no_grad()
def _biases(weight: Tensor, positions: Tensor, count: int, farthest: int) -> Tensor:
    """Of all pairs of ``positions`` (B, T) and of ``weight``'s heads, (B, heads, T, T), without a derivative, as in
    transformers."""
    apart = positions.unsqueeze(-2) - positions.unsqueeze(-1)
    places = apart.clamp_(-farthest, farthest).add_(farthest)
    table = weight[:, _buckets(count, farthest, positions.device)]
    biases = table.index_select(1, places.flatten()).view(len(weight), *places.shape)
    return biases.transpose(0, 1).contiguous()


@lru_cache(maxsize=16)
def _buckets(count: int, farthest: int, device: torch.device) -> Tensor:
    """Of the positions from -``farthest`` to ``farthest``, the last of which stands for all that are farther."""
    with torch.inference_mode(False):
        positions = torch.arange(-farthest, farthest + 1, device=device)
        return LayoutLMv3Encoder.relative_position_bucket(None, positions, True, count, farthest)  # type: ignore[no-any-return]


def _heads(layer: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of hidden (B, T, C), each (B, heads, T, d)."""
    shape = (*hidden.shape[:2], -1, layer.attention_head_size)
    query, key, value = (f(hidden).view(shape).transpose(1, 2) for f in (layer.query, layer.key, layer.value))
    return query, key, value


#: Stock layer -> ours. Only layers of exactly these classes are replaced: a subclass may compute something else.
FASTER: dict[type, type] = {
    GELUActivation: Gelu,
    DonutSwinSelfAttention: SwinSelfAttention,
    DonutSwinLayer: SwinLayer,
    LayoutLMv3SelfAttention: LayoutSelfAttention,
    LayoutLMv3Encoder: LayoutEncoder,
}


def quicken(module: Module, layers: Collection[type] = FASTER.keys()) -> Module:
    """``module`` itself, those of its ``layers`` made fast in place: parameters, names, hooks and checkpoints stay as
    they are."""
    for layer in module.modules():
        if type(layer) in layers and getattr(layer, "act", F.gelu) is F.gelu:
            layer.__class__ = FASTER[type(layer)]
    return module
