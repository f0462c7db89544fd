"""docleak's reading of an imprint beside ``breaching`` 0.1.2's, on breaching's own case: its block, its attacker.

The case of breaching's minimal example of Robbing the Fed: a ResNet-18 of torchvision with random weights behind an
``ImprintBlock``, pictures of 224 x 224. ImageNet is not at hand: the pictures are docleak's scenes. Both readers get
the same gradient; breaching's is told how many pictures there are, docleak's is not. ``docleak's own layer`` is the
whole of ours on the same network and pictures. Installed as ``bench.beside_breaching`` says, with omegaconf:

    BREACHING=SOMEWHERE python -m bench imprint
"""

from __future__ import annotations

import os
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor, nn

from bench.beside_breaching import _package
from docleak.attacks.servers.bins import edges
from docleak.attacks.servers.imprint import ImprintLayer, inputs_of_bins
from docleak.documents.pairs import make_scenes
from docleak.models import pixels_of

SIDE, PICTURES, BINS, CASES = 224, 8, (16, 64), 5
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: A picture counts as read from this on.
READ = 40.0
#: How near to breaching's share of pictures ours has to come.
TARGET = 0.01


def pictures(case: int) -> Tensor:
    """PICTURES scenes (n, 3, SIDE, SIDE), normalised as breaching's are."""
    from PIL import Image

    scenes = make_scenes(PICTURES, seed=case)
    sized = [np.asarray(Image.fromarray(scene.image).resize((SIDE, SIDE))) for scene in scenes]
    pixels = torch.stack([pixels_of(one) for one in sized])
    return (pixels - torch.tensor(MEAN)[:, None, None]) / torch.tensor(DEVIATION)[:, None, None]


def gradient_of(front: nn.Module, network: nn.Module, x: Tensor) -> list[Tensor]:
    """Of the mean cross-entropy, front layer first, as one client sends it."""
    model = nn.Sequential(front, network)
    loss = nn.functional.cross_entropy(model(x), torch.arange(len(x)))
    return list(torch.autograd.grad(loss, list(model.parameters())))


def theirs(breaching: Any, block: nn.Module, network: nn.Module, x: Tensor, gradient: list[Tensor]) -> Tensor:
    """What breaching's ImprintAttacker gives, normalised pixels."""
    settings = SimpleNamespace(
        type="analytic", attack_type="imprint-readout", label_strategy=None, normalize_gradients=False,
        sort_by_bias=False, text_strategy="no-preprocessing", token_strategy="decoder-bias",
        token_recovery="from-limited-embedding", breach_reduction="weight", breach_padding=True,
        impl=SimpleNamespace(dtype="float", mixed_precision=False, JIT=""),
    )  # fmt: skip
    attacker = import_module("breaching.attacks.analytic_attack").ImprintAttacker(
        nn.Sequential(block, network),
        nn.CrossEntropyLoss(),
        settings,
        {"device": torch.device("cpu"), "dtype": torch.float},
    )
    about = SimpleNamespace(modality="vision", size=(1,), classes=1000, shape=(3, SIDE, SIDE), normalize=True,
                            mean=MEAN, std=DEVIATION)  # fmt: skip
    payload = {"parameters": list(nn.Sequential(block, network).parameters()), "buffers": None, "metadata": about}
    known = {"num_data_points": len(x), "labels": torch.arange(len(x)), "local_hyperparams": None}
    shared = {"gradients": gradient, "buffers": None, "metadata": known}
    secret = {"weight_idx": 0, "bias_idx": 1, "shape": (3, SIDE, SIDE), "structure": block.structure}
    reconstruction, _ = attacker.reconstruct([payload], [shared], {"ImprintBlock": secret}, dryrun=False)
    pixels: Tensor = reconstruction["data"]
    return pixels


def likeness(found: Tensor, true: Tensor) -> list[float]:
    """PSNR of the likeliest of ``found`` for each true picture, in dB, of pixels in [0, 1]; 0 where there is none."""
    deviation = torch.tensor(DEVIATION)[:, None, None]
    values = []
    for one in true:
        errors = ((found - one) * deviation).square().flatten(1).mean(1) if len(found) else torch.ones(1)
        values.append(float(-10 * torch.log10(errors.min().clamp_min(1e-12))))
    return values


def measure() -> dict[str, Any]:
    """Shares of pictures read, and the median likeness of those, by number of bins and reader."""
    breaching = _package()
    torchvision = import_module("torchvision")
    blocks = import_module("breaching.cases.malicious_modifications.imprint")
    by_bins: dict[str, dict[str, Any]] = {}
    for bins in BINS:
        rows: dict[str, list[float]] = {
            "breaching": [],
            "docleak reads breaching's block": [],
            "docleak's own layer": [],
        }
        seconds = dict.fromkeys(rows, 0.0)
        for case in range(CASES):
            torch.manual_seed(case)
            network, x, public = torchvision.models.resnet18().eval(), pictures(case), pictures(100 + case)
            block = blocks.ImprintBlock((3, SIDE, SIDE), num_bins=bins)
            gradient = gradient_of(block, network, x)
            started = time.perf_counter()
            rows["breaching"] += likeness(theirs(breaching, block, network, x, [g.clone() for g in gradient]), x)
            seconds["breaching"] += time.perf_counter() - started
            started = time.perf_counter()
            read = inputs_of_bins(gradient[0], gradient[1]).float().reshape(-1, 3, SIDE, SIDE)
            rows["docleak reads breaching's block"] += likeness(read, x)
            seconds["docleak reads breaching's block"] += time.perf_counter() - started
            direction = torch.randn(3 * SIDE * SIDE, generator=torch.Generator().manual_seed(case))
            direction /= direction.norm()
            layer = ImprintLayer(direction, edges(public.flatten(1) @ direction, bins), gain=1e-2)
            ours = gradient_of(layer, network, x)
            started = time.perf_counter()
            rows["docleak's own layer"] += likeness(
                inputs_of_bins(ours[0], ours[1]).float().reshape(-1, 3, SIDE, SIDE), x
            )
            seconds["docleak's own layer"] += time.perf_counter() - started
        by_bins[str(bins)] = {
            name: {"read": sum(v >= READ for v in values), "of": len(values), "median": float(np.median(values)),
                   "seconds": seconds[name] / CASES} for name, values in rows.items()
        }  # fmt: skip
    return {"bins": by_bins, "version": getattr(breaching, "__version__", "0.1.2")}


def as_markdown(numbers: dict[str, Any]) -> str:
    """A table, and whether the target is met."""
    lines = [
        "## Imprint (Robbing the Fed), beside breaching 0.1.2", "",
        f"breaching's minimal example (ResNet-18 with random weights, {SIDE} x {SIDE}) on {PICTURES} of docleak's "
        f"scenes at once, {CASES} such batches; read means PSNR of {READ:g} dB or more. breaching is told how many "
        "pictures there are.", "",
        "| bins | reader | pictures read | median PSNR, dB | seconds |", "|---|---|---|---|---|",
    ]  # fmt: skip
    met = True
    for bins, rows in numbers["bins"].items():
        for name, row in rows.items():
            lines.append(
                f"| {bins} | {name} | {row['read']} of {row['of']} | {row['median']:.1f} | {row['seconds']:.2f} |"
            )
        shares = [rows[name]["read"] / rows[name]["of"] for name in ("docleak reads breaching's block", "breaching")]
        met &= shares[0] >= shares[1] - TARGET
    lines += [
        "",
        f"Reading breaching's own block, docleak comes within 1 % of its share or above: {'yes' if met else 'no'}.",
    ]
    return "\n".join(lines) + "\n"
