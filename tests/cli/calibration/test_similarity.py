"""SSIM on a device against the definition on the host."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from h3runtime.cli.calibration.similarity import frame_ssims, shifted_ssims
from h3runtime.media.similarity import ssim

Frames = NDArray[np.uint8]


def scene(seed: int, shape: tuple[int, int]) -> Frames:
    """Flat parts, edges and texture."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, shape[0] // 8 + 1, shape[1] // 8 + 1, 3))
    frames = coarse.repeat(8, 1).repeat(8, 2)[:, : shape[0], : shape[1]].copy()
    frames[:, : shape[0] // 2] += rng.integers(-9, 10, frames[:, : shape[0] // 2].shape)
    # Five frames: not a whole number of what is measured at once.
    return frames.clip(0, 255).astype(np.uint8)


def changed(frames: Frames, by: float) -> Frames:
    noise = by * np.random.default_rng(9).standard_normal(frames.shape)
    return (frames + noise).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize("shape", [(11, 11), (64, 96), (97, 131)])
@pytest.mark.parametrize("by", [0.0, 2.0, 20.0, 120.0])
def test_it_is_the_definition_for_each_frame(shape: tuple[int, int], by: float) -> None:
    exact = scene(1, shape)
    made = changed(exact, by)
    found = shifted_ssims(torch.from_numpy(exact), torch.from_numpy(made))
    assert found.dtype == torch.float64
    defined = [ssim(*pair) for pair in zip(exact, made, strict=True)]
    assert found.tolist() == pytest.approx(defined, abs=1e-9)
    assert frame_ssims(torch.from_numpy(exact), torch.from_numpy(made)).tolist() == defined


def test_flat_pictures_of_the_extremes_are_no_worse() -> None:
    """Where variances are nothing, what is left of large squares is rounding alone."""
    black, white = np.zeros((1, 32, 32, 3), np.uint8), np.full((1, 32, 32, 3), 255, np.uint8)
    for pair in ((black, black), (white, white), (black, white), (white, changed(white, 1.0))):
        found = shifted_ssims(torch.from_numpy(pair[0]), torch.from_numpy(pair[1]))
        assert float(found[0]) == pytest.approx(ssim(pair[0][0], pair[1][0]), abs=1e-9)
