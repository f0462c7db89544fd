"""The guard's opinion on a checkpoint: its files, its settings, and the network that they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from docleak.documents.page import Page
from docleak.errors import DocumentError, ModelError
from docleak.files import read_json_object
from docleak.models.base import DocumentModel, device_of, pixels_of
from docleak.models.files import weights_in
from docleak.models.loading import config_of, load_model, locate
from docleak.models.lora import ADAPTER, adapter_file
from docleak.training.guard.guard import Limits, Opinion, inspect

#: Examples that are enough to see whether inputs come back one by one, and few beside an epoch.
EXAMPLES = 4


def probe(model: DocumentModel, pages: Sequence[Page], *, examples: int = EXAMPLES) -> Callable[[], Tensor]:
    """The mean loss of ``model`` on a question of each of the first pages that have one, to be called by the guard.

    DocumentError where no page has a question with an answer.
    """
    chosen = []
    for page in pages:
        question = next((one for one in page.questions if one.answers), None)
        if question is not None:
            chosen.append((model.fit(page), question))
        if len(chosen) == examples:
            break
    if not chosen:
        raise DocumentError(f"none of {len(pages)} pages has a question with an answer; the guard needs one to try.")
    device = device_of(model)
    pixels = torch.stack([pixels_of(page.image, device) for page, _ in chosen])
    inputs = [model.encode(page, question) for page, question in chosen]

    def loss() -> Tensor:
        with torch.random.fork_rng(devices=[]):
            return model.loss(pixels, inputs).mean()

    return loss


#: Keys of config.json that say nothing of what is computed.
UNTOLD = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")
#: Keys of adapter_config.json that say how much adapters weigh.
SCALING = ("lora_alpha", "use_rslora", "alpha_pattern")


def opinion_on(
    model: str, pages: Sequence[Page], *, last: str = "", examples: int = 4, limits: Limits | None = None
) -> Opinion:
    """What ``inspect`` says of the checkpoint ``model`` beside the checkpoint ``last``, tried on some of ``pages``.

    Files are compared as they are, so that tensors no code would load are seen, too. Raises ModelError for checkpoints
    that cannot be read.
    """
    asked = load_model(model)
    before = tensors_of(last, load_model(last)) if last else None
    opinion = inspect(
        tensors_of(model, asked), before, module=asked.module, loss=probe(asked, pages, examples=examples),
        limits=limits,
    )  # fmt: skip
    return replace(opinion, reasons=(*(changed_settings(model, last) if last else ()), *opinion.reasons))


def tensors_of(source: str, loaded: DocumentModel) -> dict[str, Tensor]:
    """The tensors of a checkpoint's own file; of adapters, theirs and those of the base that they name."""
    try:
        return weights_in(*locate(source))
    except ModelError:
        return {name: p.detach() for name, p in loaded.module.named_parameters()}


def changed_settings(model: str, last: str) -> tuple[str, ...]:
    """Settings in config.json, or of adapters, that are not as they were, in words."""
    now, before = _one_by_one(_settings(model)), _one_by_one(_settings(last))
    names = sorted(key for key in now.keys() | before.keys() if key not in UNTOLD and now.get(key) != before.get(key))
    files = {key: ADAPTER if key.split(".")[0] in SCALING else "config.json" for key in names}
    return tuple(f"{files[key]} says {key} {_short(now.get(key))}, and said {_short(before.get(key))}" for key in names)


def _one_by_one(settings: dict[str, Any], within: str = "") -> dict[str, Any]:
    """Settings within settings by their path, so that a change is named and not cut off."""
    told: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{within}{key}"
        told |= _one_by_one(value, f"{name}.") if isinstance(value, dict) and value else {name: value}
    return told


def _settings(source: str) -> dict[str, Any]:
    """Those of config.json; of adapters of their base's, and what scales them."""
    where, revision = locate(source)
    if (file := adapter_file(where, revision)) is None:
        return config_of(source)
    told = read_json_object(file, error=ModelError, advice="Save the adapters again.")
    scaling = {key: told.get(key) or None for key in SCALING}  # older versions of peft do not write what is off
    return config_of(str(told["base_model_name_or_path"])) | scaling


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
