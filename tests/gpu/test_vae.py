"""The video VAE on an accelerator: batches beside single tiles, the sound on a stream of its own, and no waiting."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.vae import SIZES, Size, decodes, error_of, made_vae, psnr
from h3runtime.backends.cnn import triton as cnn
from h3runtime.backends.linear.base import install
from h3runtime.backends.linear.fp8 import Fp8Linear
from h3runtime.backends.vit.triton import TritonSteps
from h3runtime.engine.beside import Beside
from h3runtime.engine.device import tile_room
from h3runtime.engine.resident import ResidentEngine
from h3runtime.quant.stored import PlainWeight
from h3runtime.vae.tile_batch import ROOM
from h3runtime.vae.video_pixels import denormalise, to_bytes
from h3runtime.vae.video_vae import VideoVae
from tests.gpu.conftest import Note

pytestmark = pytest.mark.gpu

LEAST_DB = 50.0
"""performance.md: a batched decode against the unbatched one."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_batched_decode_is_the_same_picture(cuda: torch.device, note: Note, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    vae = made_vae(SIZES["small"], dtype, cuda)
    ways, judge, _ = decodes(vae, None, torch.randn(1, 24, 7, 48, 64, device=cuda))
    with torch.no_grad():
        found = judge(ways["batched"](), ways["unbatched"]())
    note(f"{dtype}, small, 1024x768: {found:.1f} dB")
    assert tile_room(cuda) == ROOM
    assert found > LEAST_DB


SIZES_OF_STEPS = (
    (2, (7, 16, 16), 2048, 32, 64, 8192),
    (3, (2, 3, 5), 200, 5, 24, 136),
    (1, (1, 4, 4), 96, 3, 32, 2100),
)
"""Batch, grid, width, heads, head dim, feed-forward: the decoder's own, and widths that are no powers of two."""


@pytest.fixture(scope="module")
def vit(cuda: torch.device) -> Any:  # noqa: ARG001
    return import_module("tests.gpu.vit_checks")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("size", SIZES_OF_STEPS, ids=str)
def test_the_fused_steps_are_the_definition(
    cuda: torch.device, vit: Any, note: Note, size: tuple[Any, ...], dtype: torch.dtype
) -> None:
    given = vit.inputs(vit.Size(*size), cuda, dtype)
    norms, turned, attended = vit.check_norms(given), vit.check_rotation(given), vit.check_attention(given)
    codes = vit.check_codes(given)
    note(f"other: {norms:.1e} of a norm, {turned:.1e} of q and k, {codes:.1e} of codes; attention {attended:.1e}")
    vit.check_gated(given, exact=dtype == torch.float16)


def test_a_fused_decode_is_the_same_picture(cuda: torch.device, vit: Any, note: Note) -> None:  # noqa: ARG001
    """Tiles at once and fused steps, against one by one and the definition; the real VAE's width, few layers."""
    torch.manual_seed(0)
    vae = made_vae(Size((32, 32, 32, 64, 32, 32), layers=4, heads=32, head_dim=64), torch.float16, cuda)
    latents = torch.randn(1, 24, 7, 48, 64, device=cuda)
    with torch.no_grad():
        wanted = torch.cat([to_bytes(part) for part in vae.decode_chunks(latents)])
        vae.take_steps(TritonSteps(), cnn.TritonSteps())
        found = psnr(torch.cat([to_bytes(part) for part in vae.decode_chunks(latents, room=ROOM)]), wanted)
    note(f"four layers, 1024x768: {found:.1f} dB")
    assert found > LEAST_DB


SIZES_OF_FRAMES = ((1, 128, 17, 256, 256), (2, 256, 9, 64, 64), (1, 1024, 5, 16, 16), (1, 96, 1, 34, 20))
"""Batch, channels, frames, height, width: the encoder's own levels, and a picture with a width of no power of two."""


