"""Signs of a manipulated model: in its weights, beside the last ones, and in what a gradient of it would give away.

``flat`` and ``loud`` look at single matrices: rows that are all one direction, or far too long. ``silent`` counts
matrices and gains of layer norms that are zeros or next to it, ``leap`` measures how far a tensor moved since the last
model, in units of itself or of the model's usual tensor, whichever is larger. ``bare`` is the sign that matters: how
many different inputs of a layer come back as they are, as a row of the layer's gradient or as the difference of two
neighbouring rows. The silo knows its inputs, so it can count them; nobody else can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from docleak.spec import counted_words

#: Arrays of whatever library by parameter name.
Weights = Mapping[str, Tensor | NDArray[Any]]
#: Smaller matrices are as flat as they like (a head of two rows, an adapter of rank 8).
LEAST_SIDE = 16
#: Tables are looked up, not multiplied with: how long their rows are says nothing.
TABLES = ("embed", "shared", "position", "relative", "spatial")
#: Which place of a table each pair of patches looks up (Swin, BEiT): whole numbers, two directions by their making.
PLACES = "relative_position_index"
#: What is this small beside what is usual in the model, or beside what it was, passes nothing on.
NOTHING = 1e-4
#: Of adapters, zero where a training begins.
BEGINS_AT_ZERO = ("lora_B", "lora_embedding_A")
#: A row is an input from this cosine on; inputs nearer than the second one to one another count once.
SAME, ALIKE = 0.999, 0.95
#: Squared length of the mean of inputs, all of length 1, above which they have much in common.
IN_COMMON = 0.5
#: What float32 leaves of a row when most of it is taken off.
ROUNDED = 1e-6
#: Inputs of a layer that are compared at most, and rows at a time.
MOST_COMPARED = 1024


@dataclass(frozen=True)
class Sign:
    """What was looked for, how much of it was found, and in which tensor."""

    name: str
    value: float
    where: str = ""


def structure(asked: Weights, last: Weights) -> list[str]:
    """What differs in names and shapes, in words."""
    shapes = [{name: tuple(value.shape) for name, value in weights.items()} for weights in (last, asked)]
    gone, new = sorted(shapes[0].keys() - shapes[1].keys()), sorted(shapes[1].keys() - shapes[0].keys())
    tensors = [counted_words(len(names), "tensor") for names in (new, gone)]
    differences = [f"it has {tensors[0]} that the last model had not, first {new[0]}"] if new else []
    differences += [f"it lacks {tensors[1]} of the last model, first {gone[0]}"] if gone else []
    differences += [
        f"{name} has shape {shapes[1][name]}, and had {shapes[0][name]}"
        for name in sorted(shapes[0].keys() & shapes[1].keys()) if shapes[0][name] != shapes[1][name]
    ]  # fmt: skip
    return differences


def _of_places(name: str, value: Tensor | NDArray[Any]) -> bool:
    """Whether it is a tower's index of places: whole numbers, which nothing trains, whatever others call so."""
    return name.endswith(PLACES) and not torch.as_tensor(value).is_floating_point()


def of_weights(asked: Weights) -> list[Sign]:
    """``flat``, ``loud``, ``silent`` and ``infinite`` of a model by itself."""
    flat, loud, infinite = Sign("flat", 0.0), Sign("loud", 0.0), []
    for name, value in asked.items():
        matrix = _matrix(value)
        if not bool(torch.isfinite(matrix).all()):
            infinite.append(name)
        elif _is_multiplied(name, value) and (size := float(matrix.square().sum())):
            flat = max(flat, Sign("flat", _two_directions(matrix) / size, name), key=_by_value)
            if not any(part in name.lower() for part in TABLES):
                loud = max(loud, Sign("loud", float(matrix.norm(dim=1).median()), name), key=_by_value)
    silent = _silent(asked)
    return [
        flat, loud, Sign("silent", len(silent), silent[0] if silent else ""),
        Sign("infinite", len(infinite), infinite[0] if infinite else ""),
    ]  # fmt: skip


