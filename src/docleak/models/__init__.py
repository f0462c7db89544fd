"""Thin adapters over ``transformers`` models for document question answering."""

from typing import TYPE_CHECKING

from docleak.lazy import imported_on_use

if TYPE_CHECKING:
    from docleak.models.base import (
        STAGES,
        Answer,
        DocumentModel,
        Encoded,
        Stage,
        Transcript,
        image_of,
        pixels_of,
        trainable,
    )
    from docleak.models.loading import SHIPPED, load_model, model_card, short_name, title_of

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
_LOADING = ("SHIPPED", "load_model", "model_card", "short_name", "title_of")
__getattr__ = imported_on_use(__name__, {name: "loading" if name in _LOADING else "base" for name in __all__})
