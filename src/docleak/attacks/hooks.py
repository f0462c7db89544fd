"""What layers read, or make, while a network runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn


class _Reached(Exception):
    """The layer that was asked for was reached; what is behind it need not be computed."""


@contextmanager
def read_by(layers: Iterable[nn.Module], *, made: bool = False) -> Iterator[list[tuple[nn.Module, Tensor]]]:
    """Each layer with what it reads, or ``made``: makes, in the order in which they are called within the context."""
    seen: list[tuple[nn.Module, Tensor]] = []

    def keep(layer: nn.Module, inputs: tuple[Any, ...], output: Any = None) -> None:
        seen.append((layer, output if made else inputs[0]))

    with ExitStack() as stack:
        for layer in layers:
            handle = layer.register_forward_hook(keep) if made else layer.register_forward_pre_hook(keep)
            stack.callback(handle.remove)
        yield seen


@torch.no_grad()
def reached(layer: nn.Module, run: Callable[[], object], *, made: bool = False) -> Tensor:
    """What ``layer`` reads, or ``made``: makes, the first time in ``run``, which ends there; on the CPU."""

    def end(*_: Any) -> None:
        raise _Reached

    with read_by([layer], made=made) as seen, suppress(_Reached):
        handle = layer.register_forward_hook(end) if made else layer.register_forward_pre_hook(end)
        try:
            run()
        finally:
            handle.remove()
    return seen[0][1].detach().cpu()
