"""Video VAE encode in fp32: pictures and clips -> normalised posterior mean; the stitched moments of single frames."""

import torch

from tests.parity.fixture import Fixture, assert_close
from tests.parity.kinds.video_vae_decode import load

# The stated bounds are 1e-4 and 1e-3; a second implementation lands at 2e-6, a GroupNorm eps of 1e-5 is 4e-5 away. With
# toy widths a normalised group is one channel of a few pixels, and where those are nearly alike the norm divides by
# almost nothing: such a clip of 4 frames leaves ComfyUI's own fp32 run 9e-6 from float64 and ours up to 1.5e-5 from it.
REL, MAX_ABS = 3e-5, 3e-4


def check(fixture: Fixture) -> None:
    vae = load(fixture, torch.float32)
    for index, case in enumerate(fixture.meta["cases"]):
        pixels = fixture[f"in.{index}.frames_u8"]
        expected = fixture.under(f"out.{index}.")
        assert pixels.shape[:3] == (case["frames"], case["H"], case["W"])
        latent = vae.encode_clip(pixels)
        assert_close(f"{index}.latent", latent, expected.pop("latent"), rel=REL, max_abs=MAX_ABS)
        if pixels.shape[0] == 1:
            assert torch.equal(vae.encode_image(pixels.float() / 255), latent)
        if "moments" in expected:
            moments = vae.encode_moments(pixels)
            assert_close(f"{index}.moments", moments, expected.pop("moments"), rel=REL, max_abs=MAX_ABS)
        assert not expected, f"outputs nobody looked at: {sorted(expected)}"
