"""How far a reconstructed picture is from the true one: MSE, PSNR, FFT2D distance, SSIM.

Pictures are (H, W) or (H, W, C), uint8 or floating, in 0-255 units; everything is computed in float64, so 8-bit
arithmetic never wraps (an MSE of 60-105 beside a PSNR of 24 dB, as in GI-DQA table 1, is what wrapping looks like).
Most of a document is blank paper that the template already gives away, so each metric can be restricted to the
private region: MSE, PSNR and SSIM to the pixels of a mask, the FFT2D distance to the boxes of the fields.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skimage.metrics import structural_similarity

from docleak.documents.page import Box
from docleak.errors import DocumentError

#: PSNR of identical pictures, instead of an infinity that JSON cannot hold. One grey level off in one pixel of a
#: 1000 x 1000 page would be 108 dB, so a PSNR above the cap is reported as the cap too.
PSNR_CAP_DB = 100.0
#: Pixels on each side that SSIM's Gaussian window reaches (sigma 1.5, cut at 3.5 sigma: 11 x 11).
SSIM_REACH = 5


def mse(truth: NDArray[Any], other: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> float:
    """Mean squared error in 0-255 units squared, over all pixels and channels, or over those where ``mask`` is True.

    ``mask`` is (H, W) bool. Raises DocumentError if the shapes differ or the mask is empty.
    """
    _check(truth, other, mask)
    a, b = (truth, other) if mask is None else (truth[mask], other[mask])
    return float(np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))


def psnr(truth: NDArray[Any], other: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> float:
    """Peak signal-to-noise ratio in dB, peak 255, from the true MSE (see ``mse``); at most PSNR_CAP_DB."""
    return psnr_from_mse(mse(truth, other, mask))


def psnr_from_mse(error: float) -> float:
    """10 log10(255^2 / error) in dB; PSNR_CAP_DB for an error of 0, and never more than it."""
    return PSNR_CAP_DB if error == 0 else min(PSNR_CAP_DB, 10 * math.log10(255.0**2 / error))


def fft2d_distance(truth: NDArray[Any], other: NDArray[Any], boxes: Sequence[Box] | None = None) -> float:
    """1 - cosine similarity of the 2-D Fourier magnitudes: 0 is the same spectrum, 1 the farthest; lower is better.

    The metric called FFT_2D by GradViT (Hatamizadeh et al., 2022) and GI-DQA (section 4.1), neither of which gives
    a formula: "cosine similarity in the Fourier space", printed with an arrow down, hence 1 minus it. Magnitudes,
    because by Parseval the inner product of the complex spectra is only the inner product of the pixels; magnitudes
    do not move when the content is shifted cyclically, which MSE cannot see past. The mean is not removed, so
    differences are small numbers: uniform noise against white paper gives 0.13, where GI-DQA's table 1 has
    0.11-0.12 for its random row. Computed per channel and averaged over channels, and with ``boxes`` over each box
    (rounded outwards to pixels) and averaged over boxes. Two black pictures are at 0, black and anything else at 1.
    Raises DocumentError if the shapes differ, or there are no boxes in ``boxes``.
    """
    _check(truth, other, None)
    if boxes is None:
        return _fft2d(truth, other)
    if not boxes:
        raise DocumentError("the FFT2D distance was asked for over no boxes; expected at least one field box")
    places = [box_slices(box, truth.shape[0], truth.shape[1]) for box in boxes]
    return float(np.mean([_fft2d(truth[place], other[place]) for place in places]))


def ssim(truth: NDArray[Any], other: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> float:
    """Structural similarity with the 11 x 11 Gaussian window of Wang et al. (2004): 1 is identical, higher is better.

    Per channel and averaged; with ``mask`` (H, W) the mean of the SSIM map where the mask is True (the window
    around such a pixel may look 5 pixels past the mask). Without one, of the map less its border of 5 pixels, as
    Wang does. Raises DocumentError if the shapes differ, the mask is empty or the picture is under 11 pixels.
    """
    _check(truth, other, mask)
    window = 2 * SSIM_REACH + 1
    if min(truth.shape[:2]) < window:
        raise DocumentError(f"SSIM needs at least {window} x {window} pixels; the picture has {truth.shape[:2]}")
    near = (slice(None), slice(None)) if mask is None else _surroundings(mask)
    mean, similarity = structural_similarity(  # type: ignore[no-untyped-call]
        truth[near].astype(np.float64),
        other[near].astype(np.float64),
        data_range=255.0,
        channel_axis=2 if truth.ndim == 3 else None,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        full=True,
    )
    return float(mean if mask is None else np.mean(similarity[mask[near]]))


def box_slices(box: Box, height: int, width: int, margin: int = 0) -> tuple[slice, slice]:
    """Rows and columns of a box rounded outwards to pixels, grown by ``margin`` pixels and clipped to the page."""
    x0, y0, x1, y1 = box
    return (
        slice(max(0, math.floor(y0) - margin), min(height, math.ceil(y1) + margin)),
        slice(max(0, math.floor(x0) - margin), min(width, math.ceil(x1) + margin)),
    )


def _check(truth: NDArray[Any], other: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
    if truth.shape != other.shape or truth.ndim not in (2, 3) or truth.size == 0:
        raise DocumentError(
            f"pictures have shapes {truth.shape} and {other.shape}; expected the same (H, W) or (H, W, C), not empty"
        )
    if mask is None:
        return
    if mask.dtype != np.bool_ or mask.shape != truth.shape[:2]:
        raise DocumentError(f"mask is {mask.dtype} of shape {mask.shape}; expected bool of {truth.shape[:2]}")
    if not mask.any():
        raise DocumentError(
            "the mask is empty; expected some pixels to compare. A page without private pixels has no score"
        )


def _fft2d(truth: NDArray[Any], other: NDArray[Any]) -> float:
    a, b = (np.abs(np.fft.fft2(picture.astype(np.float64), axes=(0, 1))) for picture in (truth, other))
    dot, norms = np.sum(a * b, axis=(0, 1)), np.sqrt(np.sum(a * a, axis=(0, 1)) * np.sum(b * b, axis=(0, 1)))
    both_black = (np.sum(a, axis=(0, 1)) == 0) & (np.sum(b, axis=(0, 1)) == 0)
    cosine = np.where(both_black, 1.0, dot / np.where(norms == 0, 1.0, norms))
    return float(np.mean(np.clip(1 - cosine, 0.0, 1.0)))  # rounding may leave -1e-16


def _surroundings(mask: NDArray[np.bool_]) -> tuple[slice, slice]:
    """The smallest part of the page that gives the same SSIM under the mask as the whole page, at least 11 x 11."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return _reach(int(rows[0]), int(rows[-1]), mask.shape[0]), _reach(int(columns[0]), int(columns[-1]), mask.shape[1])


def _reach(first: int, last: int, size: int) -> slice:
    start, stop = max(0, first - SSIM_REACH), min(size, last + 1 + SSIM_REACH)
    window = 2 * SSIM_REACH + 1
    return slice(min(start, size - window), max(stop, min(window, size)))
