"""Whether a private training can move its adapters at all: noise and epsilon are reported of weights that stand still,
too (meta-pytorch/opacus#820)."""

from __future__ import annotations

import torch

from docleak.documents.pages import gathered
from docleak.documents.synthetic import make_page
from docleak.errors import PrivacyError
from docleak.models.base import DocumentModel, device_of, pixels_of, trainable

#: What stands between a layer's name and its adapter's, as ``peft`` names parameters.
ADAPTER = ".lora_"


def require_moving(model: DocumentModel) -> None:
    """PrivacyError where a low-rank adapter cannot learn: A and B are both 0, or no gradient arrives at either.

    The gradient is that of a question about a synthetic page, which is public. A model without adapters is not looked
    at.
    """
    adapters = ((name, parameter) for name, parameter in trainable(model.module) if ADAPTER in name)
    pairs = gathered((name.partition(ADAPTER)[0], parameter) for name, parameter in adapters)
    if not pairs:
        return
    page = model.fit(make_page(0, seed=0))
    pixels = pixels_of(page.image, device_of(model))[None]
    loss = model.loss(pixels, [model.encode(page, page.questions[0])]).sum()
    parameters = [parameter for pair in pairs.values() for parameter in pair]
    arrived = dict(
        zip(map(id, parameters), torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True),
            strict=True)
    )  # fmt: skip
    zero = [name for name, pair in pairs.items() if not any(bool(p.any()) for p in pair)]
    deaf = [
        name for name, pair in pairs.items() if name not in zero and not any(bool(arrived[id(p)].any()) for p in pair)
    ]
    faults = [
        f"{why} in {len(names)} of {len(pairs)} adapters, first of {names[0]}"
        for why, names in (("A and B are both 0", zero), ("no gradient arrives", deaf))
        if names
    ]
    if faults:
        raise PrivacyError(
            f"{'; '.join(faults)}: their weights would not move but for noise, and epsilon would be reported all the "
            "same. Make the adapters anew (docleak models adapt), or target layers that the loss passes through."
        )
