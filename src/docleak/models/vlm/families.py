"""Which families of ``transformers`` are vision-language models that docleak takes; nothing heavy is imported."""

from __future__ import annotations

from docleak.errors import ModelError

#: Families that transformers counts among them and docleak refuses, and why.
REFUSED = {
    "kosmos-2.5": "its processor normalises every page by its own contrast",
}


def is_vision_language(family: str) -> bool:
    """Whether transformers loads a ``model_type`` as an AutoModelForImageTextToText; ModelError for REFUSED ones."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    if family in REFUSED:
        raise ModelError(f"a model of the family {family} is not taken: {REFUSED[family]}.")
    return family in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES and family != "vision-encoder-decoder"
