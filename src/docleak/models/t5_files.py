"""How a VT5 or a FeDocVQA model lies on disk: config.json, model.safetensors, the tokenizer's files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from docleak.errors import ModelError
from docleak.files import parse_json
from docleak.models.preprocessing import require_weights

PROMPT = "question: {question}  context: "
HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class ReaderConfig:
    """What config.json says, beside ``model_type``.

    ``text`` and ``vision`` are the values of the two networks' own configurations; or the directories (relative ones
    start at config.json's) or hub names of pretrained ones (t5-base; dit-base or vit-mae-base). In the second case
    there is no model.safetensors, and the layers that join the two are drawn with ``seed``.
    ``box_scale`` is what a page's width and height are scaled to: 1000, or 1 to reproduce the public VT5 code, in whose
    integer tables boxes in [0, 1] all become 0. ``prompt_box`` is the question's box. ``lowercase`` folds words and
    answers, but not questions. ``finetune_vision`` also trains VT5's DiT.
    """

    text: Mapping[str, Any] | str
    vision: Mapping[str, Any] | str
    image_mean: tuple[float, ...] = HALF
    image_std: tuple[float, ...] = HALF
    prompt: str = PROMPT
    prompt_box: tuple[int, ...] = (0, 0, 1000, 1000)
    box_scale: int = 1000
    positions: int = 1024
    lowercase: bool = True
    max_tokens: int = 512
    max_answer_tokens: int = 20
    finetune_vision: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        faults = []
        if self.prompt.count("{question}") != 1:
            faults.append(f"prompt is {self.prompt!r}, expected one {{question}} in it")
        if not 1 <= self.box_scale < self.positions:
            faults.append(f"box_scale is {self.box_scale}, expected 1..{self.positions - 1} (below positions)")
        if len(self.prompt_box) != 4 or not all(0 <= v < self.positions for v in self.prompt_box):
            faults.append(f"prompt_box is {self.prompt_box}, expected four numbers in 0..{self.positions - 1}")
        if min(self.max_tokens, self.max_answer_tokens) < 1:
            faults.append("max_tokens and max_answer_tokens must be at least 1")
        if isinstance(self.text, str) != isinstance(self.vision, str):
            faults.append("of text and vision, either both are names of checkpoints or neither is")
        if len(self.image_mean) != 3 or len(self.image_std) != 3 or min(self.image_std, default=0) <= 0:
            faults.append("image_mean and image_std are of three channels, and the latter above 0")
        if faults:
            raise ModelError("the model's config.json cannot be used: " + "; ".join(faults) + ".")


def read_config(source: str, *, revision: str | None = None) -> ReaderConfig:
    """The ReaderConfig of a directory or hub name; ModelError for unknown or missing keys."""
    path = local_file(source, "config.json", revision=revision)
    values = parse_json(path.read_text(encoding="utf-8"), strict=False)
    kind = values.pop("model_type", None)
    known = {field.name for field in fields(ReaderConfig)}
    unknown, missing = sorted(set(values) - known), sorted({"text", "vision"} - set(values))
    if unknown or missing:
        raise ModelError(
            f"config.json of the {kind} model {source!r} has unknown keys {unknown} and lacks {missing}; expected "
            f"'text' and 'vision', and any of {', '.join(sorted(known - {'text', 'vision'}))}."
        )
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    for part in ("text", "vision"):
        here = path.parent / values[part] if isinstance(values[part], str) else None
        if here is not None and here.is_dir():
            values[part] = str(here)
    return ReaderConfig(**values)


def write(directory: str, architecture: str, config: ReaderConfig, module: nn.Module) -> None:
    """Write config.json and model.safetensors; a tied weight is written once, under its first name."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    values = {"model_type": architecture, **asdict(config)}
    (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    weights = {name: p.detach().cpu().contiguous() for name, p in module.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def read_weights(source: str, module: nn.Module, *, revision: str | None = None) -> None:
    """Fill ``module``; ModelError, naming the first, if parameters are missing, unknown or of another shape."""
    weights = load_file(local_file(source, "model.safetensors", revision=revision))
    named = dict(module.named_parameters())
    require_weights(source, module, set(named) - set(weights))
    unknown = sorted(set(weights) - set(named))
    other = [name for name in named if name in weights and named[name].shape != weights[name].shape]
    if unknown or other:
        what = f"{len(unknown)} unknown parameters" if unknown else "parameters of another shape"
        raise ModelError(
            f"model {source!r} could not be loaded: model.safetensors holds {what}, first: {(unknown or other)[0]}. "
            "Its config.json belongs to another model; save the model again."
        )
    for name, parameter in named.items():
        parameter.copy_(weights[name])


def local_file(source: str, name: str, *, revision: str | None = None) -> Path:
    """A file of a directory, or of a hub model, which is downloaded."""
    if Path(source).is_dir():
        return Path(source) / name
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(source, name, revision=revision))


def require_size(name: str, own: tuple[int, int], size: tuple[int, int] | None) -> None:
    """ModelError if pages of another size are asked for: the patches have their places."""
    if size not in (None, own):
        raise ModelError(
            f"model {name!r} only takes pages of {own[0]} x {own[1]} pixels, not {size[0]} x {size[1]}. Leave out "
            "--image-size; pages of any size are scaled to the model's."
        )
