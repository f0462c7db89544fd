"""Pixels in closed form from towers with tables of positions, straight and interpolated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from docleak.attacks.gradients import ATTACKS
from docleak.attacks.gradients.algebra.tower import obstacle
from docleak.attacks.gradients.view import GradientView, Knowledge
from docleak.documents import blank_template, private_mask
from docleak.documents.synthetic import make_pages
from docleak.errors import AttackError
from docleak.models import load_model, pixels_of
from docleak.models.vlm.tiny import make_tiny
from docleak.training.update import client_gradient
from tests.wide import make_wide

SQUARE = {"size": {"height": 56, "width": 56}, "image_seq_length": 64}
SETTINGS = {
    "paligemma": ({"hidden_size": 96, "image_size": 56, "patch_size": 7}, SQUARE, None),
    "qwen3_vl": ({"hidden_size": 96}, {}, (96, 128)),
}


@pytest.mark.parametrize("family", SETTINGS)
def test_every_pixel_is_read(family: str, tmp_path: Path) -> None:
    vision, images, size = SETTINGS[family]
    make_wide(family, tmp_path / family, vision=vision, images=images)
    model = load_model(str(tmp_path / family), image_size=size)
    page = model.fit(make_pages(1, seed=2)[0])
    pixels, example = pixels_of(page.image)[None], model.encode(page, page.questions[0])
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    view = GradientView(model, client_gradient(model, pixels, [example]))
    private = torch.from_numpy(private_mask(page))[None]
    for template, hidden in (
        (pixels_of(blank_template(page))[None], private),
        (torch.full_like(pixels, 0.5), torch.ones_like(private)),  # no template at all
    ):
        finding = ATTACKS.load("closed-form").run(
            view, Knowledge(template, hidden, [example]), budget=1, generator=torch.Generator().manual_seed(0)
        )
        assert float((finding.pixels - pixels).abs()[hidden[:, None].expand_as(pixels)].max()) < 1 / 255
        assert finding.evaluations == 0 and finding.explained > 0.99
    after = model.module.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    frozen = {name: value for name, value in view.gradient.items() if "vis" not in name}
    assert "the tower is frozen" in obstacle(model, frozen, 1) and "average over 2 pages" in obstacle(
        model, view.gradient, 2
    )
    with pytest.raises(AttackError, match="frozen"):
        ATTACKS.load("closed-form").run(
            GradientView(model, frozen), Knowledge(template, hidden, [example]), budget=1, generator=torch.Generator()
        )


@pytest.mark.parametrize(
    ("family", "said"),
    [("qwen2_vl", "no table of positions"), ("idefics3", "share one table"), ("llava", "256 patches of 48 numbers")],
)
def test_what_is_not_told_apart_is_said_beforehand(family: str, said: str, tmp_path: Path) -> None:
    make_tiny(family, tmp_path / family, seed=0)
    model = load_model(str(tmp_path / family))
    assert said in obstacle(model, [name for name, _ in model.module.named_parameters()], 1)
