"""One call for every model: a shipped tiny checkpoint, a local directory or a hub name."""

from __future__ import annotations

import json
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
import transformers

from docleak.errors import ModelError
from docleak.models.base import DocumentModel

CHECKPOINTS = Path(__file__).parent / "checkpoints"

#: Shipped checkpoints: name -> what it is.
SHIPPED: dict[str, str] = {
    "donut-start": "Donut (tiny), start of federated training",
    "donut-trained": "Donut (tiny), later in training (5,000 steps)",
    "layoutlmv3-start": "LayoutLMv3 (tiny), start of federated training",
    "layoutlmv3-trained": "LayoutLMv3 (tiny), trained to answer questions",
}

#: architecture -> "module:loader".
ARCHITECTURES: dict[str, str] = {
    "donut": "docleak.models.donut:load",
    "layoutlmv3": "docleak.models.layoutlmv3:load",
}


def load_model(source: str, *, device: str | torch.device = "cpu") -> DocumentModel:
    """Load a model for auditing: evaluation mode, float32, eager attention (needed for double backward).

    ``source`` is a name of SHIPPED, a directory written by ``save_pretrained``, or a hub name.
    Raises ModelError if there is no such thing, or if it is of an architecture docleak does not know.
    """
    where = _locate(source)
    architecture = _architecture(_config(where, source), source)
    transformers.utils.logging.disable_progress_bar()
    module, function = ARCHITECTURES[architecture].split(":")
    loader = getattr(import_module(module), function)
    try:
        return cast(DocumentModel, loader(where, name=source.rstrip("/").split("/")[-1], device=torch.device(device)))
    except ModelError:
        raise
    except Exception as error:  # the libraries below raise anything from OSError to SafetensorError
        raise ModelError(
            f"model {source!r} is a {architecture} by its config.json, but could not be loaded: "
            f"{type(error).__name__}: {error}. Expected the files save_pretrained writes: config.json, "
            "model.safetensors, and the tokenizer's files."
        ) from error


def title_of(source: str) -> str:
    """A readable title: the shipped checkpoint's, or the last part of the path."""
    return SHIPPED.get(source, source.rstrip("/").split("/")[-1])


def model_card(source: str) -> dict[str, Any]:
    """How a checkpoint was made (docleak.json beside its weights), or nothing where it does not say."""
    file = (CHECKPOINTS / source if source in SHIPPED else Path(source)) / "docleak.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}


def _locate(source: str) -> str:
    if source in SHIPPED:
        path = CHECKPOINTS / source
        if not path.is_dir():
            raise ModelError(f"shipped checkpoint {source!r} is missing at {path}. Reinstall docleak.")
        return str(path)
    path = Path(source).expanduser()
    if path.is_file():
        raise ModelError(f"model {source!r} is a file; expected the directory that holds config.json.")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"directory {source!r} has no config.json; expected a model saved by save_pretrained.")
        return str(path)
    if source.startswith((".", "/", "~")) or source.count("/") != 1:
        near = get_close_matches(source, SHIPPED, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ModelError(
            f"there is no model {source!r}.{hint} Shipped: {', '.join(SHIPPED)}; otherwise give a directory "
            "written by save_pretrained, or a hub name like owner/model."
        )
    return source


def _config(where: str, source: str) -> dict[str, Any]:
    path = Path(where) / "config.json"
    if not path.is_file():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

        try:
            path = Path(hf_hub_download(where, "config.json"))
        except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
            raise ModelError(
                f"model {source!r} is neither a directory nor a hub model that can be reached "
                f"({type(error).__name__}). Without a network, download it elsewhere and give its directory."
            ) from error
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"config.json of {source!r} is not JSON: {error}. Save the model again.") from error
    if not isinstance(config, dict):
        raise ModelError(f"config.json of {source!r} holds a {type(config).__name__}, expected an object.")
    return config


def _architecture(config: dict[str, Any], source: str) -> str:
    kind = config.get("model_type")
    if kind == "layoutlmv3":
        return "layoutlmv3"
    parts = (config.get("encoder"), config.get("decoder"))
    inner = [part.get("model_type") if isinstance(part, dict) else None for part in parts]
    if kind == "vision-encoder-decoder" and inner[0] == "donut-swin":
        return "donut"
    found = f"{kind!r}" + (f" with encoder {inner[0]!r} and decoder {inner[1]!r}" if any(inner) else "")
    raise ModelError(
        f"model {source!r} is of architecture {found}; docleak audits 'vision-encoder-decoder' with a "
        "'donut-swin' encoder (Donut) and 'layoutlmv3' question answering."
    )
