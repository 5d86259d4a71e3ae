"""What the owned producer kernels must do, on any device that runs Triton: CUDA, or its interpreter on a CPU.

`test_kernels` calls these at the model's sizes, `interpreted` at tiny ones with ragged widths and strides.
"""

from dataclasses import dataclass

import torch
from h3_kernels import producers

from h3runtime.backends.fused.base import FP8, NormWeight
from h3runtime.backends.fused.definition import TorchProducers, in_codes
from h3runtime.backends.fused.triton import TritonProducers
from h3runtime.denoiser.timeline import RowMap
from h3runtime.quant.fp8 import codes_of

EPS = 1e-5
TORCH = TorchProducers()


@dataclass(frozen=True)
class Size:
    rows: int
    width: int
    heads: int
    head_dim: int
    turning: int
    """Frequencies times axes: half of the dims that turn."""


@dataclass(frozen=True)
class Inputs:
    x: torch.Tensor
    update: torch.Tensor
    table: torch.Tensor
    """[N, 3*width]: its thirds are strided views, as in the model."""
    weight: NormWeight
    qkv: torch.Tensor
    q_norm: NormWeight
    k_norm: NormWeight
    cos: torch.Tensor
    sin: torch.Tensor
    maps: tuple[RowMap, RowMap]
    """The same rows as segments and as an index."""


