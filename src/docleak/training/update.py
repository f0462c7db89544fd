"""What a client computes and sends: the gradient of its batch over named parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from docleak.models.base import DocumentModel, Encoded, in_mode, trainable


def client_gradient(
    model: DocumentModel, pixels: Tensor, inputs: Sequence[Encoded], *, train_mode: bool = False,
    names: Iterable[str] | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """The gradient of the batch's mean loss, eq. 1 of GI-DQA, as named tensors.

    ``pixels`` (B, 3, H, W) in [0, 1]. ``train_mode`` runs with dropout (drawn from torch's global
    generator, as training does). ``names`` restricts the parameters, for instance to one stage.
    A tied weight appears once; parameters the loss does not reach get zeros. The tensors share no memory, so that
    ``safetensors.torch.save_file`` takes them.
    """
    chosen = dict(trainable(model.module))
    if names is not None:
        chosen = {name: chosen[name] for name in names}
    with in_mode(model.module, training=train_mode):
        loss = model.loss(pixels, inputs).mean()
        values = torch.autograd.grad(loss, list(chosen.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if value is None else value.detach().clone(memory_format=torch.contiguous_format)
        for (name, p), value in zip(chosen.items(), values, strict=True)
    }
