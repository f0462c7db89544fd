"""What a checkpoint holds beside its network: image settings and tokenizer; and whether it holds all weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docleak.errors import ModelError

FILES = ("processor_config.json", "preprocessor_config.json")


@dataclass(frozen=True)
class ImageSettings:
    """size is (height, width); None where the checkpoint does not say."""

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def image_settings(source: str) -> ImageSettings:
    """Read the settings from a local directory, or from the hub where one can be reached."""
    path = _settings_file(source)
    if path is None:
        return ImageSettings()
    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise ModelError(f"{path} is not JSON ({error}). Save the processor again, or delete the file.") from error
    values = values.get("image_processor", values)
    size = values.get("size")
    if isinstance(size, dict) and {"height", "width"} <= size.keys():
        shape = (int(size["height"]), int(size["width"]))
    elif isinstance(size, int):
        shape = (size, size)
    elif isinstance(size, list) and len(size) == 2:  # early Donut files: [width, height]
        shape = (int(size[1]), int(size[0]))
    else:
        shape = None
    mean, std = values.get("image_mean"), values.get("image_std")
    return ImageSettings(shape, tuple(mean) if mean else None, tuple(std) if std else None)


def _settings_file(source: str) -> Path | None:
    directory = Path(source)
    if directory.is_dir():
        return next((directory / name for name in FILES if (directory / name).is_file()), None)
    from huggingface_hub import try_to_load_from_cache

    for name in FILES:
        found = try_to_load_from_cache(source, name)
        if isinstance(found, str):
            return Path(found)
    return None


def tokenizer_of(source: str) -> Any:
    """The checkpoint's tokenizer; ModelError where its files are missing (transformers makes an empty one then)."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source)
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ModelError(
            f"model {source!r} could not be loaded: its tokenizer has no vocabulary. Expected the files "
            "save_pretrained writes: config.json, model.safetensors, and the tokenizer's files (tokenizer.json)."
        )
    return tokenizer


def require_weights(source: str, module: Any, missing: Iterable[str]) -> None:
    """Raise ModelError if the checkpoint lacks parameters: transformers would draw them at random."""
    lacking = sorted({name for name, _ in module.named_parameters()} & set(missing))
    if lacking:
        raise ModelError(
            f"model {source!r} could not be loaded: its model.safetensors lacks {len(lacking)} of the network's "
            f"parameters, first: {', '.join(lacking[:5])}. Is it a base model without its question-answering head? "
            "Save the model that is trained, head and all, with save_pretrained."
        )
