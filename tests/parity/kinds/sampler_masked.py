"""`sampler_masked`: masks at every stage around the network, then whole masked runs, step by step.

What needs no network is checked from recorded states and must be exact: resizing, pooling, what is shown to the network
and what is put back. The run itself is bounded as in `sampler_trajectory`.
"""

import torch

from h3runtime.core import Latents
from h3runtime.denoiser import masks
from h3runtime.denoiser.carry import Streams
from h3runtime.denoiser.masks import Keeper, Masks
from tests.parity.dit_case import DTYPES
from tests.parity.fixture import Fixture, assert_equal
from tests.parity.kinds.sampler_trajectory import (
    check_calls,
    check_run,
    check_scalars,
    check_updates,
    replay,
    settings_of,
    state,
)

ULP = torch.finfo(torch.float32).eps


def check(fixture: Fixture) -> None:
    check_scalars(fixture)
    given = masks_of(fixture)
    _check_sizes(fixture, given)
    for dtype in fixture.meta["dtypes"]:
        _check_exchange(fixture, dtype, given)
        check_calls(fixture, dtype, masks=given)
        check_updates(fixture, dtype)
        run = replay(fixture, dtype, masks=given)
        check_run(fixture, dtype, run)
        for i, seen in enumerate(run.seen.timelines):
            timeline = torch.tensor(seen, dtype=torch.float32)
            torch.testing.assert_close(timeline, fixture[f"out.step{i}.unique_t"], rtol=ULP, atol=0)


def masks_of(fixture: Fixture) -> Masks:
    content = Latents(fixture["in.init_video"], fixture["in.init_audio"])
    return Masks(content, *(fixture.tensors.get(name) for name in ("in.video_mask", "in.audio_mask")))


def _check_sizes(fixture: Fixture, given: Masks) -> None:
    """Latent-size masks, and the token masks that each dtype's network receives."""
    video = masks.resize_video_mask(given.video, *given.content.video.shape[2:])
    audio = masks.resize_audio_mask(given.audio, given.content.audio.shape[-1])
    assert_equal("video mask", video, fixture["out.mask.video"])
    assert_equal("audio mask", audio, fixture["out.mask.audio"])
    for dtype in fixture.meta["dtypes"]:
        for name, pooled in (("video", masks.pool_video(video)), ("audio", masks.pool_audio(audio))):
            got = masks.for_network(pooled, DTYPES[dtype])
            recorded = fixture.meta["mask_dtype_in_network"][dtype][name]
            assert (got is None) == (recorded is None) == (f"out.token_mask.{name}" not in fixture)
            if got is not None:
                assert str(got.dtype) == f"torch.{recorded}"
                assert_equal(f"{name} token mask", got.float(), fixture[f"out.token_mask.{name}"])


def _check_exchange(fixture: Fixture, dtype: str, given: Masks) -> None:
    """What the network is shown, and what its estimate becomes, from recorded states."""
    video, audio = fixture["in.noise_video"], fixture["in.noise_audio"]
    noise = Streams(video.shape, audio.shape).join(video, audio)
    keeper = Keeper.of(given, noise, settings_of(fixture), DTYPES[dtype])
    for i, sigma in enumerate(fixture["out.sigmas"].tolist()[:-1]):
        prefix = f"out.{dtype}.step{i}"
        assert_equal(f"{prefix}.x_model", keeper.show(state(fixture, dtype, i), sigma), fixture[f"{prefix}.x_model"])
        restored = keeper.restore(fixture[f"{prefix}.model_x0"])
        assert_equal(f"{prefix}.denoised", restored, fixture[f"{prefix}.denoised"])
