"""Initialisations for the start of federated training in which position matters.

At the libraries' default initialisation (standard deviation 0.02, zero relative-position bias) a
small transformer is nearly linear in the mean of its patches, and the gradient hardly depends on
where the ink is. ``spread`` draws every matrix with fan-in variance and gives the position tables
the size of the contents they are added to.
"""

from __future__ import annotations

import math

import torch
from torch import nn


@torch.no_grad()
def spread(module: nn.Module, *, generator: torch.Generator, gain: float = 0.7, head_width: int = 32) -> None:
    """Re-initialise in place: matrices N(0, gain²/fan_in), position tables N(0, 1), biases 0.

    Embedding tables that stand alone (tokens, absolute positions, boxes) are drawn as
    N(0, 1/width), so that the logits of a tied output layer start at unit size.
    """
    for name, parameter in module.named_parameters():
        if "relative_position_bias_table" in name:
            parameter.normal_(0.0, 1.0, generator=generator)
        elif ".rel_pos" in name:  # LayoutLMv3 divides these by sqrt(head width), and never trains them
            parameter.normal_(0.0, math.sqrt(head_width), generator=generator)
        elif name.endswith(("cls_token", "pos_embed")):
            parameter.normal_(0.0, 0.5, generator=generator)
        elif "embed" in name and parameter.ndim == 2:
            parameter.normal_(0.0, 1.0 / math.sqrt(parameter.shape[1]), generator=generator)
        elif parameter.ndim >= 2:
            parameter.normal_(0.0, gain / math.sqrt(parameter[0].numel()), generator=generator)
        elif name.endswith("bias"):
            parameter.zero_()
