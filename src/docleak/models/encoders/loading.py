"""Encoders on disk: docleak's own, and backbones as transformers saves them, from a directory or the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from docleak.errors import DocleakError, ModelError
from docleak.files import drafted_folder, parse_json
from docleak.models.encoders.model import BACKBONES, EncoderConfig, EncoderModel, build
from docleak.models.encoders.tasks import CLASSED, Task
from docleak.models.encoders.vision import VisionConfig
from docleak.models.loading import short_name, split_revision
from docleak.models.preprocessing import tokenizer_of
from docleak.models.shipped import CHECKPOINTS, SHIPPED_ENCODERS
from docleak.models.t5_files import local_file

MODEL_TYPE = "docleak-encoder"
#: Parts of a checkpoint's masked-language head, in transformers' names and in ours.
MLM_PARTS = {
    "predictions.transform.dense.": "head.dense.",
    "predictions.transform.LayerNorm.": "head.norm.",
    "predictions.bias": "head.bias",
}


def load_encoder(
    source: str,
    *,
    task: Task | None = None,
    classes: Sequence[str] = (),
    vision: VisionConfig | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> EncoderModel:
    """A name of SHIPPED_ENCODERS, a directory or a hub name (with ``@revision``), with a head for ``task``.

    docleak's own checkpoints keep their head where ``task`` and ``classes`` are its own, or no task is named. One
    that transformers saved (LayoutLM, BROS, BERT) keeps its masked-language head for "mlm"; every other head, and the
    eye that ``vision`` asks for, is drawn with ``seed``. Raises ModelError for anything else, for a backbone without a
    ``task``, for a tokenizer that is not the model's, and for missing weights.
    """
    where, revision = split_revision(str(CHECKPOINTS / source) if source in SHIPPED_ENCODERS else source)
    values = config_of(source)
    try:
        model = _loaded(source, where, revision, values, task, classes, vision, seed)
    except DocleakError:
        raise
    except Exception as error:  # the libraries below raise anything, as in docleak.models.load_model
        raise ModelError(
            f"encoder {source!r} could not be loaded: {type(error).__name__}: {error}. Expected the files that "
            "save_pretrained writes: config.json, model.safetensors, and the tokenizer's files."
        ) from error
    model.module.to(device)
    return model


def _loaded(
    source: str, where: str, revision: str | None, values: dict[str, Any], task: Task | None, classes: Sequence[str],
    vision: VisionConfig | None, seed: int,
) -> EncoderModel:  # fmt: skip
    name = short_name(source)
    if values.get("model_type") == MODEL_TYPE:
        model = _load_own(where, values, revision, name=name)
        if vision is not None and not model.bimodal:
            model = _with_vision(model, vision, seed=seed)
        if task is not None and (task, tuple(classes)) != (model.task, model.config.classes):
            model = model.for_task(task, classes, seed=seed)
    else:
        if task is None:
            raise ModelError(f"model {source!r} is a bare backbone without a task's head; name the task it is for.")
        model = load_backbone(where, values, revision, task, classes, vision, seed=seed, name=name)
    return model


def config_of(source: str) -> dict[str, Any]:
    """config.json of a source as ``load_encoder`` takes it; ModelError where there is none."""
    where, revision = split_revision(str(CHECKPOINTS / source) if source in SHIPPED_ENCODERS else source)
    try:
        file = local_file(where, "config.json", revision=revision)
        values = parse_json(file.read_text(encoding="utf-8"), strict=False)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"there is no encoder {source!r} ({type(error).__name__}: {error}). Expected one of "
            f"{', '.join(SHIPPED_ENCODERS)}, a directory with config.json, or a hub name that can be reached."
        ) from error
    if not isinstance(values, dict):
        raise ModelError(f"config.json of {source!r} is no JSON object. Save the model again.")
    return values


def save_encoder(model: EncoderModel, directory: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer; the folder appears whole, in the place of another."""
    with drafted_folder(directory) as draft:
        text = json.dumps({"model_type": MODEL_TYPE, **asdict(model.config)}, indent=2)
        (draft / "config.json").write_text(text + "\n", encoding="utf-8")
        weights = {name: value.detach().cpu().contiguous() for name, value in named_weights(model).items()}
        save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
        model.tokenizer.save_pretrained(draft)


def named_weights(model: EncoderModel) -> dict[str, Tensor]:
    """Parameters by name, a tied one once."""
    return dict(model.module.named_parameters())


