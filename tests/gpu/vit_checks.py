"""What the video decoder's fused steps must do, on any device that runs Triton: CUDA, or its interpreter on a CPU.

`test_vae` calls these at the decoder's own sizes, `interpreted` at tiny ones with widths that are no powers of two.
"""

import math
from dataclasses import dataclass

import torch
from h3_kernels import vae
from torch.nn import functional as F

from h3runtime.backends.vit.definition import TorchSteps, in_codes, rotate
from h3runtime.backends.vit.triton import TritonSteps
from h3runtime.quant.row_codes import RowCodes
from h3runtime.vae.video_decoder import EPS, coordinates, rotary_table

SUFFIX = 5
"""Tokens behind those of the grid, at the origin."""


@dataclass(frozen=True)
class Size:
    batch: int
    grid: tuple[int, int, int]
    width: int
    heads: int
    head_dim: int
    feed_forward: int

    @property
    def tokens(self) -> int:
        return math.prod(self.grid) + SUFFIX


@dataclass(frozen=True)
class Inputs:
    x: torch.Tensor
    update: torch.Tensor
    scale: torch.Tensor
    weight: torch.Tensor
    qkv: torch.Tensor
    owed: torch.Tensor
    """To x, to qkv, to gate and value, one after the other."""
    cos: torch.Tensor
    sin: torch.Tensor
    gate_and_value: torch.Tensor


def inputs(size: Size, device: torch.device, dtype: torch.dtype) -> Inputs:
    source = torch.Generator().manual_seed(0)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=source) * scale).to(device, dtype)

    rows = size.batch, size.tokens
    cos, sin = rotary_table(coordinates(size.grid, SUFFIX, dtype, device), size.head_dim)
    return Inputs(
        x=random(*rows, size.width, scale=3.0),
        update=random(*rows, size.width),
        scale=random(size.width),
        weight=random(size.width),
        qkv=random(*rows, size.heads, 3, size.head_dim, scale=2.0),
        owed=random(size.width + 3 * size.heads * size.head_dim + 2 * size.feed_forward),
        cos=cos,
        sin=sin,
        gate_and_value=random(*rows, 2 * size.feed_forward, scale=3.0),
    )


def assert_near(got: torch.Tensor, wanted: torch.Tensor, ulps: int = 1) -> float:
    """fp16: at most one element in a thousand, by `ulps`; fp32 to 3e-6. The share that differs."""
    assert got.shape == wanted.shape and torch.isfinite(got).all()
    if got.dtype == torch.float32:
        torch.testing.assert_close(got, wanted, rtol=3e-6, atol=3e-6)
        return 0.0
    ulp = torch.finfo(got.dtype).eps * wanted.abs().float().clamp(min=torch.finfo(got.dtype).smallest_normal)
    off = (got.float() - wanted.float()).abs()
    assert bool((off <= ulps * ulp).all()), f"{float((off / ulp).max()):.1f} ulp"
    share = float((off > 0).float().mean())
    assert share <= 1e-3, f"{share:.2e} of the elements differ"
    return share


def check_norms(given: Inputs) -> float:
    """The sum bit for bit in fp16, where a product is exact; norms within an ulp. The share of these that differs."""
    fused, plain = TritonSteps(), TorchSteps()
    share = assert_near(
        fused.norm(given.x, given.weight, EPS),
        plain.norm(given.x, given.weight, EPS),
    )
    x, wanted_x = given.x.clone(), given.x.clone()
    got_x, got = fused.add_norm(x, given.update, given.scale, given.weight, EPS)
    _, wanted = plain.add_norm(wanted_x, given.update, given.scale, given.weight, EPS)
    assert got_x is x
    assert torch.equal(x, wanted_x) if x.dtype == torch.float16 else assert_near(x, wanted_x) == 0
    return max(share, assert_near(got, wanted))


def check_rotation(given: Inputs) -> float:
    """q and k: a last bit of a norm moves both sums that it is part of, by ulps of the largest value at most."""
    batch, tokens, heads, _, width = given.qkv.shape
    normed = F.rms_norm(given.qkv[..., :2, :], (width,), eps=EPS)
    wanted = rotate(normed, given.cos.unsqueeze(1), given.sin.unsqueeze(1))
    made = vae.norm_rotate(given.qkv.flatten(0, 1), given.cos[:, 0], given.sin[:, 0], EPS)
    got = made.view(2, batch, tokens, heads, width).permute(1, 2, 3, 0, 4)
    off = (got.float() - wanted.float()).abs()
    bound = 4 * torch.finfo(got.dtype).eps
    assert float(off.max()) <= bound * max(1.0, float(wanted.abs().max())), f"{float(off.max()):.1e}"
    share = float((off > 0).float().mean())
    assert share <= 1e-3 or got.dtype == torch.float32, f"{share:.2e} of the elements differ"
    return share


