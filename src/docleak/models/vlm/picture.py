"""What a processor makes of a page's pixels, as a differentiable function of them.

Processors cut pages into tiles and patches, scale them down to an overview, and normalise. On a page of the size that
they bring pages to, each number that they return is one pixel of the page, or one of the overview, times a factor plus
an offset. Which one it is, is read off the processor itself: it is shown pages whose pixels spell out their place.
Nothing here depends on the model's family, and what was read is compared with the processor on a page of noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from docleak.documents.page import Image
from docleak.errors import ModelError
from docleak.models.base import pixels_of
from docleak.models.vlm.overview import Overview

#: What a processor returns for a page (H, W, 3) uint8, by name.
Read = Callable[[Image], Mapping[str, Tensor]]
#: Of pixels on the network's scale, between what is computed here and by the processor.
TOLERANCE = 1e-5
#: (width, height) of the page that a processor without a size of its own is shown.
A4_AT_150_DPI = (1240, 1754)
#: How often a processor may resize what it made until it leaves it as it is.
CANVAS_STEPS = 5


@dataclass(frozen=True)
class Picture:
    """``place`` (n,) is where each of the n numbers of input ``name`` (of ``shape`` for one page) comes from.

    Places count through the page's pixels (3, H, W) and then the overview's; ``factor`` and ``offset`` (n,) are of
    pixels in [0, 1]. ``constants`` are the processor's other inputs for one page. ``size`` is (width, height).
    """

    name: str
    shape: tuple[int, ...]
    size: tuple[int, int]
    place: Tensor
    factor: Tensor
    offset: Tensor
    constants: Mapping[str, Tensor]
    overview: Overview | None = None

    def __call__(self, pixels: Tensor) -> dict[str, Tensor]:
        """The network's inputs for pixels (P, 3, H, W) in [0, 1], pages one after another."""
        if tuple(pixels.shape[:0:-1]) != (*self.size, 3):
            raise ModelError(
                f"pixels are of shape {tuple(pixels.shape)}; expected (P, 3, {self.size[1]}, {self.size[0]}), the size "
                "that the model was loaded for."
            )
        values = pixels.flatten(1)
        if self.overview is not None:
            values = torch.cat([values, self.overview(pixels).flatten(1)], 1)
        made = values[:, self.place.to(values.device)] * self.factor.to(values) + self.offset.to(values)
        count = len(pixels)
        inputs = {name: torch.cat([value] * count).to(values.device) for name, value in self.constants.items()}
        return {**inputs, self.name: made.reshape(count * self.shape[0], *self.shape[1:])}

    @property
    def channels(self) -> tuple[Tensor, Tensor]:
        """Factor and offset (3,) of each colour, of pixels in [0, 1]."""
        width, height = self.size
        on_page = self.place < 3 * width * height
        first = [
            int(((self.place // (width * height) == c) & on_page & (self.factor != 0)).nonzero()[0]) for c in range(3)
        ]
        return self.factor[first], self.offset[first]

    @classmethod
    def learned(cls, read: Read, size: tuple[int, int], *, resample: int, family: str) -> Picture:
        """The picture of ``read`` on pages of ``size`` (width, height), compared with it on a page of noise.

        ModelError where it is none: a processor that mixes colours, looks at a page's contrast, or resizes pages of
        this size, except for an overview (``resample``: its filter in Pillow).
        """
        width, height = size
        area = width * height
        black = read(_page(np.zeros((area, 3)), size))
        name = _pixels_in(black, family)
        shape = tuple(black[name].shape)
        offset = black[name].float().flatten()
        factor = _shown(read, name, np.full((area, 3), 255), size) - offset
        unseen = factor == 0
        safe = factor.masked_fill(unseen, 1)

        def levels(shown: Any) -> Tensor:
            return (_shown(read, name, shown, size) - offset).div_(safe).masked_fill_(unseen, 0)

        colour = levels(np.broadcast_to([0, 100, 200], (area, 3))).mul_(2.55).round_().clamp_(0, 2).long()
        place = torch.zeros(len(offset), dtype=torch.long)
        for digit in range(max(1, math.ceil(math.log(area, 256)))):
            spelt = np.arange(area) // 256**digit % 256
            place.add_(levels(np.repeat(spelt[:, None], 3, 1)).mul_(255).round_().long(), alpha=256**digit)
        place.clamp_(0, area - 1).add_(colour, alpha=area).masked_fill_(unseen, 0)
        constants = {key: value for key, value in black.items() if key != name}
        picture = cls(name, shape, size, place, factor, offset, constants)
        noise = np.random.default_rng(0).integers(0, 256, (area, 3))
        return picture._settled(_page(noise, size), _shown(read, name, noise, size), resample, family)

    def _settled(self, page: Image, wanted: Tensor, resample: int, family: str) -> Picture:
        """With an overview, where frames (3, height, width) are no part of the page; ModelError if that is not all."""
        made = self(pixels_of(page)[None])[self.name].flatten()
        wrong = (made - wanted).abs() > TOLERANCE
        picture = self
        if bool(wrong.any()) and len(self.shape) >= 4 and self.shape[-3] == 3:
            _, high, wide = self.shape[-3:]
            frames = wrong.view(-1, 3 * high * wide)
            picture = replace(
                self,
                overview=Overview.of(self.size[::-1], (high, wide), resample),
                place=torch.where(
                    frames.any(1, keepdim=True),
                    3 * self.size[0] * self.size[1] + torch.arange(3 * high * wide),
                    self.place.view_as(frames),
                ).flatten(),
            )
            made = picture(pixels_of(page)[None])[self.name].flatten()
        apart = float((made - wanted).abs().max())
        if not apart <= TOLERANCE:
            width, height = self.size
            raise ModelError(
                f"what the processor of this {family} makes of pages of {width} x {height} pixels was not understood: "
                f"it differs from tiles, patches and an overview of the page by {apart:.1e} (expected {TOLERANCE:.0e} "
                "at most). It may resize such pages, or normalise each page by itself. Try another --image-size."
            )
        picture._require_whole(family)
        return picture

    def _require_whole(self, family: str) -> None:
        """ModelError where some pixels are never looked at: the processor crops such pages."""
        width, height = self.size
        count = 3 * width * height
        seen = count if self.overview is not None else len(torch.bincount(self.place[self.factor != 0]).nonzero())
        if seen < count:
            side = min(self.size)
            raise ModelError(
                f"the processor of this {family} crops pages of {width} x {height} pixels: it never looks at "
                f"{1 - seen / count:.0%} of them. Pass --image-size {side}x{side}, to which pages are scaled whole."
            )


def _page(values: Any, size: tuple[int, int]) -> Image:
    return np.ascontiguousarray(np.asarray(values, dtype=np.uint8).reshape(size[1], size[0], 3))


def _shown(read: Read, name: str, values: Any, size: tuple[int, int]) -> Tensor:
    return read(_page(values, size))[name].float().flatten()


def _pixels_in(inputs: Mapping[str, Tensor], family: str) -> str:
    """The one input of numbers that are not whole."""
    names = [name for name, value in inputs.items() if value.is_floating_point()]
    if len(names) != 1:
        raise ModelError(
            f"the processor of a {family} makes {len(names)} inputs of pixels, {names}; docleak takes one."
        )
    return names[0]


def canvas(read: Read, images: Any, size: tuple[int, int]) -> tuple[int, int]:
    """(width, height) that the image processor ``images`` brings pages of ``size`` to, before it cuts and scales them.

    It is the largest picture that it makes of them; ``size`` itself where it resizes nothing.
    """
    made: list[tuple[int, int]] = []
    resize = images.resize

    def recording(*arguments: Any, **options: Any) -> Any:
        result = resize(*arguments, **options)
        height, width = result.shape[-2:]
        made.append((width, height))
        return result

    images.resize = recording
    try:
        read(np.full((size[1], size[0], 3), 255, dtype=np.uint8))
    finally:
        del images.resize
    return max(made, key=lambda found: found[0] * found[1], default=size)


def settled_canvas(read: Read, images: Any, size: tuple[int, int] | None, *, family: str) -> tuple[int, int]:
    """The size of pages that the processor leaves as they are: ``size``, or what it makes of A4_AT_150_DPI without.

    ModelError where the processor would resize pages of ``size``.
    """
    if size is not None:
        made = canvas(read, images, size)
        if made == size:
            return size
        raise ModelError(
            f"pages of {size[0]} x {size[1]} pixels would be resized to {made[0]} x {made[1]} by this {family}'s own "
            f"processor. Pass --image-size {made[0]}x{made[1]}, or leave it out."
        )
    now = A4_AT_150_DPI
    for _ in range(CANVAS_STEPS):
        made = canvas(read, images, now)
        if made == now:
            return now
        now = made
    raise ModelError(f"the processor of this {family} settles on no size of pages. Give one with --image-size.")
