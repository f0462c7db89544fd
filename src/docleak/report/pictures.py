"""Pictures in pages: PNGs as data URIs, shrunk or enlarged, with the words that tell who cannot see them; and charts
that commands leave beside their numbers."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import PIL.Image

from docleak.documents.page import Image
from docleak.files import png_bytes
from docleak.metrics.estimate import Estimate

#: Larger pages are shrunk to this many pixels on their longer side.
PAGE_SIDE = 1000
#: So many PNGs are kept, by what they show.
KEPT = 256
BLUE, ORANGE, GREY = "#1f5fa8", "#c4570a", "#888888"
#: (round, value).
Points = Sequence[tuple[int, float]]
_PNGS: dict[tuple[tuple[int, ...], bytes], bytes] = {}


def picture(image: Image, alt: str, scale: int = 1) -> dict[str, Any]:
    """A picture, uint8 RGB (H, W, 3), as templates show it: uri, alt, and the size at which it is shown."""
    height, width = image.shape[:2]
    return {"uri": data_uri(png_of(image)), "alt": alt, "width": width * scale, "height": height * scale}


def png_of(image: Image) -> bytes:
    """The picture as a PNG file. Of the last KEPT pictures it is kept: a run is read for its table, its verdict and its
    page, and making PNGs is most of a reading."""
    pixels = np.ascontiguousarray(image)
    name = (pixels.shape, hashlib.sha256(pixels.data).digest())
    if (png := _PNGS.pop(name, None)) is None:
        png = png_bytes(pixels)
    _PNGS[name] = png  # last, as the one that was asked for last
    if len(_PNGS) > KEPT:
        del _PNGS[next(iter(_PNGS))]
    return png


def decoded(png: bytes) -> Image:
    """A PNG as uint8 RGB (H, W, 3)."""
    with PIL.Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"), dtype=np.uint8)


def data_uri(png: bytes) -> str:
    """A PNG as a page holds it."""
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def shrunk(image: Image, side: int = PAGE_SIDE) -> Image:
    """The picture with at most ``side`` pixels on its longer side."""
    longest = max(image.shape[:2])
    if longest <= side:
        return image
    size = (max(1, round(image.shape[1] * side / longest)), max(1, round(image.shape[0] * side / longest)))
    return np.asarray(PIL.Image.fromarray(image).resize(size, PIL.Image.Resampling.LANCZOS))


def enlarged(image: Image, width: int) -> Image:
    """The picture enlarged by whole pixels until it is about ``width`` wide."""
    times = max(1, width // image.shape[1])
    return np.repeat(np.repeat(image, times, axis=0), times, axis=1)


def new_figure(
    width: float, height: float, *, dpi: int = 110, layout: Literal["constrained"] | None = "constrained"
) -> Any:
    """An empty matplotlib figure of that size in inches, without the state that pyplot keeps."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=dpi, layout=layout)


def mark(
    axis: Any, place: int, ours: Estimate | None, printed: float | None, *, scale: float = 1.0,
    sizes: tuple[int, int] = (4, 5),
) -> None:  # fmt: skip
    """On the line ``place`` our number as a dot, its interval as a bar, and the paper's as a cross, times ``scale``;
    ``sizes`` are those of dot and cross."""
    if ours is not None and ours.value is not None:
        if ours.low is not None and ours.high is not None:
            axis.plot([scale * ours.low, scale * ours.high], [place, place], color=BLUE, linewidth=1.5)
        axis.plot(scale * ours.value, place, "o", color=BLUE, markersize=sizes[0], label="docleak, 95 % interval")
    if printed is not None:
        axis.plot(scale * printed, place, "x", color=ORANGE, markersize=sizes[1], label="the paper")


def png_figure(figure: Any) -> bytes:
    """A matplotlib figure as a PNG that is the same every time."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def svg_figure(figure: Any, rc: Any = None) -> str:
    """A matplotlib figure as an SVG element that is the same every time; its text stays text."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(figure)
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "docleak", **(rc or {})}):  # ids would be drawn anew in every report
        figure.savefig(text, format="svg", metadata={"Date": None})
    drawn = text.getvalue()[text.getvalue().index("<svg") :]
    name = hashlib.sha256(drawn.encode()).hexdigest()[:8]  # of its own: a page holds several figures
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{name}-", drawn)


def learning_curves(silos: Iterable[Points], mean: Points, kept: Mapping[int, Estimate], *, noised: bool) -> bytes:
    """A PNG of training loss by silo and in all, and of ANLS on what silos keep with its interval, over rounds.

    Without ``mean`` the losses are private; ``noised`` ANLS is named so. What is not known is left out of ``kept``.
    """
    figure = new_figure(9 if kept else 4.8, 3.6, dpi=120)
    axes = figure.subplots(1, 2 if kept else 1, squeeze=False)[0]
    for points in silos:
        axes[0].plot(*zip(*points, strict=True), color=GREY, linewidth=0.8, alpha=0.7)
    if mean:
        axes[0].plot(*zip(*mean, strict=True), color=BLUE, marker="o")
    else:
        axes[0].text(0.5, 0.5, "private: silos do not say it", ha="center", transform=axes[0].transAxes)
    axes[0].set(xlabel="round", ylabel="training loss", title="Training loss (grey: each silo)")
    if kept:
        known = {number: anls for number, anls in kept.items() if anls.value is not None}
        values = [anls.value for anls in known.values()]
        low = [anls.value if anls.low is None else anls.low for anls in known.values()]
        high = [anls.value if anls.high is None else anls.high for anls in known.values()]
        axes[1].fill_between(list(known), low, high, color=ORANGE, alpha=0.2, linewidth=0)
        axes[1].plot(list(known), values, color=ORANGE, marker="o")
        title = "ANLS on documents the silos keep" + " (noised)" * noised
        axes[1].set(xlabel="round", ylabel="ANLS", title=title, ylim=(0, 1))
    for axis in axes:
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return png_figure(figure)


def budget_curves(curves: Mapping[str, Points], target: tuple[int, float], label: str, statement: str) -> bytes:
    """A PNG of epsilon (``label``) over rounds, ``target`` as a point and its ``statement`` below."""
    figure = new_figure(7.2, 5.0, layout=None)
    axes = figure.add_axes((0.1, 0.29, 0.86, 0.63))
    for style, (name, points) in zip(("-", "--", ":"), curves.items(), strict=False):
        axes.plot(*zip(*points, strict=True), style, label=name)
    rounds, epsilon = target
    axes.plot([rounds], [epsilon], "o", color="black", label=f"{rounds} rounds: {epsilon:.3g}")
    axes.set_xlabel("rounds")
    axes.set_ylabel(label)
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", integer=True)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.text(0.02, 0.02, textwrap.fill(statement, 118), fontsize=7.5, va="bottom")
    return png_figure(figure)
