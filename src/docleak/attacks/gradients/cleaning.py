"""What an adversary who knows of Safe Template does first: take the perturbation off the published template."""

from __future__ import annotations

import torch
from torch import Tensor

#: Pixels this near (in the pixel range) to the paper's colour are taken for paper.
NEAR = 0.3
LEVELS = 8


def without_perturbation(template: Tensor, *, near: float = NEAR) -> Tensor:
    """The template (B, 3, H, W) in [0, 1] with paper set to its commonest colour and ink rounded to LEVELS greys.

    Templates are printed: nearly every pixel is paper of one colour or ink of another, so a bounded perturbation is
    told from content by rounding. The paper's colour is the middle of what the light pixels show, or white where the
    lightest are white (there the perturbation was cut off).
    """
    cleaned = []
    for page in template:
        light = page[:, page.mean(0) >= page.mean(0).median() - near]  # (3, N)
        ordered = light.sort(dim=1).values
        low, high = (ordered[:, int(share * (ordered.shape[1] - 1))] for share in (0.1, 0.95))
        paper = torch.where(high > 0.999, high, (low + high) / 2)[:, None, None]
        is_paper = ((page - paper).abs() <= near).all(0)
        cleaned.append(torch.where(is_paper, paper, (page * LEVELS).round() / LEVELS))
    return torch.stack(cleaned)
