"""What is computed value by value must not depend on the device: bytes, pixels, coordinates."""

import pytest
import torch

from h3runtime.vae.video_decoder import coordinates
from h3runtime.vae.video_pixels import denormalise, normalise, to_bytes

pytestmark = pytest.mark.gpu

CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.float32])


@DTYPES
def test_every_byte_is_normalised_with_the_same_bits(cuda: torch.device, dtype: torch.dtype) -> None:
    pixels = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16, 1).expand(-1, -1, -1, 3)
    assert torch.equal(normalise(pixels.to(cuda), dtype).cpu(), normalise(pixels, dtype))


@DTYPES
def test_frames_and_their_bytes_have_the_same_bits(cuda: torch.device, dtype: torch.dtype) -> None:
    decoded = torch.randn(1, 3, 2, 64, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    ours, wanted = denormalise(decoded.to(cuda)), denormalise(decoded)
    assert torch.equal(ours.cpu(), wanted)
    assert torch.equal(to_bytes(ours).cpu(), to_bytes(wanted))


@pytest.mark.parametrize("grid", [(7, 16, 16), (1, 3, 5), (7, 6, 13)])
def test_half_precision_coordinates_have_the_same_bits(cuda: torch.device, grid: tuple[int, int, int]) -> None:
    ours, wanted = (coordinates(grid, 5, torch.float16, device) for device in (cuda, CPU))
    assert torch.equal(ours.cpu(), wanted)
