"""What a checkpoint holds beside its network: image settings and tokenizer; and whether it holds all weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docleak.errors import ModelError
from docleak.files import parse_json

FILES = ("processor_config.json", "preprocessor_config.json")
#: Keys of those files that change what the network is fed.
KEYS = ("size", "image_mean", "image_std", "do_normalize", "do_rescale", "rescale_factor")
#: Mean and deviation of transformers' Donut and LayoutLMv3 processors where the files do not say.
HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class ImageSettings:
    """size is (height, width); mean and std are of pixels in [0, 1]. None where the checkpoint does not say."""

    size: tuple[int, int] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None


def image_settings(source: str, *, revision: str | None = None) -> ImageSettings:
    """Read the settings from a local directory, or from the hub where one can be reached.

    ``do_normalize: false`` is mean 0 and deviation 1. A checkpoint that does not rescale pixels to [0, 1], or rescales
    them otherwise, gets the mean and deviation that do the same to pixels in [0, 1]. Raises ModelError for a file that
    is not JSON or holds impossible values.
    """
    for path in _settings_files(source, revision):
        try:
            values = parse_json(path.read_text(encoding="utf-8"), strict=False)
        except ValueError as error:
            raise ModelError(f"{path} is not JSON ({error}). Save the processor again, or delete the file.") from error
        values = values.get("image_processor", values)
        if any(key in values for key in KEYS):  # a processor_config.json may hold other things only
            return ImageSettings(_size(values), *_normalisation(values, path))
    return ImageSettings()


def _size(values: dict[str, Any]) -> tuple[int, int] | None:
    size = values.get("size")
    if isinstance(size, dict) and {"height", "width"} <= size.keys():
        return int(size["height"]), int(size["width"])
    if isinstance(size, int):
        return size, size
    if isinstance(size, list) and len(size) == 2:  # early Donut files: [width, height]
        return int(size[1]), int(size[0])
    return None


def _normalisation(values: dict[str, Any], path: Path) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """Mean and deviation of pixels in [0, 1]: the network gets (factor * pixel - mean) / std."""
    mean, std = ((tuple(values[key]) if values.get(key) else None) for key in ("image_mean", "image_std"))
    if values.get("do_normalize") is False:
        mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    given = values.get("rescale_factor")
    factor = 255.0 * (1.0 if values.get("do_rescale") is False else 1 / 255 if given is None else float(given))
    if factor <= 0 or 0 in (std or ()):
        raise ModelError(f"{path} has the rescale_factor {given} and image_std {std}; expected values above 0.")
    if abs(factor - 1) < 1e-9:
        return mean, std
    return tuple(value / factor for value in mean or HALF), tuple(value / factor for value in std or HALF)


def _settings_files(source: str, revision: str | None) -> list[Path]:
    directory = Path(source)
    if directory.is_dir():
        return [directory / name for name in FILES if (directory / name).is_file()]
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    found = []
    for name in FILES:
        try:
            found.append(Path(hf_hub_download(source, name, revision=revision)))
        except (EntryNotFoundError, LocalEntryNotFoundError):
            continue  # not every repository has both files
    return found


def tokenizer_of(source: str, *, revision: str | None = None, kind: str = "AutoTokenizer") -> Any:
    """The checkpoint's tokenizer; ModelError where its files are missing (transformers makes an empty one then).

    ``kind`` is the class in transformers that reads it: by default, the one that config.json asks for.
    """
    import transformers

    tokenizer = getattr(transformers, kind).from_pretrained(source, revision=revision or "main")
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
