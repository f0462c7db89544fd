"""Small company marks, drawn from shapes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from docleak.documents.fonts import blend

#: Samples per pixel and axis when a shape's edge is antialiased.
FINE = 4


def logo_ink(shape: str, side: int) -> NDArray[np.uint8]:
    """Ink of a logo in a square of ``side`` pixels."""
    axis = (np.arange(side * FINE) + 0.5) / (side * FINE) * 2 - 1
    x, y = np.meshgrid(axis, axis)
    radius = np.hypot(x, y)
    inside = {
        "disc": radius < 0.95,
        "ring": (radius < 0.95) & (radius > 0.5),
        "square": (np.abs(x) < 0.85) & (np.abs(y) < 0.85) & ~((np.abs(x) < 0.3) & (np.abs(y) < 0.3)),
        "diamond": np.abs(x) + np.abs(y) < 0.95,
        "bars": (np.floor((x + 1) * 2.5) % 2 == 0) & (y > -0.8 + 0.5 * np.abs(np.floor((x + 1) * 1.25) - 1)),
        "triangle": (y < 0.8) & (np.abs(x) < (y + 0.9) / 1.8),
        "cross": (np.abs(x) < 0.3) | (np.abs(y) < 0.3),
    }[shape]
    coverage = inside.reshape(side, FINE, side, FINE).mean(axis=(1, 3))
    ink: NDArray[np.uint8] = np.round(coverage * 255).astype(np.uint8)
    return ink


def draw_logo(image: NDArray[np.uint8], shape: str, x: int, y: int, side: int, colour: tuple[int, int, int]) -> None:
    """Put a logo of ``side`` pixels on the page, its top left corner at (x, y)."""
    blend(image, logo_ink(shape, side), x, y, colour)
