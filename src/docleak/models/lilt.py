"""LiLT (Wang et al., 2022) with a question-answering head: OCR words and boxes, and no picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from docleak.models.base import Encoded, pad, require_size
from docleak.models.files import pretrained_but, require_weights, save_network, tokenizer_of, told_drawn
from docleak.models.layoutlmv3 import PADDING, LayoutLMv3
from docleak.models.stages import Stage

#: Pages are shown, and drawn, at this size; the network knows boxes in 0..1000 alone.
SHOWN = (224, 224)


class Lilt(LayoutLMv3):
    """Adapter of ``LiltForQuestionAnswering``, which answers as LayoutLMv3 does. Its loss depends on no pixel."""

    architecture = "lilt"
    #: Whether the network looks at pictures.
    sees = False

    @property
    def image_size(self) -> tuple[int, int]:
        return SHOWN

    def _logits(self, pixels: Tensor | None, inputs: Sequence[Encoded]) -> tuple[Tensor, Tensor]:
        device = next(self.module.parameters()).device
        network: Any = self.module
        out = network(
            input_ids=pad([e.tensors["input_ids"] for e in inputs], network.config.pad_token_id, device),
            bbox=pad([e.tensors["bbox"] for e in inputs], 0, device),
            attention_mask=pad([(e.tensors["word_ids"] != PADDING).long() for e in inputs], 0, device),
        )
        there = pad([torch.ones_like(e.tensors["input_ids"]) for e in inputs], 0, device)
        return out.start_logits.masked_fill(there == 0, -1e4), out.end_logits.masked_fill(there == 0, -1e4)

    def stage(self, parameter_name: str) -> Stage:
        """All that reads words or boxes alone is text; nothing is vision."""
        name = parameter_name.removeprefix("lilt.")
        if name.startswith(("embeddings.", "layout_embeddings.")):
            return "text"
        return "output" if name.startswith(("qa_outputs", "classifier")) else "fusion"

    def save(self, directory: str) -> None:
        save_network(self.module, directory)
        self.tokenizer.save_pretrained(directory)

    @classmethod
    def load(
        cls, source: str, *, name: str, device: torch.device, revision: str | None, image_size: tuple[int, int] | None,
        seed: int = 0,
    ) -> Self:  # fmt: skip
        """As LayoutLMv3's: a checkpoint without any head gets one drawn with ``seed``."""
        from transformers import LiltForQuestionAnswering

        module, drawn = pretrained_but(
            LiltForQuestionAnswering, source, head="qa_outputs.", revision=revision, allow_pickle=True, seed=seed
        )
        if any("For" in kind for kind in module.config.architectures or ()):
            require_weights(source, module, drawn)
        model = cls(module.to(device).eval(), tokenizer_of(source, revision=revision), name=name)
        model.drawn = told_drawn(name, module, drawn, seed=seed)
        require_size(name, image_size, model.image_size)
        return model
