"""Several tiles at once give what one after another gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from h3runtime.vae.tile_batch import ROOM, decoded_tile_bytes, in_batches, tiles_at_once
from h3runtime.vae.tiling import Tiling
from h3runtime.vae.video_config import DecoderConfig
from tests.vae.test_video_vae import latents_of, pixels_of, small_vae


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("rule", ["raw", "blended"])
def test_a_decode_in_batches_is_the_same_bit_for_bit(dtype, rule) -> None:
    vae = small_vae(dtype, Tiling(48, 16), width=64)
    latents = latents_of(7, 4, 6)
    one = torch.cat(list(vae.decode_chunks(latents, blend=rule)))
    for room in (1_500_000, ROOM):
        assert torch.equal(torch.cat(list(vae.decode_chunks(latents, blend=rule, room=room))), one)


@pytest.mark.parametrize("frames", [1, 5])
def test_an_encode_in_batches_is_the_same_but_for_a_convolution_s_rounding(frames) -> None:
    """oneDNN may add in another order for another batch: 2.3e-6 of moments around 1 was seen, at 9 tiles of 256 px."""
    vae = small_vae(tiling=Tiling(32, 16))
    pixels = pixels_of(frames, 32, 48)
    torch.testing.assert_close(vae.encode_clip(pixels, room=ROOM), vae.encode_clip(pixels), rtol=1e-5, atol=1e-5)


def test_no_room_means_one_tile_at_a_time() -> None:
    vae = small_vae(tiling=Tiling(64, 16))
    sizes: list[int] = []
    assert vae.decoder is not None
    vae.decoder.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    for room in (0, ROOM):
        vae.decode_piece(torch.zeros(1, 24, 1, 8, 8), room=room)
    assert sizes == [1] * 9 + [9]


@given(tile_bytes=st.integers(1, 10**9), tiles=st.integers(1, 60), room=st.integers(0, 10**10))
def test_batches_fit_and_are_as_few_as_can_be(tile_bytes, tiles, room) -> None:
    at_once = tiles_at_once(tile_bytes, tiles, room)
    assert at_once == 1 or at_once * tile_bytes <= room
    most = max(1, min(tiles, room // tile_bytes))
    assert 1 <= at_once <= most
    assert -(-tiles // at_once) == -(-tiles // most)


def test_the_published_decoder_takes_14_of_28_tiles_at_once() -> None:
    """Of 1344x768: two even batches, although there is room for 17."""
    config = DecoderConfig(24, width=2048, layers=36, inner=2048, head_dim=64, feed_forward=8192, registers=4)
    one = decoded_tile_bytes(config, torch.float16, 7 * 16 * 16)
    assert one == 1792 * (3 * 8192 + 5 * 2048) * 2
    assert ROOM // one == 17 and tiles_at_once(one, 28, ROOM) == 14


def test_no_tile_is_cut_before_its_batch() -> None:
    cut: list[int] = []

    def tiles() -> Iterator[torch.Tensor]:
        for index in range(5):
            cut.append(index)
            yield torch.full((1,), float(index))

    results = in_batches(tiles(), lambda batch: batch + 1, 2)
    assert cut == []
    assert next(results) == 1 and cut == [0, 1]
    assert [float(result) for result in results] == [2, 3, 4, 5]
