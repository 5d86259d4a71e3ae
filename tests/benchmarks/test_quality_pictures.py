"""What is measured of frames on the device that made them is what the definitions say, on the same frames."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.quality_pictures import AT_ONCE, clip_ssim, mean_square, reduced_there, working
from h3runtime.nano.blobs import reduced
from h3runtime.nano.pictures import render
from h3runtime.nano.seeing import look
from h3runtime.nano.world import draw_scene
from h3runtime.quality import distances

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def clips(frames: int, height: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """A drawn scene, and the same with noise that grows from frame to frame: none at first."""
    scene = draw_scene(np.random.default_rng(3))
    drawn = render([scene], width, height, frames)[0].numpy()
    rng = np.random.default_rng(4)
    noise = rng.normal(0, 1, drawn.shape) * np.linspace(0, 40, frames)[:, None, None, None]
    return drawn, np.clip(drawn + noise, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("frames", "height", "width"), [(1, 11, 64), (AT_ONCE + 3, 96, 160), (5, 64, 32)])
def test_ssim_is_the_definition_s(frames: int, height: int, width: int, device: str) -> None:
    exact, made = clips(frames, height, width)
    there = torch.from_numpy(exact).to(device), torch.from_numpy(made).to(device)
    assert clip_ssim(*there) == pytest.approx(distances.clip_ssim(exact, made), abs=1e-9)
    assert clip_ssim(there[0], there[0]) == pytest.approx(1, abs=1e-12)
    square = np.square(exact.astype(np.float64) - made).mean()
    assert mean_square(*there) == pytest.approx(square, rel=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("height", "width"), [(128, 96), (192, 320), (288, 320), (320, 416)])
def test_the_judge_sees_the_same_bits(height: int, width: int, device: str) -> None:
    """By one, two and three pixels of a side, with rows left over in the last one."""
    frames = clips(4, height, width)[1]
    there = reduced_there(torch.from_numpy(frames).to(device)).cpu().numpy()
    assert there.dtype == np.float32 and np.array_equal(there, reduced(frames))
    assert np.array_equal(working(torch.from_numpy(frames).to(device)), there)
    assert np.array_equal(reduced(there), there), "once reduced they stay as they are"
    assert look(there).floor == look(frames).floor and look(there).count == look(frames).count
