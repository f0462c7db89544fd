"""FeDocVQA's model (Nguyen & Karatzas, 2024, section 4.3): T5 and the patch embedding of a masked autoencoder.

Left open by the paper, and settled as in the authors' public code: a token belongs to the patch in which the centre of
its box lies; question and end tokens have the zero box and no patch; the patches that hold no text come in reading
order, with their own boxes. The paper lists the picture before words and question; as in that code they stand behind,
the question first. Boxes go through the paper's linear layer (the code looks them up in tables).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from docleak.errors import ModelError
from docleak.models.files import pretrained
from docleak.models.t5 import ReaderConfig, T5Network, T5Reader, t5_of

#: The picture's part with vit-mae-base's patches.
MAE_BASE: dict[str, Any] = {"image_size": 224, "patch_size": 16}


class FeDocVQANetwork(T5Network):
    """T5, patch embedding, linear layer of boxes, and the layout-induced vision-text embedding."""

    def __init__(self, t5: Any, patch_embed: nn.Conv2d, *, image_size: int, box_scale: int) -> None:
        super().__init__(t5, image_size)
        self.patch_embed = patch_embed
        self.spatial = nn.Linear(4, self.width)
        self.box_scale = box_scale
        self.side = image_size // patch_embed.kernel_size[0]

    def cells(self, boxes: Tensor) -> Tensor:
        """The patch of each box (..., 4): row * side + column of its centre, or -1 for the zero box."""
        centre = (boxes[..., :2] + boxes[..., 2:]) * self.side // (2 * self.box_scale)  # (..., 2): x, y
        column, row = centre.clamp(0, self.side - 1).unbind(-1)
        return torch.where(boxes.any(-1), row * self.side + column, -1)

    def patch_boxes(self, like: Tensor) -> Tensor:
        """Boxes of the patches in [0, 1], (side * side, 4)."""
        edge = torch.arange(self.side + 1, device=like.device, dtype=like.dtype) / self.side
        y0, x0 = torch.meshgrid(edge[:-1], edge[:-1], indexing="ij")
        y1, x1 = torch.meshgrid(edge[1:], edge[1:], indexing="ij")
        return torch.stack([x0, y0, x1, y1], -1).flatten(0, 1)

    def rows(
        self, pixels: Tensor | None, owners: Sequence[int], ids: Tensor, boxes: Tensor, lengths: Sequence[int]
    ) -> list[Tensor]:
        embedded = self.t5.shared(ids)
        text = embedded + self.spatial(boxes.to(embedded.dtype) / self.box_scale)
        if pixels is None:
            return [row[:length] for row, length in zip(text, lengths, strict=True)]
        patches = self.patch_embed(pixels).flatten(2).transpose(1, 2)  # (P, side * side, width)
        placed = patches + self.spatial(self.patch_boxes(patches))
        cells = self.cells(boxes)
        rows = []
        for row, where, length, owner in zip(text, cells, lengths, owners, strict=True):
            where = where[:length]
            under = torch.where((where >= 0)[:, None], patches[owner][where.clamp_min(0)], 0.0)
            empty = torch.ones(len(patches[owner]), dtype=torch.bool, device=row.device)
            empty[where[where >= 0]] = False
            rows.append(torch.cat([row[:length] + under, placed[owner][empty]]))
        return rows


class FeDocVQA(T5Reader):
    """Adapter of FeDocVQA's model; see ``T5Reader``."""

    architecture = "fedocvqa"

    @staticmethod
    def build(config: ReaderConfig, *, allow_pickle: bool = False) -> FeDocVQANetwork:
        import transformers as t

        t5 = t5_of(config.text, allow_pickle=allow_pickle)
        if isinstance(config.vision, str):
            mae = pretrained(t.ViTMAEModel, config.vision, allow_pickle=allow_pickle)
            size, patch_embed = int(mae.config.image_size), mae.embeddings.patch_embeddings.projection
        else:
            size, patch = int(config.vision["image_size"]), int(config.vision["patch_size"])
            patch_embed = nn.Conv2d(3, int(t5.config.d_model), kernel_size=patch, stride=patch)
        if patch_embed.out_channels != int(t5.config.d_model) or size % patch_embed.kernel_size[0]:
            raise ModelError(
                f"patches of {patch_embed.kernel_size[0]} pixels and width {patch_embed.out_channels} do not fit a "
                f"picture of {size} pixels and a T5 of width {t5.config.d_model}; widths must be equal and the "
                "picture a whole number of patches."
            )
        return FeDocVQANetwork(t5, patch_embed, image_size=size, box_scale=config.box_scale)

    def vision_values(self) -> dict[str, Any]:
        return {"image_size": self.module.image_size, "patch_size": self.module.patch_embed.kernel_size[0]}
