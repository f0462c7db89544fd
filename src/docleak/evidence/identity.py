"""What tells models and pages apart in a run: keys, titles, and hashes of what they hold."""

from __future__ import annotations

import hashlib

from docleak.documents import Page
from docleak.models import DocumentModel, short_name, title_of, trainable


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


def weights_hash(model: DocumentModel) -> str:
    """Ten hexadecimal digits over all trainable parameters' names and bytes."""
    digest = hashlib.sha256()
    for name, parameter in trainable(model.module):
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:10]


def data_hash(pages: list[Page]) -> str:
    """Ten hexadecimal digits over the pages' names, pixels and field values."""
    digest = hashlib.sha256()
    for page in pages:
        digest.update(page.name.encode() + page.image.tobytes())
        digest.update("|".join(f.value for f in page.fields).encode())
    return digest.hexdigest()[:10]
