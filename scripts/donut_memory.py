"""Memory of one evaluation of Donut-base by size of page, counted on tensors that have a size and no content.

    python -m scripts.donut_memory --out docs/results/gi-dqa/donut-memory.md

Forward pass, gradient and the second backward pass to the pixels run on meta tensors, so nothing is computed; every
storage is counted from its allocation until it is freed. The weights and the gradient that was sent are among them;
what the interpreter, its libraries and the allocator's gaps take beside that is not (about 0.6 GB).
"""

from __future__ import annotations

import argparse
import gc
from bisect import bisect_left
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from docleak.attacks.gradients.matching import dummy_gradient
from docleak.attacks.gradients.shallow import STAGES
from docleak.models.base import Encoded
from docleak.models.recompute import recomputation
from docleak.studies.gradient.memory import Storages
from scripts.donut_ladder import BASE, Rung, build

#: Tokens of question and answer, as many as a page of the ladder has.
TOKENS = 60
SIZES = ((480, 640), (960, 1280), (1920, 2560))
#: Pages of 3 to 4 by how often they are 60 x 80 pixels, and the GB of a machine: what is not counted has 0.6 of them.
STEP, STEPS, MACHINE, UNCOUNTED = (60, 80), range(4, 33), 20.0, 0.6
CLIENT = "the client's own gradient"
WAYS = ("all layers", "shallow", "shallow, recompute=yes", CLIENT, f"{CLIENT}, recomputed")


@cache
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


def largest(rung: Rung, way: str, machine: float = MACHINE) -> tuple[int, int]:
    """The largest page of STEPS, in pixels, of which one evaluation fits into ``machine`` GB."""

    def too_large(step: int) -> bool:
        return peaks(replace(rung, size=(STEP[0] * step, STEP[1] * step)), way)[1] + UNCOUNTED > machine

    step = STEPS[max(bisect_left(STEPS, True, key=too_large) - 1, 0)]
    return STEP[0] * step, STEP[1] * step


def as_markdown() -> str:
    """A row per way, a column per size."""
    sizes = [f"{width} x {height}" for width, height in SIZES] + [f"largest page in {MACHINE:.0f} GB"]
    lines = [
        "# Memory of one evaluation of Donut-base",
        "",
        "`python -m scripts.donut_memory --out docs/results/gi-dqa/donut-memory.md`",
        "",
        "GB of tensors at most, the weights and the whole gradient that was sent (1.6 GB) among them. They are counted",
        "on meta tensors: nothing is computed. Of an evaluation of `gi-dqa` all three passes are counted, by the",
        "tensors that are matched; of a client's gradient the two that it needs. *All layers* is how `gi-dqa` was",
        "before. The largest page is of 3 to 4, in steps of 60 x 80 pixels, and at most Donut-base's own; 0.6 of the",
        "20 GB are left to what is not counted (interpreter, libraries, the allocator's gaps).",
        "",
        f"| what is matched or computed | {' | '.join(sizes)} |",
        f"|---|{'---|' * len(sizes)}",
    ]
    for way in WAYS:
        gigabytes = [peaks(replace(BASE, size=size), way) for size in SIZES]
        print(way, gigabytes, flush=True)
        most = " x ".join(map(str, largest(BASE, way)))
        lines.append(f"| {way} | {' | '.join(f'{most:.1f}' for _, most in gigabytes)} | {most} |")
    return "\n".join([*lines, "", f"torch {torch.__version__}; page of {TOKENS} tokens", ""])


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.write_text(as_markdown())


if __name__ == "__main__":
    main()
