"""Which frames the geometry calls joins, against what the decoder's own join does with marked pieces."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.packing.geometry import is_join, pixel_frames
from h3runtime.vae.chunks import FRAME_OVERLAP, PART_B, join, plan


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 120))
def test_joins_are_the_frames_that_another_part_b_reaches(latents: int) -> None:
    """Part B of every piece is 1, all else 0: a frame with a share of an earlier piece's B is not 0. Frames of the last
    B are not joined with anything."""
    shape = plan(latents)
    if shape.latent_frames == 1:
        assert not is_join(0, 1)
        return
    piece = torch.zeros(1, 1, 28, 1, 1)
    piece[:, :, PART_B] = 1
    clip = torch.cat(list(join([piece] * shape.chunks, shape.frames)), dim=2).flatten()
    assert len(clip) == shape.frames == pixel_frames(latents)
    touched = [frame for frame, value in enumerate(clip.tolist()) if value > 0]
    end = 17 * shape.chunks
    assert [f for f in touched if f < end] == [f for f in range(shape.frames) if is_join(f, shape.frames)]
    assert len([f for f in touched if f < end]) == FRAME_OVERLAP * (shape.chunks - 1)