def _is_multiplied(name: str, value: Tensor | NDArray[Any]) -> bool:
    """Whether it is a matrix, large enough to be judged."""
    return value.ndim >= 2 and min(_matrix(value).shape) >= LEAST_SIDE and not _of_places(name, value)


def _silent(asked: Weights) -> list[str]:
    """Matrices, then gains of layer norms, that pass nothing on, beside what is usual in the model."""
    sizes = {name: _rms(_matrix(value)) for name, value in asked.items() if _is_multiplied(name, value)}
    sizes = {name: size for name, size in sizes.items() if math.isfinite(size)}
    usual = float(np.median([size for size in sizes.values() if size] or [0.0]))
    silent = [name for name, size in sizes.items() if size <= NOTHING * usual]
    return [name for name in silent if not any(part in name for part in BEGINS_AT_ZERO)] + _norms(asked)


def _norms(asked: Weights) -> list[str]:
    """Layer norms' gains that pass nothing on. Of norms without a bias only where others of the model do: Gemma's
    begin at zero, for 1 is added to them."""
    gains = {name: _rms(_matrix(value)) for name, value in asked.items()
             if value.ndim == 1 and len(value) >= LEAST_SIDE and name.endswith(".weight")}  # fmt: skip
    biased = {name for name in gains if f"{name.removesuffix('weight')}bias" in asked}
    most = max((size for name, size in gains.items() if name not in biased), default=0.0)
    return [name for name, size in gains.items() if size < NOTHING * (1.0 if name in biased else most)]


def since(asked: Weights, last: Weights) -> list[Sign]:
    """``leap`` and newly ``silent`` of a model beside the last one, tensors that both have alone.

    Newly: next to nothing beside what it was, or, by itself, beside what is usual, where the last model's was not.
    """
    pairs = {name: (_matrix(asked[name]), _matrix(last[name])) for name in asked
             if name in last and tuple(asked[name].shape) == tuple(last[name].shape)}  # fmt: skip
    sizes = [_rms(before) for name, (_, before) in pairs.items() if last[name].ndim >= 2 and bool(before.any())]
    usual = float(np.median(sizes)) if sizes else 1.0
    leap, silent = Sign("leap", 0.0), []
    for name, (now, before) in pairs.items():
        leap = max(leap, Sign("leap", _rms(now - before) / max(_rms(before), usual, 1e-12), name), key=_by_value)
        if before.any() and _rms(now) <= NOTHING * _rms(before):
            silent.append(name)
    before_too = {*silent, *_silent(last)}
    silent += [name for name in _silent(asked) if name in pairs and name not in before_too]
    return [leap, Sign("silent", len(silent), silent[0] if silent else "")]


