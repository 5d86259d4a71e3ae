"""PSNR and SSIM against their definitions, written out window by window, and what must hold for any picture."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from h3runtime.media.similarity import psnr, ssim

Picture = NDArray[np.uint8]


def noise(seed: int, height: int, width: int) -> Picture:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def window_by_window(a: Picture, b: Picture) -> float:
    """The definition in plain loops, with a two-dimensional window and two-pass variances."""
    x, y = (p[..., 0] * 0.2126 + p[..., 1] * 0.7152 + p[..., 2] * 0.0722 for p in (a, b))
    weights = np.array([[math.exp(-(i * i + j * j) / (2 * 1.5**2)) for j in range(-5, 6)] for i in range(-5, 6)])
    weights /= weights.sum()
    found = []
    for top in range(len(x) - 10):
        for left in range(x.shape[1] - 10):
            u, v = x[top : top + 11, left : left + 11], y[top : top + 11, left : left + 11]
            mean_u, mean_v = (weights * u).sum(), (weights * v).sum()
            var_u, var_v = (weights * (u - mean_u) ** 2).sum(), (weights * (v - mean_v) ** 2).sum()
            covariance = (weights * (u - mean_u) * (v - mean_v)).sum()
            light = (2 * mean_u * mean_v + 6.5025) / (mean_u**2 + mean_v**2 + 6.5025)
            found.append(light * (2 * covariance + 58.5225) / (var_u + var_v + 58.5225))
    return float(np.mean(found))


@pytest.mark.parametrize(("height", "width"), [(11, 11), (11, 30), (25, 13)])
def test_ssim_is_the_mean_over_windows_inside(height: int, width: int) -> None:
    a, b = noise(1, height, width), noise(2, height, width)
    near = np.clip(a.astype(int) + b // 8, 0, 255).astype(np.uint8)
    for other in (b, near):
        assert ssim(a, other) == pytest.approx(window_by_window(a, other), abs=1e-12)


def test_ssim_of_flat_pictures_is_about_light_alone() -> None:
    a, b = np.full((16, 16, 3), 100, np.uint8), np.full((16, 16, 3), 50, np.uint8)
    assert ssim(a, b) == pytest.approx((2 * 100 * 50 + 6.5025) / (100**2 + 50**2 + 6.5025))


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(11, 24), st.integers(11, 24))
def test_ssim_is_symmetric_and_one_for_equal_pictures(seed: int, height: int, width: int) -> None:
    a, b = noise(seed, height, width), noise(seed + 1, height, width)
    assert ssim(a, a) == 1
    assert ssim(a, b) == ssim(b, a) < 1
    assert ssim(a.transpose(1, 0, 2), b.transpose(1, 0, 2)) == pytest.approx(ssim(a, b))


def test_more_noise_is_less_alike() -> None:
    rng = np.random.default_rng(0)
    clean = np.repeat(np.linspace(60, 190, 64)[None, :, None], 48, axis=0).repeat(3, axis=2)
    errors = rng.standard_normal(clean.shape)
    noisy = [np.clip(clean + size * errors, 0, 255).astype(np.uint8) for size in (0, 1, 3, 9, 27)]
    alike = [ssim(noisy[0], picture) for picture in noisy]
    assert alike == sorted(alike, reverse=True) and len(set(alike)) == 5
    levels = [psnr(np.square(noisy[0] - picture.astype(float)).mean()) for picture in noisy[1:]]
    assert levels == sorted(levels, reverse=True)


@pytest.mark.parametrize(("mean_square", "expected"), [(1, 48.1308036), (255**2, 0), (0.01, 68.1308036)])
def test_psnr_in_levels_of_eight_bits(mean_square: float, expected: float) -> None:
    assert psnr(mean_square) == pytest.approx(expected)


def test_no_error_has_no_finite_psnr() -> None:
    assert psnr(0.0) is None
