"""VT5 (Tito et al., 2024, section 4.2 and appendix B): T5 with boxes in its text and a frozen DiT's patches behind it.

Left open by the paper, and settled by the authors' public code: the four edges of a box are looked up in one table for
x and one for y, summed, normalised, and mapped by a linear layer before they are added to the token; the picture's
tokens (one for the whole page, then the patches) go through a linear layer and carry no boxes; the DiT gets no update.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from docleak.errors import ModelError
from docleak.models.files import fill, image_settings, pretrained, tensors_in, tokenizer_of, values_of, weights_in
from docleak.models.t5 import ReaderConfig, T5Network, T5Reader, t5_of

#: dit-base's BeitConfig, as finetuned for document classes (no final layer norm): 85.8 M parameters.
DIT_BASE: dict[str, Any] = {
    "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
    "image_size": 224, "patch_size": 16, "use_absolute_position_embeddings": True, "use_mean_pooling": True,
}  # fmt: skip
#: How the authors' modules are named, and ours. transformers 5 calls a DiT's layers otherwise than what they saved.
NAMES = (
    (r"^language_backbone\.", "t5."),
    (r"^spatial_embedding\.([xy])_position_embeddings\.", r"spatial.\1."),
    (r"^spatial_embedding\.LayerNorm\.", "spatial.norm."),
    (r"^spatial_embedding\.spatial_emb_matcher\.layers\.0\.", "spatial.linear."),
    (r"^visual_embedding\.visual_emb_matcher\.layers\.0\.", "visual_projection."),
    (r"^visual_embedding\.image_model\.", "dit."),
    (r"^dit\.encoder\.layer\.", "dit.layers."),
    (r"\.attention\.attention\.(query|key|value)\.", lambda match: f".attention.{match[1][0]}_proj."),
    (r"^(dit.*)\.attention\.output\.dense\.", r"\1.attention.o_proj."),
    (r"^(dit.*)\.intermediate\.dense\.", r"\1.mlp.fc1."),
    (r"^(dit.*)\.output\.dense\.", r"\1.mlp.fc2."),
)
#: Parts of a checkpoint of the authors' trainings on PFL-DocVQA.
TEXT_PART, BOXES_PART, VISION_PART, JOINT_PART = "lm_model", "sp_emb", "vm_model", "vm_model/emb_mlp"
#: Width of a DiT's attention heads, which no tensor tells; that of both published sizes.
HEAD_WIDTH = 64


class SpatialEmbedding(nn.Module):
    """Boxes (..., 4), integers below ``positions``, as vectors (..., width)."""

    def __init__(self, width: int, positions: int, dropout: float) -> None:
        super().__init__()
        self.x = nn.Embedding(positions, width)
        self.y = nn.Embedding(positions, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, width)

    def forward(self, boxes: Tensor) -> Tensor:
        x0, y0, x1, y1 = boxes.unbind(-1)
        summed = self.x(x0) + self.y(y0) + self.x(x1) + self.y(y1)
        return cast(Tensor, self.linear(self.dropout(self.norm(summed))))


class VT5Network(T5Network):
    """T5, spatial embedding, DiT (a ``BeitModel``, frozen and in evaluation mode unless finetuned), linear layer."""

    def __init__(self, t5: Any, dit: Any, *, positions: int = 1024, finetune: bool = False) -> None:
        super().__init__(t5, int(dit.config.image_size))
        self.spatial = SpatialEmbedding(self.width, positions, float(t5.config.dropout_rate))
        self.dit = dit.requires_grad_(finetune)
        self.visual_projection = nn.Linear(int(dit.config.hidden_size), self.width)
        self.finetune = finetune

    def train(self, mode: bool = True) -> VT5Network:
        super().train(mode)
        self.dit.train(mode and self.finetune)
        return self

    def rows(
        self, pixels: Tensor | None, owners: Sequence[int], ids: Tensor, boxes: Tensor, lengths: Sequence[int]
    ) -> list[Tensor]:
        text = self.t5.shared(ids) + self.spatial(boxes)
        if pixels is None:
            return [row[:length] for row, length in zip(text, lengths, strict=True)]
        visual = self.visual_projection(self.dit(pixel_values=pixels).last_hidden_state)  # (P, 1 + patches, width)
        return [
            torch.cat([row[:length], visual[owner]]) for row, length, owner in zip(text, lengths, owners, strict=True)
        ]


class VT5(T5Reader):
    """Adapter of VT5; see ``T5Reader``."""

    architecture = "vt5"

    @staticmethod
    def build(config: ReaderConfig, *, allow_pickle: bool = False) -> VT5Network:
        import transformers as t

        if isinstance(config.vision, str):
            dit = pretrained(t.BeitModel, config.vision, allow_pickle=allow_pickle, add_pooling_layer=False)
        else:
            dit = t.BeitModel._from_config(
                t.BeitConfig(**config.vision), attn_implementation="eager", add_pooling_layer=False
            )
        t5 = t5_of(config.text, allow_pickle=allow_pickle)
        return VT5Network(t5, dit, positions=config.positions, finetune=config.finetune_vision)

    @classmethod
    def published(cls, values: Mapping[str, Any], source: str, revision: str | None, *, name: str) -> Self:
        """VT5 as its authors save it (rubenpt91/MP-DocVQA-Framework): a T5's config.json, and all parts in one file; or
        in parts, as their trainings on PFL-DocVQA leave ``round_N.ckpt`` and ``best.ckpt`` (``_saved_in_parts``).

        The DiT's configuration is read off the tensors' shapes, heads being 64 wide.
        """
        import transformers as t

        text_at, vision_at = source, source
        if (parts := Path(source) / TEXT_PART).is_dir():
            saved = _saved_in_parts(Path(source))
            text_at, vision_at = str(parts), str(Path(source) / VISION_PART)
        else:
            saved = weights_in(source, revision)
        weights = {_our_name(key): value for key, value in saved.items()}
        vision = _dit_values(weights)
        if vision is None:
            raise ModelError(
                f"model {source!r} is a T5 without the boxes and the picture of a VT5: its weights hold no "
                "visual_embedding.image_model. Join it with a DiT (`docleak models assemble vt5 NEW --text IT --vision "
                "DIT`), or give a VT5 that was trained."
            )
        text = values_of(t.T5Config.from_dict(dict(values)))
        given = image_settings(vision_at, revision=revision)
        config = ReaderConfig(
            text, vision, image_mean=given.mean, image_std=given.std, positions=len(weights["spatial.x.weight"])
        )
        network = cls.built(config)
        fill(network, weights, source=source, required=[key for key, _ in network.named_parameters()])
        return cls(network.eval(), tokenizer_of(text_at, revision=revision), config, name=name)

    def vision_values(self) -> dict[str, Any]:
        return values_of(self.module.dit.config)


def _saved_in_parts(folder: Path) -> dict[str, Tensor]:
    """The tensors of rubenpt91/PFL-DocVQA-Competition's ``round_N.ckpt``, named as in the authors' single file.

    lm_model/          T5 and tokenizer, as save_pretrained writes them
    sp_emb             the boxes' tables and what follows them, as torch.save writes a state
    vm_model/          DiT and image processor, as save_pretrained writes them
    vm_model/emb_mlp   the linear layer between the two, as torch.save writes a state

    ModelError where a part is missing or cannot be read.
    """
    if missing := [name for name in (VISION_PART, BOXES_PART, JOINT_PART) if not (folder / name).exists()]:
        raise ModelError(f"{folder} has {TEXT_PART} but no {', '.join(missing)}; copy the whole checkpoint.")
    prefixes = {
        TEXT_PART: "language_backbone.", BOXES_PART: "spatial_embedding.",
        VISION_PART: "visual_embedding.image_model.", JOINT_PART: "visual_embedding.visual_emb_matcher.",
    }  # fmt: skip
    state: dict[str, Tensor] = {}
    for name, prefix in prefixes.items():
        place = folder / name
        tensors = weights_in(str(place), None) if place.is_dir() else tensors_in(place)
        state |= {f"{prefix}{key}": value for key, value in tensors.items()}
    return state


def _our_name(name: str) -> str:
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _dit_values(weights: Mapping[str, Tensor]) -> dict[str, Any] | None:
    """The configuration of the DiT among a VT5's tensors; None where there is none, or no boxes."""
    patches = weights.get("dit.embeddings.patch_embeddings.projection.weight")
    places, inner = weights.get("dit.embeddings.position_embeddings"), weights.get("dit.layers.0.mlp.fc1.weight")
    if patches is None or places is None or inner is None or "spatial.x.weight" not in weights:
        return None
    width, _, patch, _ = patches.shape
    layers = {key.split(".")[2] for key in weights if key.startswith("dit.layers.")}
    return {
        "hidden_size": width, "num_hidden_layers": len(layers), "num_attention_heads": width // HEAD_WIDTH,
        "intermediate_size": len(inner), "image_size": round((places.shape[1] - 1) ** 0.5) * patch,
        "patch_size": patch, "use_absolute_position_embeddings": True, "use_mean_pooling": True,
    }  # fmt: skip
