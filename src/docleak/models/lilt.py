"""LiLT (Wang et al., 2022) with a question-answering head: OCR words and boxes, and no picture."""

from __future__ import annotations

from docleak.models.layoutlmv3 import LayoutLMv3

#: Pages are shown, and drawn, at this size; the network knows boxes in 0..1000 alone.
SHOWN = (224, 224)


class Lilt(LayoutLMv3):
    """Adapter of ``LiltForQuestionAnswering``, which answers as LayoutLMv3 does. Its loss depends on no pixel."""

    architecture = "lilt"
    network = "LiltForQuestionAnswering"
    sees = False

    @property
    def image_size(self) -> tuple[int, int]:
        return SHOWN
