"""Taking a perturbation off a printed template."""

from __future__ import annotations

import pytest
import torch

from docleak.attacks.gradients.cleaning import without_perturbation


@pytest.mark.parametrize("paper", [1.0, 0.9])
def test_paper_is_found_again_under_signs(paper: float) -> None:
    clean = torch.full((1, 3, 40, 60), paper)
    clean[:, :, 10:14, 5:40] = 0.0
    signs = torch.randint(0, 2, clean.shape, generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    restored = without_perturbation((clean + 8 / 255 * signs).clamp(0, 1))
    assert float((restored - clean).abs().max()) < 0.5 / 255


def test_a_clean_template_stays_what_it_is() -> None:
    clean = torch.ones(1, 3, 20, 30)
    clean[:, :, 5, 3:20] = 0.25
    assert torch.allclose(without_perturbation(clean), clean, atol=1e-6)


def test_coloured_ink_is_no_paper_though_one_channel_of_it_is() -> None:
    clean = torch.ones(1, 3, 20, 30)
    clean[:, 1:, 4:9, 3:20] = 0.0  # a red stamp
    clean[:, 0, 12:14, 3:20] = 0.25
    assert torch.equal(without_perturbation(clean), clean)
