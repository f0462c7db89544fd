"""Narrow copies of published checkpoints, every tensor of which is random, so that none can be mistaken for another."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from docleak.documents.page import Page
from docleak.documents.synthetic import make_pages
from docleak.models.files import weights_in
from docleak.models.published import make


def mirror(name: str, folder: Path) -> Path:
    """The checkpoint ``name`` in ``folder``, narrow; its biases and norms are random, too."""
    make(name, folder / name, seed=0, scale="narrow")
    tensors = weights_in(str(folder / name), None)
    generator = torch.Generator().manual_seed(1)
    for value in tensors.values():
        if value.is_floating_point():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.02)
    for file in (folder / name).glob("*.safetensors"):
        save_file(tensors, file, metadata={"format": "pt"})
    for file in (folder / name).glob("*.bin"):
        torch.save(tensors, file)
    return folder / name


def digests(tensors: dict[str, Tensor]) -> dict[str, str]:
    """A hash of shape and numbers by name."""
    return {
        name: hashlib.sha256(repr(value.shape).encode() + value.detach().contiguous().numpy().tobytes()).hexdigest()
        for name, value in tensors.items()
    }


def drawn_parameters(module: nn.Module, folder: Path) -> list[str]:
    """The parameters whose numbers are not in the checkpoint's file, in whatever name."""
    saved = set(digests(weights_in(str(folder), None)).values())
    return [name for name, digest in digests(dict(module.named_parameters())).items() if digest not in saved]


def invoice() -> Page:
    """A synthetic invoice."""
    return make_pages(1, seed=0, size=(224, 320))[0]
