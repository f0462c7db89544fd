"""Pixels in closed form at the shape of SigLIP-so400m: ``python scripts/tower_pixels.py --patches 256 --layers 27``.

A SigLIP tower (d 1152, patches of 14 pixels, random weights, float32) reads a synthetic invoice; the loss is a random
linear function of its output. The attack sees the gradients of its table of positions and of its patch weight, and no
template.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

from docleak.attacks.gradients.algebra.patches import System, numbers_of, pixels_of_system
from docleak.attacks.gradients.algebra.subset_sums import FLOAT32
from docleak.documents.synthetic import make_pages
from docleak.models import pixels_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patches", type=int, default=256)
    parser.add_argument("--layers", type=int, default=27)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    import transformers as t

    torch.set_num_threads(1)
    torch.manual_seed(arguments.seed)
    side = 14 * int(arguments.patches**0.5)
    settings = t.SiglipVisionConfig(
        hidden_size=1152, intermediate_size=4304, num_hidden_layers=arguments.layers, num_attention_heads=16,
        image_size=side, patch_size=14, vision_use_head=False,
    )  # fmt: skip
    tower: Any = t.SiglipVisionModel(settings).eval().requires_grad_(False)
    named = dict(tower.named_parameters())
    table = next(p for name, p in named.items() if name.endswith("position_embedding.weight"))
    weight = next(p for name, p in named.items() if name.endswith("patch_embedding.weight"))
    for one in (table, weight):
        one.requires_grad_(True)
    page = make_pages(1, seed=arguments.seed)[0]
    pixels = torch.nn.functional.interpolate(pixels_of(page.image)[None], (side, side), mode="area")
    started = time.perf_counter()
    out = tower(pixel_values=2 * pixels - 1).last_hidden_state
    loss = (out * torch.randn(out.shape, generator=torch.Generator().manual_seed(1))).mean()
    moved, sent = torch.autograd.grad(loss, [table, weight])
    client = time.perf_counter() - started
    gradients, columns = numbers_of(moved), numbers_of(sent)
    sums = columns.transpose(2, 3, 1, 0).reshape(14 * 14, 3, -1)
    sums = (sums + gradients.sum(axis=0)) / 2
    system = System(gradients, sums, 14, FLOAT32 * float(np.sqrt(np.square(sums).mean())))
    started = time.perf_counter()
    unknown = torch.ones(1, side, side, dtype=torch.bool)
    found, determined, conditions = pixels_of_system(system, torch.full_like(pixels, 0.5), unknown)
    wrong = (found - pixels).abs()
    print(
        f"{arguments.patches} patches, {arguments.layers} layers: {float((wrong <= 1 / 255).float().mean()):.2%} of "
        f"pixels within 1/255, largest error {float(wrong.max()):.1e}, "
        f"determined {float(determined.float().mean()):.1%}, "
        f"client {client:.0f} s, attack {time.perf_counter() - started:.0f} s; "
        + "; ".join(f"{one.name}: {one.found}" for one in conditions)
    )


if __name__ == "__main__":
    main()
