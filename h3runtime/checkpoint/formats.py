"""The published weight formats, one frozen description each: what a layer's tensors are called, hold and measure.

    [N', K'] = [N, K] rounded up to `tile`        weight [N', K' / per_byte]        sidecars as each one says

Everything that reads or judges a quantised layer goes by this table (checkpoint-formats §2.5, §3, §4), so that a format
is added in one place. The arithmetic of a format is in `quant`. Read by `markers`, `layers`, `assemble`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import torch

Shape = tuple[int, ...]

F32: Final = (torch.float32,)
FLOATS: Final = (torch.float32, torch.bfloat16, torch.float16)
E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
FLOAT8: Final = (E4M3, E5M2)
DEFAULT_ROTATION: Final = 256
"""Group of a rotation whose marker doesn't say (checkpoint-formats §2.5, §4.1)."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What the shapes of sidecars depend on: N', K' of the stored weight in values, and values per group along K."""

    rows: int
    columns: int
    group: int


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A tensor `<layer>.<leaf>` beside the weight.

    shapes:  the legal ones for a weight of that extent.
    signed:  may be negative; everything else may not, and nothing may be NaN or infinite.
    bytes_as: what one-byte storage is read as: some files keep scales as raw U8 (G14).
    """

    leaf: str
    dtypes: tuple[torch.dtype, ...]
    shapes: Callable[[Extent], tuple[Shape, ...]]
    required: bool = True
    signed: bool = False
    bytes_as: torch.dtype | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """One storage of a linear's weight.

    name:      as in markers. short: as in `/ready` and `inspect`.
    weight:    legal dtypes of the stored weight; codes: what it is read as.
    per_byte:  values per stored element.
    tile:      multiples that N and K are padded to.
    multiple:  K is one of this, nothing is padded.
    group:     values per group along K where the marker doesn't say, 0: no groups or fixed ones.
    rotation:  whether a Hadamard rotation was applied along K.
    """

    name: str
    short: str
    weight: tuple[torch.dtype, ...]
    codes: torch.dtype
    sidecars: tuple[Sidecar, ...]
    per_byte: int = 1
    tile: tuple[int, int] = (1, 1)
    multiple: int = 1
    group: int = 0
    rotation: Literal["never", "optional", "always"] = "never"

    def padded(self, shape: Shape) -> tuple[int, int]:
        """[N, K] -> [N', K']."""
        return round_up(shape[0], self.tile[0]), round_up(shape[1], self.tile[1])

    def extent(self, stored: Shape, group: int | None) -> Extent:
        """Of a weight of the stored shape `stored`."""
        return Extent(stored[0], stored[1] * self.per_byte, group or self.group)


def round_up(value: int, to: int) -> int:
    return -(-value // to) * to


def _scalar(_: Extent) -> tuple[Shape, ...]:
    return (), (1,)


def _per_row(extent: Extent) -> tuple[Shape, ...]:
    return ((extent.rows,),)


def _per_row_or_tensor(extent: Extent) -> tuple[Shape, ...]:
    return (extent.rows, 1), (extent.rows,), (), (1,)


def _tiled(block: int) -> Callable[[Extent], tuple[Shape, ...]]:
    """Block scales in cuBLAS's order of 128x4 tiles (§3)."""
    return lambda extent: ((round_up(extent.rows, 128), round_up(extent.columns // block, 4)),)


def _row_groups(extent: Extent) -> tuple[Shape, ...]:
    return ((extent.rows, extent.columns // extent.group),)


def _group_rows(extent: Extent) -> tuple[Shape, ...]:
    return ((extent.columns // extent.group, extent.rows),)


def _inputs(tile: int) -> Callable[[Extent], tuple[Shape, ...]]:
    """[K] for any K that is padded to K'; the model tells which."""
    return lambda extent: tuple((extent.columns - pad,) for pad in range(min(tile, extent.columns)))


def _pre_quant(tile: int = 1) -> Sidecar:
    return Sidecar("pre_quant_scale", FLOATS, _inputs(tile), required=False)


_INPUT_SCALE = Sidecar("input_scale", F32, _scalar, required=False)


def _float8(codes: torch.dtype, short: str) -> Format:
    """One scale per tensor; legacy files hold the codes as U8 bytes (§2.5, §4.3)."""
    return Format(
        name=str(codes).removeprefix("torch."),
        short=short,
        weight=(codes, torch.uint8),
        codes=codes,
        sidecars=(Sidecar("weight_scale", F32, _scalar), _INPUT_SCALE, _pre_quant()),
    )


NVFP4: Final = Format(
    name="nvfp4",
    short="nvfp4",
    weight=(torch.uint8,),
    codes=torch.uint8,
    per_byte=2,
    tile=(16, 16),
    sidecars=(
        Sidecar("weight_scale", (E4M3, torch.uint8), _tiled(16), bytes_as=E4M3),
        Sidecar("weight_scale_2", F32, _scalar),
        _INPUT_SCALE,
        _pre_quant(16),
    ),
)
INT8: Final = Format(
    name="int8_tensorwise",
    short="int8",
    weight=(torch.int8,),
    codes=torch.int8,
    rotation="optional",
    sidecars=(Sidecar("weight_scale", F32, _per_row_or_tensor), _pre_quant()),
)
MXFP8: Final = Format(
    name="mxfp8",
    short="mxfp8",
    weight=(E4M3,),
    codes=E4M3,
    tile=(32, 32),
    sidecars=(
        Sidecar("weight_scale", (torch.uint8, E8M0), _tiled(32), bytes_as=torch.uint8),
        _INPUT_SCALE,
        _pre_quant(32),
    ),
)
"""The scales are E8M0, kept as the bytes they are. ComfyUI takes an `input_scale` here too and has no use for it."""
CONVROT_W4A4: Final = Format(
    name="convrot_w4a4",
    short="w4a4",
    weight=(torch.int8,),
    codes=torch.int8,
    per_byte=2,
    multiple=64,
    rotation="always",
    sidecars=(Sidecar("weight_scale", F32, _per_row),),
)
ASYM_W4A8: Final = Format(
    name="asym_w4a8_int8",
    short="w4a8",
    weight=(torch.int8,),
    codes=torch.int8,
    per_byte=2,
    multiple=16,
    group=16,
    rotation="always",
    sidecars=(
        Sidecar("weight_s_rel", (E4M3, torch.uint8, torch.float32), _row_groups, bytes_as=E4M3),
        Sidecar("weight_s_channel", F32, _per_row),
        Sidecar("weight_codebook", F32, lambda _: ((16,),), required=False, signed=True),
        Sidecar("weight_correction", FLOATS, _group_rows, required=False, signed=True),
    ),
)
"""Rotated whether or not the marker has `convrot`: the format's own reader never asks. Without a codebook the codes are
evenly spaced, code - 8."""
AWQ_W4A16: Final = Format(
    name="awq_w4a16",
    short="awq_w4a16",
    weight=(torch.int8,),
    codes=torch.int8,
    per_byte=2,
    group=64,
    sidecars=(
        Sidecar("weight_scale", FLOATS, _group_rows),
        Sidecar("weight_zeros", FLOATS, _group_rows, signed=True),
    ),
)

FORMATS: Final[Mapping[str, Format]] = {
    form.name: form
    for form in (
        NVFP4,
        INT8,
        _float8(E4M3, "fp8_scaled"),
        _float8(E5M2, "fp8_e5m2_scaled"),
        MXFP8,
        CONVROT_W4A4,
        ASYM_W4A8,
        AWQ_W4A16,
    )
}
ALIASES: Final[Mapping[str, str]] = {"int4_tensorwise": CONVROT_W4A4.name}
"""Other names that forks write (§2.5)."""
LEGAL: Final = ", ".join(("plain", *FORMATS))


def rotations(columns: int) -> tuple[int, ...]:
    """Group sizes that a rotation of K values can have: powers of 4 that divide K (§4.1, G4)."""
    sizes = []
    size = 4
    while size <= columns:
        if columns % size == 0:
            sizes.append(size)
        size *= 4
    return tuple(sizes)