def _load_own(where: str, values: dict[str, Any], revision: str | None, *, name: str) -> EncoderModel:
    known = {field.name for field in fields(EncoderConfig)}
    given = {key: value for key, value in values.items() if key != "model_type"}
    if set(given) != known:
        raise ModelError(
            f"config.json of {name!r} has the keys {sorted(given)}; expected {sorted(known)}. Save the model again."
        )
    eye = given["vision"]
    if eye is not None:
        shapes: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in eye.items()}
        eye = VisionConfig(**shapes)
    config = EncoderConfig(**{**given, "classes": tuple(given["classes"]), "vision": eye})
    tokenizer = tokenizer_of(where, revision=revision, kind="PreTrainedTokenizerFast")
    model = build(config, tokenizer, seed=0, name=name)
    _fill(model, weights_in(where, revision), required=set(named_weights(model)))
    return model


def load_backbone(
    where: str,
    values: Mapping[str, Any],
    revision: str | None,
    task: Task,
    classes: Sequence[str],
    vision: VisionConfig | None,
    *,
    seed: int,
    name: str,
    whole: bool = False,
) -> EncoderModel:
    """A backbone as transformers saves it, with a head for ``task``: its own of masked words, any other one drawn.

    ``whole`` requires the file to have the head.
    """
    kind = values.get("model_type")
    if kind not in BACKBONES:
        raise ModelError(f"model {name!r} is of architecture {kind!r}; encoders are {', '.join(BACKBONES)}.")
    import transformers

    backbone = getattr(transformers, BACKBONES[kind][0])(**values).to_dict()
    config = EncoderConfig(kind, backbone, task, tuple(classes) if task in CLASSED else (), vision)
    model = build(config, tokenizer_of(where, revision=revision), seed=seed, name=name)
    renamed = {_our_name(key, kind): value for key, value in weights_in(where, revision).items()}
    required = {key for key in named_weights(model) if whole or key.startswith("backbone.")}
    _fill(model, renamed, required=required)
    return model


def weights_in(where: str, revision: str | None) -> dict[str, Tensor]:
    """All tensors of a checkpoint: model.safetensors, or the pickled file of older ones, read without running code."""
    try:
        return load_file(local_file(where, "model.safetensors", revision=revision))
    except SafetensorError as fault:
        raise ModelError(f"model.safetensors of {where!r} is damaged ({fault}). Save the model again.") from fault
    except (OSError, FileNotFoundError):
        path = local_file(where, "pytorch_model.bin", revision=revision)
        if not path.is_file():
            raise ModelError(f"model {where!r} has no model.safetensors. Save it with save_pretrained.") from None
        try:
            return dict(torch.load(path, map_location="cpu", weights_only=True))
        except (UnpicklingError, RuntimeError, TypeError, ValueError, EOFError, OSError) as fault:
            reason = str(fault).splitlines()[0] if str(fault) else type(fault).__name__
            raise ModelError(
                f"{path} holds more than plain weights, or is damaged ({reason}); nothing in it was run. Convert it to "
                "model.safetensors where it is trusted."
            ) from fault


def _our_name(key: str, kind: str) -> str:
    key = key.replace(".gamma", ".weight").replace(".beta", ".bias").removeprefix("cls.")
    for theirs, ours in MLM_PARTS.items():
        if key.startswith(theirs):
            return ours + key.removeprefix(theirs)
    return "backbone." + key.removeprefix(f"{kind}.")


@torch.no_grad()
def _fill(model: EncoderModel, weights: Mapping[str, Tensor], *, required: set[str]) -> None:
    """Copy tensors into the parameters of the same name; ModelError if ``required`` ones are missing or misshapen."""
    named = named_weights(model)
    missing = sorted(required - set(weights))
    other = sorted(key for key in set(named) & set(weights) if named[key].shape != weights[key].shape)
    if missing or other:
        what = f"lacks {missing[:3]}" if missing else f"has other shapes than config.json says, first: {other[0]}"
        raise ModelError(f"the weights of model {model.name!r} cannot be used: the file {what}. Save the model again.")
    for key in set(named) & set(weights):
        named[key].copy_(weights[key])


def _with_vision(model: EncoderModel, vision: VisionConfig, *, seed: int) -> EncoderModel:
    """A bimodal copy of a unimodal model; the new eye is drawn with ``seed``."""
    config = replace(model.config, vision=vision)
    other = build(config, model.tokenizer, seed=seed, name=model.name)
    other.module.load_state_dict({**other.module.state_dict(), **model.module.state_dict()})
    return other
