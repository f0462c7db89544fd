"""Picture metrics against closed forms, scikit-image and slow oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from docleak.errors import DocumentError
from docleak.metrics import PSNR_CAP_DB, fft2d_distance, mse, psnr, ssim
from docleak.metrics.image import box_slices, psnr_from_mse

PICTURES = st.tuples(st.integers(1, 6), st.integers(1, 6)).flatmap(
    lambda hw: st.tuples(arrays(np.uint8, (*hw, 3)), arrays(np.uint8, (*hw, 3)))
)


def grey(value: int, shape: tuple[int, ...] = (12, 12, 3)) -> np.ndarray:
    return np.full(shape, value, dtype=np.uint8)


def test_black_against_white_is_the_peak_squared_and_does_not_wrap() -> None:
    assert mse(grey(0), grey(255)) == mse(grey(255), grey(0)) == 65025.0
    assert psnr(grey(0), grey(255)) == 0.0


def test_a_constant_offset_has_the_closed_form() -> None:
    assert mse(grey(100), grey(110)) == 100.0
    assert psnr(grey(100), grey(110)) == pytest.approx(20 * math.log10(25.5))


def test_identical_pictures_are_capped_and_nothing_exceeds_the_cap() -> None:
    assert psnr(grey(7), grey(7)) == PSNR_CAP_DB == psnr_from_mse(1e-30)


@settings(max_examples=60, deadline=None)
@given(PICTURES)
def test_mse_and_psnr_agree_with_a_loop_and_with_scikit_image(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    slow = sum((int(x) - int(y)) ** 2 for x, y in zip(a.ravel(), b.ravel(), strict=True)) / a.size
    assert mse(a, b) == pytest.approx(slow)
    if slow:
        assert psnr(a, b) == pytest.approx(peak_signal_noise_ratio(a, b, data_range=255))


@settings(max_examples=40, deadline=None)
@given(PICTURES, st.data())
def test_a_mask_means_only_its_pixels(pair: tuple[np.ndarray, np.ndarray], data: st.DataObject) -> None:
    a, b = pair
    mask = data.draw(arrays(np.bool_, a.shape[:2]).filter(np.any))
    chosen = [(a[y, x].astype(float) - b[y, x]) ** 2 for y, x in zip(*np.nonzero(mask), strict=True)]
    assert mse(a, b, mask) == pytest.approx(np.mean(chosen))
    elsewhere = np.where(mask[:, :, None], b, 255 - b).astype(np.uint8)
    assert mse(a, elsewhere, mask) == mse(a, b, mask)


def test_a_full_mask_is_no_mask() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 256, (2, 20, 30, 3), dtype=np.uint8)
    everywhere = np.ones((20, 30), dtype=bool)
    assert mse(a, b, everywhere) == pytest.approx(mse(a, b))
    assert psnr(a, b, everywhere) == pytest.approx(psnr(a, b))


@pytest.mark.parametrize("metric", [mse, psnr, fft2d_distance, ssim])
def test_grey_pictures_are_like_three_equal_channels(metric: object) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 256, (2, 16, 20), dtype=np.uint8)
    three = metric(np.repeat(a[:, :, None], 3, 2), np.repeat(b[:, :, None], 3, 2))  # type: ignore[operator]
    assert metric(a, b) == pytest.approx(three)  # type: ignore[operator]


def slow_spectrum(picture: np.ndarray) -> np.ndarray:
    """Fourier magnitudes from the definition."""
    h, w = picture.shape
    rows = np.exp(-2j * np.pi * np.outer(np.arange(h), np.arange(h)) / h)
    columns = np.exp(-2j * np.pi * np.outer(np.arange(w), np.arange(w)) / w)
    return np.abs(rows @ picture.astype(float) @ columns)


@settings(max_examples=30, deadline=None)
@given(PICTURES)
def test_fft2d_agrees_with_the_definition_and_lies_in_0_1(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    distances = []
    for channel in range(3):
        x, y = slow_spectrum(a[..., channel]), slow_spectrum(b[..., channel])
        norms = np.linalg.norm(x) * np.linalg.norm(y)
        same = not a[..., channel].any() and not b[..., channel].any()
        distances.append(0.0 if same else 1 - (x * y).sum() / norms if norms else 1.0)
    assert fft2d_distance(a, b) == pytest.approx(np.mean(distances), abs=1e-9)
    assert 0 <= fft2d_distance(a, b) <= 1


def test_fft2d_closed_forms() -> None:
    rng = np.random.default_rng(2)
    a = rng.integers(1, 256, (16, 24, 3), dtype=np.uint8)
    assert fft2d_distance(a, a) == pytest.approx(0, abs=1e-12)
    assert fft2d_distance(a, a // 2 * 0) == 1.0
    assert fft2d_distance(grey(0), grey(0)) == 0.0
    assert fft2d_distance(a, np.roll(a, (3, 5), (0, 1))) == pytest.approx(0, abs=1e-12), "shifts leave magnitudes"
    assert fft2d_distance(grey(50), grey(200)) == pytest.approx(0, abs=1e-12), "scale does not matter"


def test_fft2d_of_uniform_noise_against_paper_is_near_the_random_row_of_the_paper() -> None:
    noise = np.random.default_rng(3).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    assert fft2d_distance(grey(255, noise.shape), noise) == pytest.approx(1 - math.sqrt(3) / 2, abs=0.005)


def test_fft2d_over_boxes_is_the_mean_of_the_boxes() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.integers(0, 256, (2, 30, 40, 3), dtype=np.uint8)
    expected = (fft2d_distance(a[2:9, 3:14], b[2:9, 3:14]) + fft2d_distance(a[20:30, 0:8], b[20:30, 0:8])) / 2
    assert fft2d_distance(a, b, [(3.4, 2.5, 13.1, 8.2), (0, 20, 8, 30)]) == pytest.approx(expected)


def test_boxes_round_outwards_grow_and_stay_on_the_page() -> None:
    assert box_slices((1.5, 2.5, 3.5, 4.5), 10, 10) == (slice(2, 5), slice(1, 4))
    assert box_slices((1.5, 2.5, 3.5, 9.5), 10, 4, margin=3) == (slice(0, 10), slice(0, 4))


@settings(max_examples=40, deadline=None)
@given(st.integers(11, 40), st.integers(11, 40), st.integers(0, 10**6), st.data())
def test_ssim_is_scikit_images_map_under_the_mask(h: int, w: int, seed: int, data: st.DataObject) -> None:
    a, b = np.random.default_rng(seed).integers(0, 256, (2, h, w, 3), dtype=np.uint8)
    y, x = data.draw(st.integers(0, h - 1)), data.draw(st.integers(0, w - 1))
    mask = np.zeros((h, w), dtype=bool)
    mask[y : y + data.draw(st.integers(1, 9)), x : x + data.draw(st.integers(1, 9))] = True
    mean, similarity = structural_similarity(
        a, b, data_range=255, channel_axis=2, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, full=True
    )
    assert ssim(a, b) == pytest.approx(mean)
    assert ssim(a, b, mask) == pytest.approx(similarity[mask].mean())


def test_ssim_closed_forms() -> None:
    c1 = (0.01 * 255) ** 2
    assert ssim(grey(90), grey(90)) == pytest.approx(1)
    assert ssim(grey(0), grey(255)) == pytest.approx(c1 / (255**2 + c1))


@pytest.mark.parametrize(
    "call",
    [
        lambda: mse(grey(0), grey(0, (12, 13, 3))),
        lambda: mse(grey(0), grey(0), np.zeros((12, 12), dtype=bool)),
        lambda: mse(grey(0), grey(0), np.ones((12, 12))),  # type: ignore[arg-type]
        lambda: mse(grey(0), grey(0), np.ones((12, 3), dtype=bool)),
        lambda: mse(grey(0, (5,)), grey(0, (5,))),
        lambda: mse(grey(0, (0, 4)), grey(0, (0, 4))),
        lambda: ssim(grey(0, (10, 30, 3)), grey(0, (10, 30, 3))),
        lambda: fft2d_distance(grey(0), grey(0), []),
    ],
)
def test_what_cannot_be_compared_is_refused(call: object) -> None:
    with pytest.raises(DocumentError):
        call()  # type: ignore[operator]
