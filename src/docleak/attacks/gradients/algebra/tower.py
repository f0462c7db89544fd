"""The patches of a page in closed form from the tower of a vision-language model that has a table of positions.

The tower's input at patch n is W x_n + b + sum_k M_nk p_k, where M is the identity (SigLIP's table) or interpolates
(Qwen3-VL's). So the table's gradient is Mᵀ E with E the gradient at the patches, and the patch weight's is sum_n e_n
x_nᵀ: ``patches`` solves the latter for the pixels once E is known. M is measured on the network, not written down.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from docleak.attacks.gradients.algebra.patches import System, numbers_of
from docleak.attacks.gradients.algebra.subset_sums import FLOAT32, Floats, Indices
from docleak.attacks.gradients.view import GradientView
from docleak.attacks.hooks import reached
from docleak.errors import AttackError
from docleak.models.base import DocumentModel, device_of
from docleak.models.vlm.model import VisionLanguage

#: Ends of the names of towers' tables of positions and patch weights, in transformers.
TABLES = ("embeddings.position_embedding.weight", "visual.pos_embed.weight")
WEIGHTS = ("embeddings.patch_embedding.weight", "patch_embed.proj.weight")
#: Smaller numbers of the matrix of positions are rounding.
SMALLEST = 1e-6
#: Largest condition number of the matrix of positions at which the patches' gradients are told apart.
WORST = 1e4


def obstacle(model: DocumentModel, tensors: Collection[str], batch_size: int) -> str:
    """Why the pixels have no closed form in a gradient of these ``tensors``; "" if they do. It needs no gradient."""
    if not isinstance(model, VisionLanguage):
        return f"{model.name!r} is a {model.architecture}, no vision-language model"
    names = [name for name, _ in model.module.named_parameters()]
    table, weight = _ending(names, TABLES), _ending(names, WEIGHTS)
    if not table or not weight:
        said = "has no table of positions that is known here: its patches are not told apart"
        return f"the tower of this {model.architecture} {said}"
    if table not in tensors or weight not in tensors:
        return f"the gradient lacks {table} or {weight}: the tower is frozen, so its pixels have no closed form"
    if batch_size != 1:
        return f"the gradient is an average over {batch_size} pages, which share a row for each position"
    frames, patches = _frames(model)
    width = int(model.module.get_parameter(weight).shape[0])
    if frames != 1:
        return f"a page is {frames} tiles, which share one table of positions: their patches mix"
    if patches >= width:
        return f"a page has {patches} patches of {width} numbers each; fewer than {width} are told apart"
    return ""


def tower_system(view: GradientView) -> System:
    """The linear system of the page's patches, in rows from top to bottom. AttackError where there is none."""
    model = view.model
    fault = obstacle(model, view.gradient, view.batch_size)
    if fault or not isinstance(model, VisionLanguage):
        raise AttackError(f"{fault}. Attack with gi-dqa.")
    table, weight = _ending(view.gradient, TABLES), _ending(view.gradient, WEIGHTS)
    patches = _Patches.of(model, weight)
    positions = _positions(model, table, weight)
    values = torch.linalg.svdvals(torch.from_numpy(positions))
    if float(values[-1]) * WORST < float(values[0]):
        raise AttackError(
            f"the {len(positions)} patches share {positions.shape[1]} positions so closely that their gradients are "
            "not told apart. Attack with gi-dqa."
        )
    moved = numbers_of(view.gradient[table]).reshape(positions.shape[1], -1)
    gradients: Floats = np.linalg.lstsq(positions.T, moved, rcond=None)[0][patches.order].astype(np.float64)  # (N, h)
    columns = numbers_of(view.gradient[weight]).reshape(gradients.shape[1], 3, -1, patches.side**2)
    sums = columns.mean(axis=2).transpose(2, 1, 0)  # equal frames of one picture; (p², 3, h)
    slope, offset = (part.double().numpy() for part in model.picture.channels)
    sums = (sums - offset[:, None] * gradients.sum(axis=0)) / slope[:, None]
    scale = float(np.sqrt(np.square(sums).mean()))
    return System(gradients, sums, patches.side, FLOAT32 * scale)


@dataclass(frozen=True)
class _Patches:
    """Patches of ``side`` x ``side`` pixels; ``order`` (N,) brings the network's into rows from top to bottom."""

    order: Indices
    side: int

    @classmethod
    def of(cls, model: VisionLanguage, weight: str) -> _Patches:
        """By what the patch embedding reads of a page whose pixels spell out their places."""
        layer: Any = model.module.get_submodule(weight.removesuffix(".weight"))
        side = int(layer.weight.shape[-1])
        index = model.picture.place.to(torch.float32).reshape(model.picture.shape)
        read = _reached(model, index, layer, inputs=True)
        if read.ndim == 4 and read.shape[-1] != side:  # a picture, to be cut: (1, 3, H, W)
            corners = read[0, 0, ::side, ::side].flatten()
        else:  # patches that the processor has cut: (N, 3, T, p, p) or flat
            corners = read.reshape(len(read), -1)[:, 0]
        return cls(np.asarray(corners.argsort().numpy()), side)


def _positions(model: VisionLanguage, table: str, weight: str) -> Floats:
    """M (N, K): what each row of the table adds to each patch."""
    parameter = model.module.get_parameter(table)
    count, width = parameter.shape
    kept, made = parameter.detach().clone(), np.zeros((0, 0))
    pixels = torch.zeros(model.picture.shape)
    behind, inputs = _behind(model, table)
    columns = []
    try:
        for first in range(0, count, width):
            rows = torch.zeros_like(kept)
            here = torch.arange(first, min(first + width, count))
            rows[here, here - first] = 1.0
            with torch.no_grad():
                parameter.zero_()
                empty = _reached(model, pixels, behind, inputs=inputs)
                parameter.copy_(rows)
                filled = _reached(model, pixels, behind, inputs=inputs)
            columns.append((filled - empty).reshape(-1, width)[:, : len(here)])
        made = numbers_of(torch.cat(columns, 1))
    finally:
        with torch.no_grad():
            parameter.copy_(kept)
    return np.asarray(np.where(np.abs(made) < SMALLEST, 0.0, made))


def _behind(model: VisionLanguage, table: str) -> tuple[nn.Module, bool]:
    """Where patches and positions have been added: a module, and whether its input is meant or its output."""
    above = table.rsplit(".", 2)[0]
    if above.endswith("embeddings"):
        return model.module.get_submodule(above), False
    return model.module.get_submodule(f"{above}.blocks.0"), True


def _reached(model: VisionLanguage, pixels: Tensor, module: nn.Module, *, inputs: bool) -> Tensor:
    """What a module of the tower reads, or makes, of the network's ``pixels``."""
    device = device_of(model)
    given = {name: value.to(device) for name, value in {**model.picture.constants, model.picture.name: pixels}.items()}
    network: Any = model.module
    return reached(module, lambda: network.model.get_image_features(**given), made=not inputs).double()


def _frames(model: VisionLanguage) -> tuple[int, int]:
    """Pictures that a page is cut into, and patches of one."""
    shape = model.picture.shape
    weight = model.module.get_parameter(_ending([name for name, _ in model.module.named_parameters()], WEIGHTS))
    if len(shape) == 2:
        return 1, shape[0]
    frames = int(np.prod(shape[:-3]))
    return frames, (shape[-2] // weight.shape[-2]) * (shape[-1] // weight.shape[-1])


def _ending(names: Collection[str], ends: tuple[str, ...]) -> str:
    """The vision tower's name that ends so; "" where there is none."""
    return next((name for name in names if name.endswith(ends) and "vis" in name), "")
