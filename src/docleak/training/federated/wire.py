"""What travels between silo and server: float32 arrays over named parameters, and two ways to send less."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from docleak.errors import FederationError
from docleak.spec import number, split_name
from docleak.training.federated.fedopt import Arrays

KINDS = ("none", "fp16", "topk")
#: What a sparse parameter's two arrays are called on the wire.
INDEX, VALUE = "::index", "::value"
LARGEST_HALF = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class Compression:
    """How an update is sent: as it is, in half precision, or its ``share`` of largest entries per parameter."""

    kind: str = "none"
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise FederationError(f"unknown compression {self.kind!r}; known: none, fp16, topk:SHARE.")
        if not 0 < self.share <= 1:
            raise FederationError(f"compression keeps a share of {self.share}; expected more than 0 and at most 1.")

    @classmethod
    def of(cls, text: str) -> Compression:
        """``none``, ``fp16`` or ``topk:0.01``; FederationError for anything else."""
        kind, share = split_name(text)
        try:
            if kind not in KINDS or (kind == "topk") != bool(share):
                raise ValueError(text)
            return cls(kind, number(share) if share else 1.0)
        except ValueError as fault:
            expected = "none, fp16 or topk:SHARE (topk:0.01)"
            raise FederationError(f"compression {text!r} is not known; expected {expected}.") from fault

    def __str__(self) -> str:
        return f"topk:{self.share:g}" if self.kind == "topk" else self.kind


def pack(delta: Arrays, compression: Compression) -> dict[str, NDArray[np.generic]]:
    """The arrays that are sent for an update. FederationError where half precision cannot hold it."""
    if compression.kind == "none":
        return {name: np.asarray(value, dtype=np.float32) for name, value in delta.items()}
    if compression.kind == "fp16":
        large = [name for name, value in delta.items() if value.size and np.abs(value).max() > LARGEST_HALF]
        if large:
            raise FederationError(f"{large[0]!r} changed by more than half precision can hold; send it uncompressed.")
        return {name: value.astype(np.float16) for name, value in delta.items()}
    packed: dict[str, NDArray[np.generic]] = {}
    for name, value in delta.items():
        flat = np.asarray(value, dtype=np.float32).ravel()
        count = math.ceil(compression.share * flat.size)
        order = np.argpartition(-np.abs(flat), count - 1)[:count] if count < flat.size else np.arange(flat.size)
        packed[name + INDEX] = np.sort(order).astype(np.uint32)
        packed[name + VALUE] = flat[packed[name + INDEX]]
    return packed


def unpack(
    arrays: Mapping[str, NDArray[np.generic]], shapes: Mapping[str, tuple[int, ...]], compression: Compression
) -> dict[str, NDArray[np.floating]]:
    """The update that ``pack`` sent, float32. What does not fit ``shapes`` is left for ``Averaging`` to name."""
    if compression.kind != "topk":
        return {name: np.asarray(value).astype(np.float32, copy=False) for name, value in arrays.items()}
    update: dict[str, NDArray[np.floating]] = {}
    for name in (key.removesuffix(INDEX) for key in arrays if key.endswith(INDEX)):
        index, value = arrays[name + INDEX], arrays.get(name + VALUE)
        dense = np.zeros(shapes.get(name, (0,)), dtype=np.float32)
        if value is None or len(value) != len(index) or (len(index) and int(np.max(index)) >= dense.size):
            raise FederationError(f"the sparse parameter {name!r} does not fit the model; send the update again.")
        dense.ravel()[index.astype(np.int64)] = value
        update[name] = dense
    return update


def relative_error(delta: Arrays, compression: Compression) -> float:
    """||sent - delta|| / ||delta|| over all parameters (0 for an update of zeros)."""
    if compression.kind == "none":
        return 0.0
    sent = unpack(pack(delta, compression), {name: value.shape for name, value in delta.items()}, compression)
    wrong = sum(float(np.sum(np.square(sent[name].astype(np.float64) - value))) for name, value in delta.items())
    whole = sum(float(np.sum(np.square(value.astype(np.float64)))) for value in delta.values())
    return math.sqrt(wrong / whole) if whole else 0.0
