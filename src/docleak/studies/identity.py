"""What tells models and pages apart in a run: keys, titles, and hashes of what they hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

import torch

from docleak.documents import Page
from docleak.documents.folder import page_line
from docleak.models import DocumentModel, short_name, title_of
from docleak.models.encoders.model import EncoderModel


def title_key(model: str) -> str:
    """A short name for a model in unit ids: its last path part and a digest of the whole."""
    last = short_name(model)
    return last if last == model else f"{last}-{hashlib.sha256(model.encode()).hexdigest()[:6]}"


def model_key(model: str, image_size: tuple[int, int] | None) -> str:
    """``title_key``, with the size of the pages where it is not the checkpoint's own: one row of models in a report."""
    return title_key(model) + ("" if image_size is None else f"-{image_size[0]}x{image_size[1]}")


def model_title(model: str, image_size: tuple[int, int] | None) -> str:
    """The title a report prints, with the size of the pages where it is not the checkpoint's own."""
    return title_of(model) + ("" if image_size is None else f", at {image_size[0]} x {image_size[1]} pixels")


def weights_hash(model: DocumentModel | EncoderModel) -> str:
    """Ten hexadecimal digits over the names and bytes of all weights, those that are never trained too."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:10]


def data_hash(pages: Iterable[Page]) -> str:
    """Ten hexadecimal digits over the pages' pixels and all that ``pages.jsonl`` would say of them."""
    digest = hashlib.sha256()
    for page in pages:
        digest.update(json.dumps([page_line(page, page.name), page.image.shape], sort_keys=True).encode())
        digest.update(page.image.tobytes())
    return digest.hexdigest()[:10]
