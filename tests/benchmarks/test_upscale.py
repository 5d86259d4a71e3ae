"""What the benchmark of upscaling measures: each figure moves with the fault that it is named after."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from benchmarks.upscale import Record, markdown, rows_of, second_of
from benchmarks.upscale_measures import Pictures, compare, enlarged


@pytest.fixture
def truth() -> Pictures:
    """A red square with hard edges on blue, one frame."""
    frames = np.zeros((1, 64, 64, 3), np.uint8)
    frames[..., 2] = 180
    frames[:, 20:44, 20:44] = (200, 30, 30)
    return frames


def test_the_same_pictures_have_no_fault(truth: Pictures) -> None:
    found = compare(truth, truth)
    assert (found["overshoot"], found["high_frequency"], found["chroma_edge"]) == (0.0, 1.0, 0.0)
    assert found["ssim"] == pytest.approx(1.0) and found["psnr"] == float("inf")


def test_a_soft_picture_lacks_detail_and_has_no_halo(truth: Pictures) -> None:
    soft = ndimage.gaussian_filter(truth.astype(float), (0, 2, 2, 0)).round().astype(np.uint8)
    found = compare(soft, truth)
    assert found["high_frequency"] < 0.1 and found["overshoot"] < 0.5 < found["chroma_edge"]


def test_ringing_overshoots(truth: Pictures) -> None:
    soft = ndimage.gaussian_filter(truth.astype(float), (0, 1.5, 1.5, 0))
    ringing = np.clip(truth + (truth - soft), 0, 255).round().astype(np.uint8)
    assert compare(ringing, truth)["overshoot"] > 2 and compare(ringing, truth)["high_frequency"] > 1.2


def test_colour_beside_its_edge_is_seen_where_luma_is_right(truth: Pictures) -> None:
    moved = truth.copy()
    moved[..., 0] = np.roll(moved[..., 0], 2, axis=2)
    assert compare(moved, truth)["chroma_edge"] > 5


def test_a_plain_resize_is_of_the_size_asked_for(truth: Pictures) -> None:
    assert enlarged(truth, 96, 128).shape == (1, 128, 96, 3)


def test_rows_are_means_of_clips_and_shares_of_items() -> None:
    figures = {"overshoot": 1.0, "high_frequency": 0.5, "chroma_edge": 2.0, "psnr": 30.0, "ssim": 0.9}
    records = [
        Record("made", "small", {}, {"colour": True, "pitch": None}, {"colour": True}),
        Record("made", "small", {}, {"colour": False, "pitch": True}, {"colour": True, "pitch": True}),
        Record("drawn", second_of("3:0.15").name, figures),
    ]
    small, refined = rows_of(records)
    assert (small.clips, small.items, small.judged, small.identity) == (2, 3, 2 / 3, 1.0)
    assert (refined.way, refined.judged, dict(refined.figures)) == ("refined 3:0.15", None, figures)
    assert markdown([small, refined]).count("\n") == 4