def inputs(size: Size, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Inputs:
    source = torch.Generator().manual_seed(0)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=source) * scale).to(device, dtype)

    def weight(width: int) -> NormWeight:
        return NormWeight(1 + random(width, scale=0.1), EPS)

    cuts = [0, size.rows // 3, size.rows // 2, size.rows]
    segments = tuple((a, b, row) for a, b, row in zip(cuts, cuts[1:], (2, 0, 4), strict=False))
    index = torch.cat([torch.full((b - a,), row) for a, b, row in segments]).to(device)
    angles = torch.rand(size.rows, size.turning, generator=source) * 6.3
    return Inputs(
        x=random(size.rows, size.width, scale=3.0),
        update=random(size.rows, size.width),
        table=random(5, 3 * size.width, scale=0.3),
        weight=weight(size.width),
        qkv=random(size.rows, 3, size.heads, size.head_dim, scale=2.0),
        q_norm=weight(size.head_dim),
        k_norm=weight(size.head_dim),
        cos=angles.cos().to(device, dtype),
        sin=angles.sin().to(device, dtype),
        maps=(RowMap(segments), RowMap((), index)),
    )


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """At most one element in a thousand by one ulp (architecture.md); the share that differs. bf16, or fp32 to 1e-6."""
    assert torch.isfinite(got).all()
    if got.dtype == torch.float32:
        torch.testing.assert_close(got, wanted, rtol=2e-6, atol=2e-6)
        return 0.0
    off = (got.contiguous().view(torch.int16).int() - wanted.contiguous().view(torch.int16).int()).abs()
    share = float((off > 0).float().mean())
    assert int(off.max()) <= 1, f"{int(off.max())} ulp"
    assert share <= 1e-3, f"{share:.2e} of the elements differ"
    return share


def check_norm_modulate(given: Inputs) -> float:
    """Against the definition's norm within an ulp; modulation of one norm bit for bit; fused = its steps. The share of
    the norm's elements that differ."""
    fused = TritonProducers()
    shift, scale, _ = given.table.chunk(3, -1)
    normed = fused.norm(given.x, given.weight)
    share = assert_near(normed, TORCH.norm(given.x, given.weight))
    for rows in given.maps:
        got = fused.norm_modulate(given.x, given.weight, shift, scale, rows)
        by = producers.Modulation(shift, scale, given.maps[1].index)
        assert torch.equal(got, producers.modulate(normed, by))
        stepped = normed.clone()
        for piece, row in rows.pieces():
            stepped[piece] = stepped[piece] * (1 + scale[row]) + shift[row]
        assert torch.equal(got, stepped)
    return share


def check_fp8(given: Inputs) -> None:
    """Fused FP8 rows are those of the unfused kernels and of the linear's own rule, bit for bit."""
    fused, rows = TritonProducers(), given.maps[0]
    shift, scale, _ = given.table.chunk(3, -1)
    by = producers.Modulation(shift, scale, given.maps[1].index)
    plain = producers.norm_modulate(given.x, given.weight.weight, EPS, by)
    assert_same_rows(producers.norm_modulate_fp8(given.x, given.weight.weight, EPS, by), producers.quantize_rows(plain))
    assert_same_rows(producers.quantize_rows(plain), fp8_rows(plain))
    handed = fused.norm_modulate(given.x, given.weight, shift, scale, rows, codes=FP8)
    own = in_codes(fused.norm_modulate(given.x, given.weight, shift, scale, rows))
    assert torch.equal(handed.scale, own.scale)
    assert torch.equal(handed.codes.view(torch.uint8), own.codes.view(torch.uint8))
    encoded, own = fused.encode(given.update), in_codes(given.update)
    assert torch.equal(encoded.scale, own.scale)
    assert torch.equal(encoded.codes.view(torch.uint8), own.codes.view(torch.uint8))
    for one in (0.01, 3.0):
        scale = torch.tensor(one, device=given.x.device)
        assert torch.equal(
            fused.encode(given.x, scale).codes.view(torch.uint8), codes_of(given.x, scale).view(torch.uint8)
        )
    product = producers.swiglu_(given.x.clone())
    assert_same_rows(producers.swiglu_fp8(given.x), producers.quantize_rows(product))


def fp8_rows(x: torch.Tensor) -> producers.Fp8Rows:
    """`quant.fp8`'s rule with a scale per row, in plain torch."""
    wide = x.float()
    # A true division: by a number, CUDA multiplies with the reciprocal.
    scale = (wide.abs().amax(1, keepdim=True) / torch.full((), 448.0, device=x.device)).clamp(min=1e-30)
    codes = (wide * (1.0 / scale)).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
    return producers.Fp8Rows(codes, scale[:, 0])


def assert_same_rows(got: producers.Fp8Rows, wanted: producers.Fp8Rows) -> None:
    assert torch.equal(got.scales, wanted.scales)
    assert torch.equal(got.codes.view(torch.uint8), wanted.codes.view(torch.uint8))


def check_norm_rotate(given: Inputs) -> float:
    """Rotation alone is the definition's bit for bit; norm and rotation are the two one after the other; v untouched.
    The share of elements in which the norm differs from the definition's."""
    fused = TritonProducers()
    rotary = fused.rotary(given.cos, given.sin)
    normed, unturned, both, wanted = (given.qkv.clone() for _ in range(4))
    weights = given.q_norm.weight, given.k_norm.weight
    producers.norm_only_(normed, *weights, EPS, given.cos.shape[1])
    fused.norm_rotate_(unturned, given.q_norm, given.k_norm, None)
    fused.norm_rotate_(both, given.q_norm, given.k_norm, rotary)
    TORCH.norm_rotate_(wanted, given.q_norm, given.k_norm, None)
    share = assert_near(normed, wanted)
    assert_near(unturned, wanted)
    rotated = rotate(normed, given.cos, given.sin)
    assert torch.equal(both, rotated)
    again = normed.clone()
    producers.rotate_only_(again, given.cos, given.sin)
    assert torch.equal(again, rotated)
    assert torch.equal(both[:, 2], given.qkv[:, 2])
    return share


def rotate(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """q and k turned by the definition, a copy."""
    from h3runtime.backends.fused.definition import rotate_

    out = qkv.clone()
    for part in (0, 1):
        piece = out[:, part].clone()
        rotate_(piece, cos, sin)
        out[:, part] = piece
    return out


def check_swiglu(given: Inputs, *, exact: bool) -> None:
    """exact: bit for bit, on a device whose exponential is PyTorch's own."""
    got, wanted = TritonProducers().swiglu(given.x.clone()), TORCH.swiglu(given.x.clone())
    if exact:
        assert torch.equal(got, wanted)
    else:
        assert_near(got.contiguous(), wanted.contiguous())


def check_gates(given: Inputs) -> None:
    """In place, bit for bit in bf16; in fp32 up to the contraction of the product and the sum."""
    gate = given.table.chunk(3, -1)[2]
    for rows in given.maps:
        wanted = TORCH.add_gated_(given.x.clone(), given.update, gate, rows)
        x = given.x.clone()
        assert TritonProducers().add_gated_(x, given.update, gate, rows) is x
        assert torch.equal(x, wanted) if x.dtype == torch.bfloat16 else assert_near(x, wanted) == 0


def check_gate_and_norm(given: Inputs) -> None:
    """The residual and the norm in one pass are the two kernels one after the other, bit for bit, rows and codes."""
    fused = TritonProducers()
    shift, scale, gate = given.table.chunk(3, -1)
    for rows in given.maps:
        x, added = given.x.clone(), given.x.clone()
        fused.add_gated_(added, given.update, gate, rows)
        wanted = fused.norm_modulate(added, given.weight, shift, scale, rows)
        got = fused.add_gated_norm_modulate(x, given.update, gate, given.weight, shift, scale, rows)
        assert torch.equal(x, added) and torch.equal(got, wanted)
        x = given.x.clone()
        handed = fused.add_gated_norm_modulate(x, given.update, gate, given.weight, shift, scale, rows, codes=FP8)
        own = fused.norm_modulate(added, given.weight, shift, scale, rows, codes=FP8)
        assert torch.equal(x, added) and torch.equal(handed.scale, own.scale)
        assert torch.equal(handed.codes.view(torch.uint8), own.codes.view(torch.uint8))
