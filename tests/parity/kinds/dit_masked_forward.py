"""`dit_masked_forward`: one network call with masks inside the network: per-row timesteps, scaled velocities."""

import torch

from h3runtime.denoiser.masks import TokenMasks, for_network
from tests.parity.dit_case import DTYPES, Case, case_of
from tests.parity.fixture import Fixture, assert_close, assert_equal

FP32_REL = 1e-6
"""Stated: 3e-6. Reached: 4e-7."""


def check(fixture: Fixture) -> None:
    video, audio, sigma = fixture["in.video"], fixture["in.audio"], float(fixture["in.sigma"])
    masks = masks_of(fixture)
    plain = case_of(fixture, torch.float32)
    check_timesteps(fixture, plain, masks)
    streams = ("video", "audio")
    got = dict(zip(streams, plain.model(plain.prepared, video, audio, sigma, masks=masks), strict=True))
    got |= {f"carry.{s}": v for s, v in zip(streams, plain.carried(video, audio, sigma, masks=masks), strict=True)}
    for key, value in got.items():
        assert_close(key, value, fixture[f"out.{key}"], rel=FP32_REL)
    rounded = case_of(fixture, DTYPES["bf16"])
    for key, value in zip(streams, rounded.model(rounded.prepared, video, audio, sigma, masks=masks), strict=True):
        masked = f"in.{key}_mask" in fixture
        assert value.dtype == (torch.float32 if masked else torch.bfloat16), f"{key}: an fp32 mask alone widens it"
        moved = fixture.meta["bf16_vs_fp32_run"][f"out.{key}"]["rel_l2"]
        assert_close(f"bf16 {key}", value.float(), fixture[f"out.{key}_bf16run"].float(), rel=1.5 * moved)
    checked = {"unique_t", "video_bf16run", "audio_bf16run", *got}
    assert set(fixture.under("out.")) == checked


def masks_of(fixture: Fixture) -> TokenMasks:
    """fp32, as a direct call gets them."""
    return TokenMasks(
        *(
            for_network(fixture[name].to(fixture.device), torch.float32) if name in fixture else None
            for name in ("in.video_mask", "in.audio_mask")
        )
    )


def check_timesteps(fixture: Fixture, case: Case, masks: TokenMasks) -> None:
    timeline = case.model.clock(case.prepared, float(fixture["in.sigma"]), masks).timeline
    assert_equal("distinct timesteps", torch.tensor(timeline, dtype=torch.float32), fixture["out.unique_t"])
