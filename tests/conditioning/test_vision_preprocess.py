import numpy as np
import torch

from h3runtime.conditioning.vision_preprocess import patch_rows
from tests.conditioning.small import picture


def by_hand(pixels: np.ndarray) -> np.ndarray:
    """Patch rows of a picture on the grid, one value at a time."""
    frames = pixels if len(pixels) == 2 else np.concatenate([pixels, pixels])
    values = (frames.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    rows = []
    for square_y in range(0, pixels.shape[1], 32):
        for square_x in range(0, pixels.shape[2], 32):
            for y in (square_y, square_y + 16):
                for x in (square_x, square_x + 16):
                    patch = values[:, y : y + 16, x : x + 16]
                    rows.append(patch.transpose(3, 0, 1, 2).reshape(-1))
    return np.stack(rows)


def test_rows_are_in_merge_order_with_the_channel_slowest() -> None:
    for frames in (1, 2):
        pixels = picture(64, 96, frames)
        rows = patch_rows(pixels)
        assert rows.dtype == torch.float32 and rows.shape == (24, 1536)
        assert np.array_equal(rows.numpy(), by_hand(pixels))


def test_a_still_picture_is_doubled_and_a_pair_is_not() -> None:
    still, pair = (patch_rows(picture(64, 64, n)).view(-1, 3, 2, 256) for n in (1, 2))
    assert torch.equal(still[:, :, 0], still[:, :, 1])
    assert not torch.equal(pair[:, :, 0], pair[:, :, 1])


def test_resizing_keeps_a_flat_picture_flat_and_off_the_8_bit_grid() -> None:
    flat = np.full((1, 50, 70, 3), 100, dtype=np.uint8)
    assert torch.allclose(patch_rows(flat), torch.tensor(100 / 255 * 2 - 1), atol=1e-6)
    levels = (patch_rows(picture(50, 70)) + 1) / 2 * 255
    assert (levels - levels.round()).abs().max() > 0.1


def test_views_of_larger_arrays_are_read_right() -> None:
    clip = picture(64, 64, 30)
    assert torch.equal(patch_rows(clip[[0, 12]]), patch_rows(np.ascontiguousarray(clip[::12][:2])))
    assert torch.equal(patch_rows(clip[:1, :, ::-1]), patch_rows(clip[:1, :, ::-1].copy()))
