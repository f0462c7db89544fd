"""BROS' attention without its table of token pairs: the same numbers from two short vectors per token.

BROS (Hong et al., 2022, eqs. 3-5) adds to each attention score the product of the query and a projected vector of sine
waves of the difference of two boxes. transformers makes that vector for every pair of tokens. Since sin(b - a) and
cos(b - a) are sums of products of waves of a and of b, the score is a plain product of a longer query and a longer key.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def quicken(backbone: Any) -> None:
    """Put these layers in the place of transformers' in a ``BrosModel``; parameters and their names stay."""
    backbone.bbox_embeddings = Waves(backbone.bbox_embeddings)
    projection = backbone.bbox_embeddings.bbox_projection
    for layer in backbone.encoder.layer:
        layer.attention.self = PairFreeAttention(layer.attention.self, projection, backbone.config.dim_bbox)


class Waves(nn.Module):
    """Boxes to waves: (B, T, D) to sines and cosines, (B, T, 2, D * F) for F frequencies."""

    def __init__(self, boxes: Any) -> None:
        super().__init__()
        self.bbox_projection = boxes.bbox_projection
        waves = boxes.bbox_sinusoid_emb
        self.register_buffer("x", waves.x_pos_emb.inv_freq.clone(), persistent=False)
        self.register_buffer("y", waves.y_pos_emb.inv_freq.clone(), persistent=False)

    def forward(self, boxes: Tensor) -> Tensor:
        """Coordinates are x and y in turn."""
        frequencies = [self.x if i % 2 == 0 else self.y for i in range(boxes.shape[-1])]
        angles = boxes[..., None] * torch.stack(frequencies)  # type: ignore[arg-type] # (B, T, D, F)
        return torch.stack([angles.sin().flatten(2), angles.cos().flatten(2)], dim=2)


class PairFreeAttention(nn.Module):
    """In the place of ``BrosSelfAttention``; ``projection`` is the model's own (D * 2F to the width of a head)."""

    def __init__(self, attention: Any, projection: nn.Linear, coordinates: int) -> None:
        super().__init__()
        self.query, self.key, self.value = attention.query, attention.key, attention.value
        self.heads, self.width = attention.num_attention_heads, attention.attention_head_size
        self.dropout, self.coordinates = attention.dropout, coordinates
        self._shared = (projection,)  # a tuple, so that the parameter is registered once

    def forward(
        self, hidden_states: Tensor, bbox_pos_emb: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> tuple[Tensor, None]:
        """Hidden states (B, T, width), waves (B, T, 2, N), an additive mask or None; the context (B, T, width)."""
        batch, tokens = hidden_states.shape[:2]
        q, k, v = (
            layer(hidden_states).view(batch, tokens, self.heads, self.width).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        sines, cosines = bbox_pos_emb[:, None, :, 0], bbox_pos_emb[:, None, :, 1]  # (B, 1, T, N)
        of_sine, of_cosine = self._weights(q)
        longer_q = torch.cat([q, of_sine * cosines + of_cosine * sines, of_cosine * cosines - of_sine * sines], dim=-1)
        waves = torch.cat([sines, cosines], dim=-1).expand(-1, self.heads, -1, -1)
        context = F.scaled_dot_product_attention(
            longer_q, torch.cat([k, waves], dim=-1), v, attn_mask=attention_mask,
            dropout_p=self.dropout.p if self.training else 0.0, scale=self.width**-0.5,
        )  # fmt: skip
        return context.transpose(1, 2).reshape(batch, tokens, -1), None

    def _weights(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """What each query gives to the sine and to the cosine of each wave of the difference, (B, heads, T, N) each."""
        weight = self._shared[0].weight  # (head width, D * 2F): per coordinate F sines, then F cosines
        by_side = weight.view(len(weight), self.coordinates, 2, -1)
        return q @ by_side[:, :, 0].flatten(1), q @ by_side[:, :, 1].flatten(1)