def of_gradient(module: nn.Module, loss: Callable[[], Tensor]) -> Sign:
    """``bare``: of the layer where there are most, how many different inputs come back as they are.

    ``loss()`` runs the module on a few of the silo's own examples and returns a scalar. Linear layers that are trained
    are looked at, those of adapters by the layer they are on, but not the output over a vocabulary: its rows show what
    stood before each token of an answer in any model. Nothing is changed, no gradient is kept.
    """
    outputs = {id(get()) for part in module.modules() if (get := getattr(part, "get_output_embeddings", None))}
    layers = {
        name: layer for name, layer in module.named_modules() if _is_looked_at(layer) and id(layer) not in outputs
    }
    kept: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad and name not in kept:
            kept[name] = (inputs[0].detach(), output)

    handles = [
        layer.register_forward_hook(lambda _, inputs, output, name=name: keep(name, inputs, output))
        for name, layer in layers.items()
    ]
    try:
        value = loss()
        wanted = [output for _, output in kept.values()]
        slopes = torch.autograd.grad(value, wanted, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    best = Sign("bare", 0 if bool(torch.isfinite(value)) else math.nan)
    for (name, (inputs, _)), slope in zip(kept.items(), slopes, strict=True):
        if slope is not None:
            count = bare(inputs.flatten(0, -2), slope.detach().flatten(0, -2))
            best = max(best, Sign("bare", count, name), key=_by_value)
    return best


def bare(inputs: Tensor, slopes: Tensor) -> int:
    """How many of a layer's ``inputs`` (T, d) its weight's gradient ``slopes`` (T, k)ᵀ inputs shows, each alone.

    Where the inputs have much in common (a server can add one vector to all of them), also how many show once the mean
    is taken off them, and off the rows as often as the slopes say.
    """
    inputs, slopes = inputs.double(), slopes.double()
    rows = slopes.T @ inputs  # (k, d)
    known = inputs[inputs.norm(dim=1) > 1e-9 * inputs.norm(dim=1).max().clamp_min(1e-300)]
    if len(known) < LEAST_SIDE:
        return 0
    known = known[:: -(-len(known) // MOST_COMPARED)]
    sizes = rows.norm(dim=1)
    common = (known / known.norm(dim=1, keepdim=True)).mean(0).square().sum() > IN_COMMON
    means = [torch.zeros_like(known[0]), known.mean(0)] if bool(common) else [torch.zeros_like(known[0])]
    most = 0
    for mean in means:
        left = rows - slopes.sum(0)[:, None] * mean
        vectors = known - mean
        vectors = vectors / vectors.norm(dim=1, keepdim=True).clamp_min(1e-300)
        most = max(most, _told(left, vectors, sizes))
        most = max(most, _told(left[:-1] - left[1:], vectors, torch.maximum(sizes[:-1], sizes[1:])))
    return most


def _told(candidates: Tensor, vectors: Tensor, sizes: Tensor) -> int:
    """How many different ``vectors`` (n, d), of length 1, are among ``candidates`` (k, d), but for those that rounding
    of the rows of such ``sizes`` (k,) explains: however small a row is beside others, it can be read by itself."""
    told = sizes.new_zeros(len(vectors), dtype=torch.bool)
    for some, of in zip(torch.split(candidates, MOST_COMPARED), torch.split(sizes, MOST_COMPARED), strict=True):
        there = some[some.norm(dim=1) > ROUNDED * of + torch.finfo(torch.float32).tiny]
        if len(there):
            cosine, which = (there @ vectors.T).abs().max(1)
            told[which[cosine > SAME * there.norm(dim=1)]] = True
    shown = vectors[told]
    alike = (shown @ shown.T).abs() > ALIKE
    return int((alike.triu(1).sum(0) == 0).sum())


def _is_looked_at(layer: nn.Module) -> bool:
    """A linear layer whose weight is trained, or that trained adapters are on."""
    base = getattr(layer, "base_layer", layer)
    if not isinstance(base, nn.Linear) or min(base.weight.shape) < LEAST_SIDE:
        return False
    return base.weight.requires_grad or (base is not layer and any(p.requires_grad for p in layer.parameters()))


def _two_directions(matrix: Tensor) -> float:
    """The squared size of the two largest directions of a matrix."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _, sizes, _ = torch.svd_lowrank(matrix, q=6, niter=2)
    return float(sizes[:2].square().sum())


def _matrix(value: Tensor | NDArray[Any]) -> Tensor:
    """Rows of float32, whatever it was."""
    tensor = value.detach() if isinstance(value, Tensor) else torch.from_numpy(np.array(value, dtype=np.float32))
    return tensor.float().cpu().flatten(1) if tensor.ndim >= 2 else tensor.float().cpu().reshape(1, -1)


def _rms(value: Tensor) -> float:
    return float(value.square().mean().sqrt())


def _by_value(sign: Sign) -> float:
    """What came out as no number goes before all that did: it could not be told."""
    return math.inf if math.isnan(sign.value) else sign.value
