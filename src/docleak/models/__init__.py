"""Thin adapters over ``transformers`` models for document question answering."""

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
