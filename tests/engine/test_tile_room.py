"""What tiles decoded at once take, beside the formula; and who gets room for them."""

from __future__ import annotations

import pytest
import torch

from h3runtime.engine import device
from h3runtime.engine.device import tile_room
from h3runtime.engine.memory_formulas import Shot, video_decode_bytes, video_encode_bytes
from h3runtime.vae.tile_batch import ROOM
from h3runtime.vae.tiling import Tiling
from tests.engine.test_memory_estimate import allocated, assert_estimated
from tests.vae.test_video_vae import small_vae

GIB = 2**30


@pytest.mark.parametrize("room", [0, ROOM])
def test_tiles_of_a_decode_take_what_is_estimated(room) -> None:
    """1.14 and 1.20 of the estimate here, where q and k are wider than the gate."""
    vae = small_vae(tiling=Tiling.of_size(64), width=256, head_dim=64)
    target = Shot(22, 112, 64)
    latents = torch.zeros(1, 24, 7, target.height // 16, target.width // 16)
    measured = allocated(lambda: list(vae.decode_chunks(latents, room=room)))
    assert_estimated(measured, video_decode_bytes(vae.config.decoder, vae.dtype, 64, target, room))


def test_an_encoder_s_batch_counts_too() -> None:
    config = small_vae().config.encoder
    one, two = (video_encode_bytes(config, torch.float32, 64, Shot(1, width, 64), ROOM) for width in (64, 112))
    assert two > 1.9 * one


class _Device:
    """CUDA as far as it is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int, reserved: int, allocated: int) -> None:
        monkeypatch.setattr(device, "free_bytes", lambda _: free)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: allocated)


@pytest.mark.parametrize(
    ("free", "reserved", "allocated", "room"),
    [(80 * GIB, 30 * GIB, 20 * GIB, ROOM), (GIB // 2, 20 * GIB + GIB // 2, 20 * GIB, GIB // 2), (0, GIB, GIB, 0)],
)
def test_half_of_what_is_free_or_kept_is_room(monkeypatch, free, reserved, allocated, room) -> None:
    _Device(monkeypatch, free, reserved, allocated)
    assert tile_room(torch.device("cuda", 0)) == room


def test_a_cpu_decodes_one_after_another() -> None:
    assert tile_room(torch.device("cpu")) == 0
