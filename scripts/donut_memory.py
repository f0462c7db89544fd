"""Memory of one evaluation of Donut-base by size of page, counted on tensors that have a size and no content.

    python -m scripts.donut_memory --out docs/results/gi-dqa/donut-memory.md

Forward pass, gradient and the second backward pass to the pixels run on meta tensors, so nothing is computed; every
storage is counted from its allocation until it is freed. The weights and the gradient that was sent are among them;
what the interpreter, its libraries and the allocator's gaps take beside that is not (about 0.6 GB).
"""

from __future__ import annotations

import argparse
import gc
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from docleak.attacks.gradients.matching import dummy_gradient
from docleak.attacks.gradients.shallow import STAGES
from docleak.models.base import Encoded
from docleak.models.recompute import recomputation
from scripts.donut_ladder import BASE, Rung, build

#: Tokens of question and answer, as many as a page of the ladder has.
TOKENS = 60
SIZES = ((480, 640), (960, 1280), (1920, 2560))
CLIENT = "the client's own gradient"
WAYS = ("all layers", "shallow", "shallow, recompute=yes", CLIENT, f"{CLIENT}, recomputed")


class Storages(TorchDispatchMode):
    """Bytes of all storages that operations made and nobody freed, and the most there were."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.most = 0
        self.known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def add(self, tensor: Tensor) -> None:
        """Count what holds ``tensor``, once."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return

        def freed(_: object) -> None:
            self.alive -= size
            del self.known[key]

        self.known[key] = weakref.ref(storage, freed)
        self.alive += size
        self.most = max(self.most, self.alive)

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What torch calls for every operation."""
        made = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self.add(leaf)
        return made


def peaks(rung: Rung, way: str) -> tuple[float, float]:
    """GB of the weights and the gradient sent, and the most that one evaluation holds with them.

    ``way`` is one of WAYS. Whitening is left out: its maps are small where layers are shallow.
    """
    with torch.device("meta"), Storages() as storages:
        model = build(replace(rung, spread=False), seed=0)
        named = dict(model.module.named_parameters())
        held = [torch.empty_like(value) for value in named.values()]
        for value in (*named.values(), *model.module.buffers(), *held):
            storages.add(value)
        gc.collect()
        before = storages.most = storages.alive
        kept = [name for name in named if way in (WAYS[0], *WAYS[3:]) or model.early(name, STAGES)]
        for name in named.keys() - set(kept):
            named[name].requires_grad_(False)
        ids = torch.zeros(TOKENS, dtype=torch.long)
        inputs = [Encoded({"decoder_input_ids": ids, "labels": ids, "prompt_ids": ids}, ())]
        pixels = torch.empty(1, 3, rung.size[1], rung.size[0], requires_grad=True)
        with recomputation("recompute" in way):
            dummy = dummy_gradient(model, pixels, inputs, kept, create_graph=not way.startswith(CLIENT))
            if way.startswith(CLIENT):
                return before / 1e9, storages.most / 1e9
            distance = torch.stack([(dummy[name] - held[0].new_zeros(())).square().sum() for name in kept]).sum()
            torch.autograd.grad(distance, pixels)
        return before / 1e9, storages.most / 1e9


def as_markdown() -> str:
    """A row per way, a column per size."""
    sizes = [f"{width} x {height}" for width, height in SIZES]
    lines = [
        "# Memory of one evaluation of Donut-base",
        "",
        "`python -m scripts.donut_memory --out docs/results/gi-dqa/donut-memory.md`",
        "",
        "GB of tensors at most, the weights and the whole gradient that was sent (1.6 GB) among them. They are counted",
        "on meta tensors: nothing is computed. Of an evaluation of `gi-dqa` all three passes are counted, by the",
        "tensors that are matched; of a client's gradient the two that it needs.",
        "",
        f"| what is matched or computed | {' | '.join(sizes)} |",
        f"|---|{'---|' * len(sizes)}",
    ]
    for way in WAYS:
        gigabytes = [peaks(replace(BASE, size=size), way) for size in SIZES]
        print(way, gigabytes, flush=True)
        lines.append(f"| {way} | {' | '.join(f'{most:.1f}' for _, most in gigabytes)} |")
    return "\n".join([*lines, "", f"torch {torch.__version__}; page of {TOKENS} tokens", ""])


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.write_text(as_markdown())


if __name__ == "__main__":
    main()