def check_attention(given: Inputs) -> float:
    """Relative L2 of what attention gives, its NaN as zero."""
    wanted = TorchSteps().attend(given.qkv, given.cos, given.sin, EPS)
    got = TritonSteps().attend(given.qkv.clone(), given.cos, given.sin, EPS)
    assert got.shape == wanted.shape
    off = float((got - wanted).float().norm() / wanted.float().norm())
    assert off <= (2e-3 if got.dtype == torch.float16 else 2e-6), f"{off:.1e}"
    return off


def check_nan(given: Inputs) -> None:
    """A value that is NaN reaches one dim of one head in every token: zero there, and nothing else changes."""
    qkv = given.qkv.clone()
    qkv[:, 0, 0, 2, 0] = math.nan
    got = TritonSteps().attend(qkv, given.cos, given.sin, EPS)
    assert torch.isfinite(got).all() and bool((got[..., 0] == 0).all())


def check_gated(given: Inputs, *, exact: bool) -> None:
    """exact: bit for bit, on a device whose exponential is PyTorch's own."""
    got, wanted = TritonSteps().gated(given.gate_and_value), TorchSteps().gated(given.gate_and_value)
    if exact:
        assert torch.equal(got, wanted)
    else:
        # An ulp of silu(gate) is up to two of its product with the value.
        assert_near(got, wanted, ulps=2)


def check_codes(given: Inputs) -> float:
    """What is owed, and results in codes: bit for bit what the linear's rule makes of the values; of a norm, whose sum
    may be added in another order, the share of codes that differ."""
    fused, plain = TritonSteps(), TorchSteps()
    width, inner = given.x.shape[-1], math.prod(given.qkv.shape[2:])
    to_x, to_qkv, to_gate = given.owed.split([width, inner, len(given.owed) - width - inner])
    x, wanted_x = given.x.clone(), given.x.clone()
    _, got = fused.add_norm(x, given.update, given.scale, given.weight, EPS, codes=True, owed=to_x)
    _, wanted = plain.add_norm(wanted_x, given.update, given.scale, given.weight, EPS, codes=True, owed=to_x)
    assert torch.equal(x, wanted_x) if x.dtype == torch.float16 else assert_near(x, wanted_x) == 0
    share = max(
        share_off(got, wanted),
        share_off(fused.norm(x, given.weight, EPS, codes=True), in_codes(plain.norm(x, given.weight, EPS))),
    )
    qkv = given.cos, given.sin, EPS
    values = fused.attend(given.qkv.clone(), *qkv, owed=to_qkv)
    off = float((values - plain.attend(given.qkv, *qkv, owed=to_qkv)).float().norm() / values.float().norm())
    assert off <= 2e-3, f"{off:.1e}"
    assert_same(fused.attend(given.qkv.clone(), *qkv, codes=True, owed=to_qkv), in_codes(values))
    values = fused.gated(given.gate_and_value, owed=to_gate)
    assert_same(fused.gated(given.gate_and_value, codes=True, owed=to_gate), in_codes(values))
    return share


def assert_same(got: RowCodes, wanted: RowCodes) -> None:
    assert torch.equal(got.scale, wanted.scale) and got.dtype == wanted.dtype
    assert torch.equal(got.codes.view(torch.uint8), wanted.codes.view(torch.uint8))


def share_off(got: RowCodes, wanted: RowCodes) -> float:
    """Of codes that differ, by less than the next code is away; scales within an ulp of fp16."""
    torch.testing.assert_close(got.scale, wanted.scale, rtol=2e-3, atol=0)
    one, other = (codes.codes.float() * codes.scale for codes in (got, wanted))
    assert bool(((one - other).abs() <= 0.13 * other.abs() + 2e-2 * wanted.scale).all())
    share = float((got.codes.view(torch.uint8) != wanted.codes.view(torch.uint8)).float().mean())
    assert share <= 0.02, f"{share:.1e} of the codes differ"
    return share
