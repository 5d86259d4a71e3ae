"""What `attention8` must do, on any device that runs Triton: see `producer_checks`."""

import torch
from h3_kernels.attention8 import Tile, attention8, quantize, statistics
from h3_kernels.attention8_emulation import emulate, quantized
from torch.nn import functional as F

BIAS = 4.0
"""Of the channels of k and v, in standard deviations: what smoothing is for."""


def made(
    batch: int, rows: int, heads: int, device: torch.device, *, bias: float = BIAS
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v [B, S, H, 128], views of one projection as the blocks hand them in."""
    source = torch.Generator().manual_seed(rows)
    qkv = torch.randn(batch, rows, 3, heads, 128, generator=source)
    qkv[:, :, 1:] += bias * torch.randn(1, 1, 2, heads, 128, generator=source)
    q, k, v = qkv.to(device, torch.bfloat16).unbind(2)
    return q, k, v


def two_sides(rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v [1, S, 1, 128]: every query sees one half of the keys alone, all of it alike, and there v is near 1; it
    is near -1 in the other, so that no mean over S takes it away."""
    source = torch.Generator().manual_seed(rows)
    q, k, v = (torch.randn(1, rows, 1, 128, generator=source) for _ in range(3))
    side = torch.ones(rows).view(1, -1, 1, 1)
    side[:, rows // 2 :] = -1
    made = 0.3 * q + 1, 0.3 * k + side, 0.5 * v + side
    q, k, v = (x.to(device, torch.bfloat16) for x in made)
    return q, k, v


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.float() - wanted.float()).norm() / wanted.float().norm())


def check_quantisation(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tile: Tile) -> None:
    """Codes and scales against plain PyTorch; rows beyond S are zero.

    q bit for bit. The means of k and v may be added up in another order: then codes at a tie differ by one step.
    """
    batch, rows, heads, width = q.shape
    got, wanted = quantize(q, k, v, tile), quantized(q, k, v, keys=tile.keys)
    q_codes, k_codes = (codes.float().view(batch * heads, -1, width) for codes in (got.q, got.k))
    v_codes = in_order(got.v.float().view(batch * heads, width, -1)).transpose(1, 2)
    assert float(sum(codes[:, rows:].abs().sum() for codes in (q_codes, k_codes, v_codes))) == 0
    assert torch.equal(q_codes[:, :rows], wanted.q) and torch.equal(got.q_scales[:, :rows], wanted.q_scales)
    for codes, expected in ((k_codes, wanted.k), (v_codes, wanted.v)):
        assert float((codes[:, :rows] != expected).float().mean()) < 2e-3
        torch.testing.assert_close(codes[:, :rows], expected, rtol=1 / 8, atol=1)
    torch.testing.assert_close(got.k_scales, wanted.k_scales, rtol=1e-5, atol=0)
    torch.testing.assert_close(got.v_scales, wanted.v_scales, rtol=1e-5, atol=1e-30)
    check_means(k, v)


def in_order(v: torch.Tensor) -> torch.Tensor:
    """[..., P] as the kernel holds it -> by key: place 4t + 2g + j of each 16 holds key 8g + 2t + j."""
    return v.unflatten(-1, (-1, 4, 2, 2)).transpose(-2, -3).flatten(-4)


def check_means(k: torch.Tensor, v: torch.Tensor) -> None:
    found = statistics(k, v)
    for mean, x in ((found.k_mean, k), (found.v_mean, v)):
        assert float((mean - x.transpose(1, 2).flatten(0, 1).double().mean(1)).abs().max()) < 1e-5


def check_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tile: Tile, *, emulation: float, exact: float = 0.055
) -> float:
    """Relative L2 to the emulation and to fp32 attention, each within its bound, once the mean of v is taken off: every
    query shares it, and it would hide an error. On random data what is left is sqrt(1 - 1/e) of the whole, so that
    3.9 % of the whole are 4.9 % of it. Returns the error of the whole."""
    got = attention8(q, k, v, tile=tile)
    assert got.shape == q.shape and got.dtype == q.dtype and bool(torch.isfinite(got).all())
    wide = (x.float().transpose(1, 2) for x in (q, k, v))
    wanted = F.scaled_dot_product_attention(*wide).transpose(1, 2)
    common = v.float().mean(1, keepdim=True) * (v.shape[1] > 1)
    ulp = float(wanted.norm() / (wanted - common).norm()) * 2.0**-9  # what rounding to bf16 alone may add
    to_emulation = relative(got - common, emulate(q, k, v, keys=tile.keys) - common)
    assert to_emulation < emulation + 2 * ulp, f"{to_emulation:.2e} from the emulation"
    to_exact = relative(got - common, wanted - common)
    assert to_exact < exact + ulp, f"{to_exact:.2%} from fp32 attention"
    return relative(got, wanted)
