"""A published checkpoint with random weights, in the files and under the names in which it is published."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from docleak.errors import ModelError
from docleak.files import write_json
from docleak.models.files import drawn_with, new_model, taken
from docleak.models.published.table import Published, Scale, published, value_at
from docleak.models.published.vocabularies import write_vocabulary
from docleak.models.start import spread, spread_reader

#: "default": as transformers draws it; "spread": see ``docleak.models.start``, so that the gradient depends on places.
Initialisation = Literal["default", "spread"]
#: The picture's part of VT5.
DIT = "dit-base-finetuned-rvlcdip"


def make(
    name: str,
    out: Path,
    *,
    seed: int,
    initialisation: Initialisation = "default",
    scale: Scale = "published",
    weights: Literal["model.safetensors", "pytorch_model.bin"] | None = None,
    shards: int = 1,
) -> dict[str, Any]:
    """Write the checkpoint ``name`` of PUBLISHED to ``out``, whole or not at all; returns its card.

    Weights are drawn with ``seed``, and nothing in them is learned. The vocabulary has the published number of tokens,
    with the special ones in their places, but words of docleak's own. ``weights`` and ``shards`` write another file, or
    several with an index. The whole network is held in memory once. The card (docleak.json) says all this. Raises
    ModelError for an unknown name and for an ``out`` that holds something.
    """
    checkpoint = published(name)
    if fault := taken(out):
        raise ModelError(f"{fault}.")
    config = checkpoint.config_at(scale)
    with drawn_with(seed):
        module = build(checkpoint, scale)
    if initialisation == "spread":
        drawn = spread_reader if checkpoint.built_by == "VT5" else spread
        drawn(module, generator=torch.Generator().manual_seed(seed))
    size = "of the published size" if scale == "published" else "made narrow"
    card = {
        "recipe": f"{checkpoint.repository} {size}, random weights ({initialisation}) drawn with seed {seed}",
        "published": checkpoint.repository,
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in module.parameters()),
    }
    with new_model(out, card) as draft:
        holder = weights or checkpoint.weights
        once = holder == "model.safetensors"  # a pickled file keeps tied tensors under each name, and stores them once
        _write_weights(draft, named_tensors(checkpoint, module, config, once=once), holder, shards)
        if checkpoint.tokenizer is not None:
            tokens = value_at(config, checkpoint.tokenizer.rows) - checkpoint.tokenizer.spare
            write_vocabulary(checkpoint.tokenizer, draft, tokens=tokens)
        for file, content in (
            ("generation_config.json", checkpoint.generation),
            ("preprocessor_config.json", checkpoint.processor),
            ("config.json", config),
        ):
            if content is not None:
                write_json(draft / file, dict(content))
    return card


def build(checkpoint: Published, scale: Scale = "published") -> Any:
    """The network whose tensors the checkpoint holds, in evaluation mode, drawn from the global generator."""
    import transformers as t

    config = checkpoint.config_at(scale)
    if checkpoint.built_by == "VT5":
        from docleak.models.vt5 import VT5Network

        dit = t.BeitConfig.from_dict(published(DIT).config_at(scale))
        text = t.T5ForConditionalGeneration._from_config(t.T5Config.from_dict(config))
        vision = t.BeitModel._from_config(dit, add_pooling_layer=False)
        return VT5Network(text, vision, positions=config["max_2d_position_embeddings"]).eval()
    kind = getattr(t, checkpoint.built_by)
    return kind._from_config(kind.config_class.from_dict(config)).eval()


def named_tensors(
    checkpoint: Published, module: nn.Module, config: Mapping[str, Any], *, once: bool = True
) -> dict[str, Tensor]:
    """The file's tensors by their published names; a tied one ``once`` under its first, or under all."""
    tensors: dict[str, Tensor] = {}
    kept: set[int] = set()
    for name, value in module.state_dict(keep_vars=True).items():
        if (once and id(value) in kept) or any(re.search(pattern, name) for pattern in checkpoint.lacks):
            continue
        kept.add(id(value))
        for pattern, replacement in checkpoint.names:
            name = re.sub(pattern, replacement, name)
        tensors[name] = value.detach()
    device = next(module.parameters()).device
    for pattern, (kind, *dimensions) in checkpoint.adds.items():
        shape = [config[size] if isinstance(size, str) else size for size in dimensions]
        if kind == "arange":
            value = torch.arange(shape[-1], device=device).expand(shape).clone()
        else:
            value = torch.ones(shape, device=device)
            value = value.tril() if kind == "tril" else value
        before, layers, behind = pattern.partition("#")
        numbers = {name.removeprefix(before).partition(".")[0] for name in tensors if name.startswith(before)}
        tensors |= {f"{before}{number}{behind}": value.clone() for number in sorted(numbers if layers else {""})}
    return tensors


def _write_weights(folder: Path, tensors: Mapping[str, Tensor], file: str, shards: int) -> None:
    whole = {name: value.contiguous() for name, value in tensors.items()}
    if shards == 1:
        _write_file(folder / file, whole)
        return
    stem, _, ending = file.rpartition(".")
    places = {name: f"{stem}-{index % shards + 1:05}-of-{shards:05}.{ending}" for index, name in enumerate(whole)}
    for shard in sorted(set(places.values())):
        _write_file(folder / shard, {name: value for name, value in whole.items() if places[name] == shard})
    index = {"metadata": {"total_size": size_of(whole.values())}, "weight_map": dict(sorted(places.items()))}
    (folder / f"{file}.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _write_file(file: Path, tensors: dict[str, Tensor]) -> None:
    if file.suffix == ".bin":
        with file.open("wb") as stream:  # of a path torch does not say why it could not be written
            torch.save(tensors, stream)
    else:
        save_file(tensors, file, metadata={"format": "pt"})


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of all numbers."""
    return sum(value.numel() * value.element_size() for value in tensors)
