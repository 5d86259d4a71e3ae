"""What `attention8` must do, on any device that runs Triton: see `producer_checks`."""

import torch
from h3_kernels.attention8 import QkType, Quantized, Tile, attention8, key_mean, quantize
from h3_kernels.attention8_emulation import Emulated, emulate, quantized
from torch.nn import functional as F

BIAS = 4.0
"""Of the keys' channels, in standard deviations: what smoothing is for."""


def made(
    batch: int, rows: int, heads: int, device: torch.device, *, bias: float = BIAS
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v [B, S, H, 128], views of one projection as the blocks hand them in."""
    source = torch.Generator().manual_seed(rows)
    qkv = torch.randn(batch, rows, 3, heads, 128, generator=source)
    qkv[:, :, 1] += bias * torch.randn(1, 1, heads, 128, generator=source)
    q, k, v = qkv.to(device, torch.bfloat16).unbind(2)
    return q, k, v


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.float() - wanted.float()).norm() / wanted.float().norm())


def check_quantisation(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, qk: QkType, tile: Tile) -> None:
    """Codes and scales against plain PyTorch; rows beyond S are zero."""
    batch, rows, heads, width = q.shape
    got = quantize(q, k, v, qk, tile)
    wanted = quantized(q, k, v, int8=qk == "int8", keys=tile.keys)
    whole = Quantized(
        q=got.q.float().view(batch * heads, -1, width),
        k=got.k.float().view(batch * heads, -1, width),
        v=got.v.float().view(batch * heads, width, -1).transpose(1, 2),
        q_scales=got.q_scales,
        k_scales=got.k_scales,
        v_scales=got.v_scales,
    )
    assert float(sum(part[:, rows:].abs().sum() for part in (whole.q, whole.k, whole.v))) == 0
    blocks = wanted.k_scales.shape[1]
    _assert_equal(whole, wanted, rows, blocks, mean_error=float((key_mean(k) - _mean(k)).abs().max()))


def _mean(k: torch.Tensor) -> torch.Tensor:
    return k.transpose(1, 2).flatten(0, 1).float().mean(1)


def _assert_equal(got: Quantized, wanted: Emulated, rows: int, blocks: int, mean_error: float) -> None:
    """q and v bit for bit. The mean of k may be added up in another order: then codes at a tie differ by one step."""
    assert torch.equal(got.q[:, :rows], wanted.q) and torch.equal(got.q_scales[:, :rows], wanted.q_scales)
    assert torch.equal(got.v[:, :rows], wanted.v) and torch.equal(got.v_scales, wanted.v_scales)
    assert mean_error < 1e-5
    off = got.k[:, :rows] != wanted.k
    assert float(off.float().mean()) < 1e-3
    torch.testing.assert_close(got.k_scales[:, :blocks], wanted.k_scales, rtol=1e-5, atol=0)


def check_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, qk: QkType, tile: Tile, *, emulation: float, exact: float
) -> float:
    """Relative L2 to the emulation and to fp32 attention, each within its bound; the latter is returned."""
    got = attention8(q, k, v, qk=qk, tile=tile)
    assert got.shape == q.shape and got.dtype == q.dtype and bool(torch.isfinite(got).all())
    to_emulation = relative(got, emulate(q, k, v, int8=qk == "int8", keys=tile.keys))
    assert to_emulation < emulation, f"{to_emulation:.2e} from the emulation"
    wide = (x.float().transpose(1, 2) for x in (q, k, v))
    to_exact = relative(got, F.scaled_dot_product_attention(*wide).transpose(1, 2))
    assert to_exact < exact, f"{to_exact:.2%} from fp32 attention"
    return to_exact
