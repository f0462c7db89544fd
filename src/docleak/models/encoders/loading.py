"""Encoders on disk: docleak's own, and backbones as transformers saves them, from a directory or the hub."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from docleak.errors import ModelError
from docleak.files import drafted_folder
from docleak.models.encoders.model import BACKBONES, EncoderConfig, EncoderModel, build, told
from docleak.models.encoders.resnet import read_resnet
from docleak.models.encoders.tasks import CLASSED, Task
from docleak.models.encoders.vision import VisionConfig
from docleak.models.files import HALF, config_from, fill, image_settings, save_module, tokenizer_of, weights_in
from docleak.models.loading import config_at, loadable, locate, short_name
from docleak.models.shipped import SHIPPED_ENCODERS

MODEL_TYPE = "docleak-encoder"
#: Parts of a checkpoint's masked-language head, in transformers' names and in ours.
MLM_PARTS = {
    "predictions.transform.dense.": "head.dense.",
    "predictions.transform.LayerNorm.": "head.norm.",
    "predictions.bias": "head.bias",
}
#: The names of BROS' authors, and transformers' own.
BROS_PARTS = {"embeddings.bbox_projection.": "bbox_embeddings.bbox_projection."}


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
    eye that ``vision`` asks for (but for its ResNet, if it names one), is drawn with ``seed``. Raises ModelError for
    anything else, for a backbone without a ``task``, for a tokenizer that is not the model's, and for missing weights.
    """
    where, revision, values = found_encoder(source)
    name, is_own = short_name(source), values.get("model_type") == MODEL_TYPE
    if task is None and not is_own:
        raise ModelError(f"model {source!r} is a bare backbone without a task's head; name the task it is for.")
    with loadable(f"encoder {source!r}"):
        if is_own:
            model = _load_own(where, values, revision, name=name)
            if vision is not None and not model.bimodal:
                model = _with_vision(model, vision, seed=seed)
            if task is not None and (task, tuple(classes)) != (model.task, model.config.classes):
                model = model.for_task(task, classes, seed=seed)
        elif task is not None:
            model = load_backbone(where, values, revision, task, classes, vision, seed=seed, name=name)
    model.module.to(device)
    return model


def found_encoder(source: str) -> tuple[str, str | None, dict[str, Any]]:
    """Directory or hub name of a source as ``load_encoder`` takes it, its revision, and its config.json's values."""
    where, revision = locate(source, what="encoder", shipped=SHIPPED_ENCODERS, owned=False)
    return where, revision, config_at(where, revision, source)


def save_encoder(model: EncoderModel, directory: Path) -> None:
    """Write config.json, model.safetensors and the tokenizer; the folder appears whole, in the place of another."""
    with drafted_folder(directory) as draft:
        save_module(draft, MODEL_TYPE, model.config, model.module)
        model.tokenizer.save_pretrained(draft)


def save_for_transformers(model: EncoderModel, directory: Path) -> None:
    """Write a model of masked words as ``transformers`` does, its head under BERT's names: what fine-tunes it from
    there takes the backbone, and ``load_encoder`` the head as well."""
    from safetensors.torch import save_file

    theirs = {ours: f"cls.{name}" for name, ours in MLM_PARTS.items()} | {"backbone.": f"{model.config.architecture}."}
    weights = {
        name.replace(part, theirs[part], 1): value.detach().cpu().contiguous()
        for name, value in named_weights(model).items() for part in theirs if name.startswith(part)
    }  # fmt: skip
    with drafted_folder(directory) as draft:
        model.module.backbone.config.save_pretrained(draft)
        save_file(weights, draft / "model.safetensors", {"format": "pt"})
        model.tokenizer.save_pretrained(draft)


def named_weights(model: EncoderModel) -> dict[str, Tensor]:
    """Parameters by name, a tied one once."""
    return dict(model.module.named_parameters())


def _load_own(where: str, values: dict[str, Any], revision: str | None, *, name: str) -> EncoderModel:
    tokenizer = tokenizer_of(where, revision=revision, kind="PreTrainedTokenizerFast")
    model = build(config_from(EncoderConfig, values, name), tokenizer, seed=0, name=name)
    fill(model.module, weights_in(where, revision), source=name)
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
    question_first: bool = False,
) -> EncoderModel:
    """A backbone as transformers saves it, with a head for ``task``: its own of masked words, any other one drawn.

    ``whole`` requires the file to have the head; ``question_first`` as of EncoderConfig.
    """
    kind = values.get("model_type")
    if kind not in BACKBONES:
        raise ModelError(f"model {name!r} is of architecture {kind!r}; encoders are {', '.join(BACKBONES)}.")
    import transformers

    backbone = getattr(transformers, BACKBONES[kind][0])(**values).to_dict()
    resnet, seen = _eye_of(vision)
    config = EncoderConfig(
        kind, backbone, task, tuple(classes) if task in CLASSED else (), vision, resnet, question_first
    )
    if config.has_patches and (norm := image_settings(where, revision=revision)) and (norm.mean, norm.std) != (
        HALF, HALF
    ):  # fmt: skip
        raise ModelError(
            f"model {name!r} normalises pictures by mean {norm.mean} and deviation {norm.std}; expected {HALF[0]} "
            "for all channels, as LayoutLMv3's processor has them."
        )
    model = build(config, words_alone(tokenizer_of(where, revision=revision)), seed=seed, name=name)
    renamed = {_our_name(key, kind): value for key, value in weights_in(where, revision).items()} | seen
    required = {key for key in named_weights(model) if whole or key.startswith("backbone.")}
    fill(model.module, renamed, source=name, required=required)
    drawn = [key for key in named_weights(model) if key not in renamed]
    model.drawn = told(model, drawn, seed=seed)
    return model


def words_alone(tokenizer: Any) -> Any:
    """A tokenizer that takes words alone: LayoutLMv3's asks for boxes, on which its pieces do not depend."""
    if not hasattr(tokenizer, "cls_token_box"):
        return tokenizer
    from transformers import PreTrainedTokenizerFast

    names = ("cls_token", "sep_token", "pad_token", "mask_token", "unk_token", "bos_token", "eos_token")
    special = {name: getattr(tokenizer, name) for name in names}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **special)


def _our_name(key: str, kind: str) -> str:
    key = key.replace(".gamma", ".weight").replace(".beta", ".bias").removeprefix("cls.")
    for theirs, ours in MLM_PARTS.items():
        if key.startswith(theirs):
            return ours + key.removeprefix(theirs)
    key = key.removeprefix(f"{kind}.")
    for theirs, ours in BROS_PARTS.items():
        if key.startswith(theirs):
            key = ours + key.removeprefix(theirs)
    return "backbone." + key


def _eye_of(vision: VisionConfig | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the eye's ResNet is like, and its weights by the network's names; nothing for an eye without one."""
    if vision is None or not vision.resnet:
        return {}, {}
    described, weights = read_resnet(vision.resnet)
    return described, {f"eye.layers.{name}": value for name, value in weights.items()}


def _with_vision(model: EncoderModel, vision: VisionConfig, *, seed: int) -> EncoderModel:
    """A bimodal copy of a unimodal model; the new eye, but for a ResNet, is drawn with ``seed``."""
    resnet, seen = _eye_of(vision)
    config = replace(model.config, vision=vision, resnet=resnet)
    return model.rebuilt(config, model.module.state_dict() | seen, seed=seed)
