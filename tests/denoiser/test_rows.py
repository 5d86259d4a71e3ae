import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.denoiser.rows import (
    audio_latent,
    audio_mask_rows,
    audio_rows,
    pad_to_even,
    patchify,
    unpatchify,
    video_mask_rows,
)

small = st.integers(1, 4)


def numbered(*shape: int) -> torch.Tensor:
    """Every element its own value, so that equality proves the order."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


@settings(deadline=None)
@given(c=small, t=small, i=small, j=small)
def test_patchify_and_back_is_identity(c: int, t: int, i: int, j: int) -> None:
    video = numbered(1, c, t, 2 * i, 2 * j)
    rows = patchify(video)
    assert rows.shape == (t * i * j, 4 * c)
    assert torch.equal(unpatchify(rows, t, 2 * i, 2 * j), video)


def test_a_video_row_is_channel_then_patch_row_then_patch_column() -> None:
    video = numbered(1, 3, 2, 4, 6)
    rows = patchify(video)
    for t, i, j in ((0, 0, 0), (0, 1, 2), (1, 0, 1)):
        row = rows[t * 6 + i * 3 + j]
        for c in range(3):
            for ph in range(2):
                for pw in range(2):
                    assert row[c * 4 + ph * 2 + pw] == video[0, c, t, 2 * i + ph, 2 * j + pw]


@settings(deadline=None)
@given(c=small, a=st.integers(1, 9))
def test_audio_rows_and_back_is_identity(c: int, a: int) -> None:
    audio = numbered(1, c, 2, a)
    rows = audio_rows(audio)
    assert rows.shape == (2 * a, c)
    assert torch.equal(rows[a], audio[0, :, 1, 0])
    assert torch.equal(audio_latent(rows), audio)


def test_odd_sides_repeat_their_first_line() -> None:
    video = numbered(1, 2, 1, 3, 5)
    padded = pad_to_even(video)
    assert padded.shape == (1, 2, 1, 4, 6)
    assert torch.equal(padded[..., :3, :5], video)
    assert torch.equal(padded[..., 3, :], padded[..., 0, :])
    assert torch.equal(padded[..., 5], padded[..., 0])
    assert pad_to_even(padded) is padded


def test_masks_follow_their_rows() -> None:
    mask = numbered(1, 1, 2, 2, 3).repeat_interleave(2, -2).repeat_interleave(2, -1)
    assert torch.equal(video_mask_rows(mask), torch.arange(12.0))
    assert torch.equal(video_mask_rows(mask), patchify(mask)[:, 0])
    assert torch.equal(video_mask_rows(mask[..., :3, :5]), torch.arange(12.0))
    assert torch.equal(audio_mask_rows(numbered(1, 1, 2, 4)), audio_rows(numbered(1, 1, 2, 4))[:, 0])
