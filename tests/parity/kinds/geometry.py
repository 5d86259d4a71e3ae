"""`geometry`: frame, latent and audio counts, canvases, reference sizes, and the two ways a picture is fitted."""

import numpy as np

from h3runtime.media import pictures
from h3runtime.packing import geometry
from tests.parity.fixture import Fixture

FIT = {"disabled": pictures.stretch, "center": pictures.cover}


def check(fixture: Fixture) -> None:
    for length, want in fixture.meta["temporal"].items():
        frames = geometry.frames_at_least(int(length))
        assert [frames, geometry.latent_frames(frames), geometry.audio_latents(frames)] == want, length
    for source, want in fixture.meta["adapt_canvas"].items():
        assert list(geometry.canvas(*_size(source))) == want, source
    for case, want in fixture.meta["ref_image_size"].items():
        target, source, mode = case.split(":")
        assert list(geometry.reference_image_size(*_size(source), _size(target), mode)) == want, case
    for index, case in enumerate(fixture.meta["images"]):
        _check_image(fixture, index, case)


def _check_image(fixture: Fixture, index: int, case: dict) -> None:
    height, width = case["out_hw"]
    # ComfyUI makes bytes of a picture in [0, 1] by truncation; the recorded ones are whole bytes already.
    pixels = (fixture[f"in.image.{index}"][0].numpy() * 255).clip(0, 255).astype(np.uint8)
    got = FIT[case["crop"]](pixels, width, height)
    want = fixture[f"out.image.{index}.{case['crop']}"][0].numpy() * 255
    np.testing.assert_array_equal(got, np.rint(want).astype(np.uint8))


def _size(text: str) -> geometry.Size:
    width, height = text.split("x")
    return geometry.Size(int(width), int(height))
