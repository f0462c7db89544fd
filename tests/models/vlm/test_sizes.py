"""Pages as large as people use them, through processors alone: no network of that size is built."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from torch import Tensor

from docleak.documents.page import Image
from docleak.models.tiny import character_tokenizer
from docleak.models.vlm.picture import Picture, settled_canvas
from docleak.models.vlm.processor import Processor, assembled, still
from docleak.models.vlm.tiny import FAMILIES

#: Family -> settings of its image processor ({}: the class's own), and (width, height) and inputs of an A4 page.
LARGE: dict[str, tuple[dict[str, Any], tuple[int, int], tuple[int, ...]]] = {
    "idefics3": ({}, (1092, 1456), (1, 13, 3, 364, 364)),
    "smolvlm": (
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}, (1536, 2048), (1, 13, 3, 512, 512)
    ),
    "paligemma": ({"size": {"height": 896, "width": 896}, "image_seq_length": 4096}, (896, 896), (1, 3, 896, 896)),
    "qwen2_vl": ({}, (840, 1176), (5040, 1176)),
    "qwen2_5_vl": ({}, (840, 1176), (5040, 1176)),
    "qwen3_vl": ({"patch_size": 16}, (832, 1184), (3848, 1536)),
    "internvl": ({"size": {"height": 448, "width": 448}, "max_patches": 12}, (896, 1344), (7, 3, 448, 448)),
    "llava": ({"size": {"height": 384, "width": 384}}, (384, 384), (1, 3, 384, 384)),
    "gemma3": ({"size": {"height": 896, "width": 896}}, (896, 896), (1, 3, 896, 896)),
    "florence2": (
        {"size": {"height": 768, "width": 768}, "do_center_crop": False, "image_seq_length": 577}, (768, 768),
        (1, 3, 768, 768),
    ),
    "got_ocr2": ({"size": {"height": 1024, "width": 1024}}, (1024, 1024), (1, 3, 1024, 1024)),
    "granite_docling": ({"size": {"height": 512, "width": 512}}, (1024, 1536), (1, 7, 3, 512, 512)),
    "lighton_ocr": ({"size": {"longest_edge": 1540}, "patch_size": 28}, (1092, 1540), (1, 3, 1540, 1092)),
    "qwen3_5": ({}, (840, 1176), (5040, 1176)),
    "glm_ocr": ({}, (1232, 1764), (11088, 1176)),
    "llava_next": (
        {"size": {"height": 336, "width": 336}, "crop_size": {"height": 336, "width": 336}, "do_center_crop": False},
        (476, 672), (1, 5, 3, 336, 336),
    ),
    "llava_onevision": ({}, (1358, 1920), (1, 21, 3, 384, 384)),
}  # fmt: skip


def test_every_family_is_tried_at_a_large_size() -> None:
    assert set(LARGE) == set(FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("family", LARGE)
def test_large_pages_are_traced_to_1e5(family: str) -> None:
    """``Picture.learned`` compares itself with the processor, and raises where it is further off than that."""
    settings, expected, shape = LARGE[family]
    tiny = FAMILIES[family]()
    named = dict(tiny.tokens)
    if family in ("idefics3", "smolvlm"):
        named |= {f"row_{r}_col_{c}": f"<row_{r}_col_{c}>" for r in range(1, 7) for c in range(1, 7)}
    tokenizer = character_tokenizer(tags=(), eos=named.pop("eos_token", "</s>"), named=named)
    images = getattr(transformers, tiny.images[0])(**settings)
    values = dict(tiny.processor)
    if tiny.chat is not None:
        values["chat_template"] = tiny.chat[0].replace("IMAGE", tiny.chat[1])
    processor = Processor(assembled(still(family), images, tokenizer, values), family)

    def read(image: Image) -> dict[str, Tensor]:
        made = processor.read(image, "?")
        ids = made["input_ids"].shape
        return {name: value for name, value in made.items() if value.is_floating_point() or value.shape != ids}

    size = settled_canvas(read, images, None, family=family)
    picture = Picture.learned(read, size, resample=int(images.resample), family=family)
    assert (size, picture.shape) == (expected, shape)
