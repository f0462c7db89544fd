"""Thin adapters over ``transformers`` models for document question answering."""

from typing import TYPE_CHECKING

from docleak.lazy import imported_on_use

if TYPE_CHECKING:
    from docleak.models.base import (
        Answer,
        DocumentModel,
        Encoded,
        Transcript,
        image_of,
        pixels_of,
        trainable,
    )
    from docleak.models.loading import load_model, short_name, title_of
    from docleak.models.shipped import SHIPPED, model_card
    from docleak.models.stages import STAGES, Stage

__all__ = [
    "SHIPPED",
    "STAGES",
    "Answer",
    "DocumentModel",
    "Encoded",
    "Stage",
    "Transcript",
    "image_of",
    "load_model",
    "model_card",
    "pixels_of",
    "short_name",
    "title_of",
    "trainable",
]
_HOMES = {
    **dict.fromkeys(__all__, "base"),
    **dict.fromkeys(("load_model", "short_name", "title_of"), "loading"),
    **dict.fromkeys(("SHIPPED", "model_card"), "shipped"),
    **dict.fromkeys(("STAGES", "Stage"), "stages"),
}
__getattr__ = imported_on_use(__name__, _HOMES)
