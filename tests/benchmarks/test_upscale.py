"""What the benchmark of upscaling measures: each figure moves with the fault that it is named after."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from scipy import ndimage

from benchmarks.upscale import main
from benchmarks.upscale_bounds import TRAINED, Bound, bounds_of, broken, findings, lost_interval
from benchmarks.upscale_clips import Clips, Record
from benchmarks.upscale_measures import Pictures, compare, enlarged
from benchmarks.upscale_passes import second_of
from benchmarks.upscale_report import markdown, rows_of


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


FIGURES = {"overshoot": 0.5, "high_frequency": 1.0, "chroma_edge": 5.0, "psnr": 30.0, "ssim": 0.9}
WAY = second_of("3:0.15").name


def record(
    index: int, kind: str, way: str, right: int = 0, judged: int = 0, figures: Mapping[str, float] = FIGURES
) -> Record:
    """Of one prompt: so many items judged, the first of them right."""
    verdict = {f"item{number}": number < right for number in range(judged)} | {"none": None}
    same = {name: value for name, value in verdict.items() if value is not None}
    return Record("128x128x22", "trained", index, kind, way, figures, verdict, same)


def clips(right: list[int], **figures: float) -> list[Record]:
    """Ten items a prompt, all right in the small clips."""
    found = []
    for index, count in enumerate(right):
        found += [
            record(index, "made", "small", 10, 10),
            record(index, "made", WAY, count, 10, FIGURES | figures),
            record(index, "drawn", "resize"),
            record(index, "drawn", WAY, figures=FIGURES | figures),
        ]
    return found


def test_rows_are_means_of_clips_and_shares_of_items() -> None:
    small, made, plain, drawn = rows_of(clips([10, 8]))
    assert (small.clips, small.items, small.judged, small.lost) == (2, 20, 1.0, (0.0, 0.0, 0.0))
    assert (made.way, made.judged, made.identity) == ("refined 3:0.15", 0.9, 0.9)
    assert made.lost is not None and made.lost[0] == pytest.approx(0.1)
    assert (drawn.kind, drawn.judged, dict(drawn.figures)) == ("drawn", None, FIGURES)
    assert markdown([small, made, plain, drawn]).count("\n") == 6


def test_second_passes_are_told_as_they_are_named() -> None:
    assert (second_of("3:0.15").steps, second_of("3:0.15").denoise) == (3, 0.15)
    assert second_of("2:0.1:euler:simple").name == "refined 2:0.1:euler:simple"
    with pytest.raises(ValueError, match="float"):
        second_of("3:much")


def test_what_is_lost_has_an_interval_that_many_prompts_narrow() -> None:
    """Nothing lost is certain; the same share lost in more prompts is known better."""

    def lost(right: list[int]) -> tuple[float, float, float]:
        made = clips(right)
        small, refined = ([r for r in made if (r.kind, r.way) == ("made", way)] for way in ("small", WAY))
        return lost_interval(small, refined)

    assert lost([10] * 5) == (0.0, 0.0, 0.0)
    few, many = lost([10, 9] * 5), lost([10, 9] * 50)
    assert few[0] == many[0] == pytest.approx(0.05)
    assert few[1] < many[1] < 0.05 < many[2] < few[2]


def test_each_bound_is_broken_by_its_own_fault() -> None:
    assert not broken(findings(clips([10] * 4), WAY))
    faults = {
        "overshoot": clips([10], overshoot=TRAINED["overshoot"].high + 0.1),
        "high_frequency": clips([10], high_frequency=TRAINED["high_frequency"].high + 0.1),
        "lost": clips([9] * 4),
    }
    for name, damaged in faults.items():
        told = broken(findings(damaged, WAY))
        assert any(line.startswith(f"{name} is") for line in told), (name, told)
    soft = broken(findings(clips([10], high_frequency=TRAINED["high_frequency"].low - 0.1), WAY))
    assert len(soft) == 1 and soft[0].startswith("high_frequency is")
    coloured = broken(findings(clips([10], chroma_edge=5 * TRAINED["chroma_edge_drawn"].high + 0.1), WAY))
    assert any(line.startswith("chroma_edge_drawn is") for line in coloured)


def test_a_bound_holds_at_its_ends_and_for_no_number_that_is_none() -> None:
    bound = Bound(0.5, 1.0)
    assert bound.holds(0.5) and bound.holds(1.0)
    assert not bound.holds(1.01) and not bound.holds(float("nan"))


@pytest.mark.parametrize(("right", "status"), [([10] * 4, 0), ([7] * 4, 1)])
def test_the_report_s_exit_status_says_whether_the_bounds_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], right: list[int], status: int
) -> None:
    Clips(tmp_path, "-0").add(clips(right[:2]))
    torn = '{"size": "128x1'
    (tmp_path / "clips-1.jsonl").write_text(torn)
    Clips(tmp_path, "-2").add(clips(right)[8:])
    assert main([str(tmp_path), "--report", "--held", "3:0.15"]) == status
    told = capsys.readouterr()
    assert ("passes" in told.out) == (status == 0) and ("lost is" in told.err) == (status == 1)
    kept = json.loads((tmp_path / "upscale.json").read_text())
    assert [bool(each["broken"]) for each in kept["held"]] == [bool(status)] and len(kept["rows"]) == 4


def test_other_canvases_than_the_upscaler_s_have_bounds_of_their_own() -> None:
    small, large = bounds_of("128x128x22"), bounds_of("320x192x39")
    assert small.keys() == large.keys() and small is TRAINED
    assert small["lost"] == large["lost"] and small["overshoot"].high < large["overshoot"].high
