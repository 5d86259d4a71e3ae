"""`positions_and_tags`: segments, position ids, and the AdaLN row of every packed row, for layouts of every task."""

from typing import Any

import numpy as np
import torch

from h3runtime.core import KeyframeShape, PackedLayout, ReferenceShape
from h3runtime.denoiser.schedule import timesteps
from h3runtime.denoiser.timeline import clock, runs
from h3runtime.packing.layout import pack
from tests.parity.dit_case import KINDS, fp32_timesteps
from tests.parity.fixture import Fixture, assert_equal

SHIFTS = (12.0, 3.0)
ULP = torch.finfo(torch.float32).eps
"""Of 1, as stated."""


def check(fixture: Fixture) -> None:
    for name, case in fixture.meta["cases"].items():
        layout = _layout(case)
        assert layout.rows == case["seq_len"], name
        kinds = fixture.meta["kinds"]
        segments = torch.tensor([[s.start, s.stop, kinds.index(s.kind)] for s in layout.segments])
        assert_equal(f"{name}.segments", segments, fixture[f"out.{name}.segments"])
        want = fixture[f"out.{name}.position_ids"]
        assert_equal(f"{name}.position_ids", torch.from_numpy(layout.position_ids).to(want.dtype), want)
        if f"out.{name}.mod_segments" in fixture:
            _check_modulation(fixture, name, layout, case["sigma"])


def _check_modulation(fixture: Fixture, name: str, layout: PackedLayout, sigma: float) -> None:
    """The clocks are float64 as today or fp32 as in the recording version: one of the two must give every value."""
    sequence, want = runs(layout), fixture[f"out.{name}.unique_t"]
    clocks = [clock(sequence, times(sigma, *SHIFTS)) for times in (timesteps, fp32_timesteps)]
    got = min(clocks, key=lambda c: _distance(c.timeline, want))
    rows = torch.tensor(got.rows.segments)
    assert_equal(f"{name}.mod_segments", rows, fixture[f"out.{name}.mod_segments"])

    unique = torch.tensor(got.timeline, dtype=torch.float32)
    torch.testing.assert_close(unique, want, rtol=0, atol=ULP)
    spread = torch.cat([row.expand(stop - start) for start, stop, row in rows])
    torch.testing.assert_close(unique[spread // 3], fixture[f"out.{name}.row_t"], rtol=0, atol=ULP)
    assert_equal(f"{name}.row_modality", (spread % 3).to(torch.uint8), fixture[f"out.{name}.row_modality"])


def _distance(timeline: tuple[float, ...], want: torch.Tensor) -> float:
    return max(abs(a - b) for a, b in zip(timeline, want.tolist(), strict=True)) if len(timeline) == len(want) else 2.0


def _layout(case: dict[str, Any]) -> PackedLayout:
    size, payload = case["geometry"], case["payload"]
    tags = np.ones(size["text_len"], dtype=np.int64)
    for start, stop in case["vision_spans"]:
        tags[start:stop] = 0
    return pack(
        size["T"],
        size["latent_h"],
        size["latent_w"],
        size["A"],
        tags,
        [_keyframe(k) for k in payload["keyframes"]],
        [_reference(r) for r in payload["refs"]],
    )


def _keyframe(recorded: dict[str, Any]) -> KeyframeShape:
    frames = recorded["latent"][2] if "latent" in recorded else 0
    sounds = recorded["audio_latent"][-1] if "audio_latent" in recorded else 0
    return KeyframeShape(recorded["resolved_frame_index"], frames, sounds)


def _reference(recorded: dict[str, Any]) -> ReferenceShape:
    frames, height, width = recorded["latent"][2:] if "latent" in recorded else (0, 0, 0)
    return ReferenceShape(KINDS[recorded["kind"]], frames, height, width, recorded.get("ref_audio_t", 0))
