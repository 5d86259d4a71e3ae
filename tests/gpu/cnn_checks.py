"""What the video encoder's fused steps must do, on any device that runs Triton: CUDA, or its interpreter on a CPU.

`test_vae` calls this at the encoder's own sizes, `interpreted` at tiny ones.
"""

from itertools import product

import torch

from h3runtime.backends.cnn.base import FrameNorm
from h3runtime.backends.cnn.definition import TorchSteps
from h3runtime.backends.cnn.triton import TritonSteps

GROUPS, EPS = 32, 1e-6
PADDINGS = ((2, 1), (2, 0), (0, 1), (0, 0))
"""Frames in front, pixels before."""


def check(size: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> float:
    """size: B, C, T, H, W, with a mean that is no zero. Padding and sums bit for bit; normed values within two ulps of
    the largest. The greatest share that differs."""
    source = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=source, device=device).to(dtype)

    x = random(*size) * 2 + 3
    norm = FrameNorm(random(size[1]), random(size[1]), GROUPS, EPS)
    other, owed = random(*size), (None, random(size[1]))
    for one, two in product(owed, owed):
        got, wanted = (steps.joined(x, other, one, two) for steps in (TritonSteps(), TorchSteps()))
        assert torch.equal(got, wanted)
    shares = [0.0]
    for (front, before), bias in product(PADDINGS, owed):
        got, wanted = (steps.padded(x, None, front, before, bias) for steps in (TritonSteps(), TorchSteps()))
        assert torch.equal(got, wanted)
        got, wanted = (steps.padded(x, norm, front, before, bias) for steps in (TritonSteps(), TorchSteps()))
        off = (got.float() - wanted.float()).abs()
        bound = 2 * torch.finfo(dtype).eps if dtype == torch.float16 else 1e-5
        assert float(off.max()) <= bound * max(1.0, float(wanted.abs().max())), f"{float(off.max()):.1e}"
        shares.append(float((off > 0).float().mean()))
    assert max(shares) <= 1e-2 or dtype == torch.float32, f"{max(shares):.1e} of the elements differ"
    return max(shares)