def test_a_decode_in_fp8_by_fused_steps_is_that_by_plain_ones(cuda: torch.device, note: Note) -> None:
    """The real VAE's width, few layers: codes from the steps and biases in them, against the linears' own."""
    torch.manual_seed(0)
    vae = made_vae(Size((32, 32, 32, 64, 32, 32), layers=4, heads=32, head_dim=64), torch.float16, cuda)
    latents = torch.randn(1, 24, 7, 32, 32, device=cuda)

    def decoded() -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([to_bytes(part) for part in vae.decode_chunks(latents, room=ROOM)])

    exact = decoded()
    in_fp8(vae)
    wanted = decoded()
    vae.take_steps(TritonSteps(), cnn.TritonSteps())
    found = decoded()
    note(
        f"{psnr(found, wanted):.1f} dB; from FP16 {psnr(found, exact):.1f} dB, by plain steps {psnr(wanted, exact):.1f}"
    )
    # A norm's last bit moves codes: both are as far from FP16, and nearer to each other.
    assert abs(psnr(found, exact) - psnr(wanted, exact)) < 1
    assert psnr(found, wanted) > psnr(wanted, exact)


def in_fp8(vae: VideoVae) -> None:
    """The linears of the decoder's blocks."""
    assert vae.decoder is not None
    device = next(vae.parameters()).device
    for name, linear in list(vae.decoder.transformer_blocks.named_modules()):
        if isinstance(linear, nn.Linear):
            stored = PlainWeight(linear.weight.data, linear.bias.data)
            install(vae.decoder.transformer_blocks, name, Fp8Linear(), stored, device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("size", SIZES_OF_FRAMES, ids=str)
def test_padding_and_norms_of_frames_are_the_definition(
    cuda: torch.device, note: Note, size: tuple[int, ...], dtype: torch.dtype
) -> None:
    shares = import_module("tests.gpu.cnn_checks").check(size, cuda, dtype)
    note(f"other by an ulp or two: {shares:.1e} of a normed value")


def test_a_fused_encode_gives_the_same_latents(cuda: torch.device, note: Note) -> None:
    """A clip and a picture, tiles at once."""
    vae = made_vae(SIZES["small"], torch.float16, cuda)
    pixels = torch.randint(0, 256, (22, 320, 480, 3), dtype=torch.uint8, device=cuda)
    clip, picture = vae.encode_clip(pixels), vae.encode_image(pixels[:1])
    vae.take_steps(TritonSteps(), cnn.TritonSteps())
    found = error_of(vae.encode_clip(pixels, room=ROOM), clip), error_of(vae.encode_image(pixels[:1]), picture)
    note(f"relative L2 of a clip's latents {found[0]:.1e}, of a picture's {found[1]:.1e}")
    assert max(found) < 5e-3


def test_a_batched_encode_gives_the_same_latents(cuda: torch.device) -> None:
    vae = made_vae(SIZES["small"], torch.float16, cuda)
    pixels = torch.randint(0, 256, (22, 320, 480, 3), dtype=torch.uint8, device=cuda)
    assert error_of(vae.encode_clip(pixels, room=ROOM), vae.encode_clip(pixels)) < 5e-3


def test_a_chunk_is_enqueued_without_waiting_for_the_device(cuda: torch.device) -> None:
    """Else the sound could not be enqueued beside it."""
    vae = made_vae(SIZES["small"], torch.float16, cuda)
    z = vae.denormalised(torch.randn(1, 24, 7, 32, 32, device=cuda))
    wanted = to_bytes(denormalise(vae.decode_piece(z, "blended", None, ROOM)))
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = to_bytes(denormalise(vae.decode_piece(z, "blended", None, ROOM)))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, wanted)


def test_sound_on_its_own_stream_is_the_same_sound(cuda: torch.device, engine: ResidentEngine) -> None:
    vaes = engine.models.vaes
    sound = torch.randn(1, vaes.audio.config.latent_channels, 2, 65, device=cuda)
    video = torch.randn(1, 24, 12, 12, 20, device=cuda)
    alone = vaes.audio.decode(sound).cpu()
    beside = Beside(cuda)
    chunks = beside.begun(vaes.video.decode_chunks(video, room=ROOM))
    with beside.stream():
        heard = vaes.audio.decode(sound).cpu()
    assert torch.equal(heard, alone)
    assert sum(len(chunk) for chunk in chunks) == 39
