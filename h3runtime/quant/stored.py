"""Linear weights as a checkpoint stores them: one frozen class per storage format, nothing decoded yet.

`checkpoint` makes them from a file's tensors and per-layer markers; the linear backends turn them into what they keep
resident. The arithmetic of each format is in the module named after it. Nothing here knows a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PlainWeight:
    """weight [N, K] and bias [N] in the file's own floating dtype, or in the one that a backend decoded to.

    pre_quant_scale: of a weight that was stored with one, as in `Nvfp4Weight`.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    format: str = "plain"
    pre_quant_scale: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]


@dataclass(frozen=True, slots=True)
class Nvfp4Weight:
    """E2M1 codes with E4M3 scales of 16 and an FP32 tensor scale (checkpoint-formats §3).

    codes:        uint8 [ru(N,16), ru(K,16)/2], even column in the high nibble.
    block_scale:  float8_e4m3fn [ru(N',128), ru(K'/16,4)], swizzled in 128x4 tiles.
    tensor_scale: float32 [].
    pre_quant_scale: [K], multiplies the activation (AWQ), or None.
    input_scale:  float32 [] static activation scale, or None.
    full_precision: the marker forbids quantising the activation.
    """

    codes: torch.Tensor
    block_scale: torch.Tensor
    tensor_scale: torch.Tensor
    shape: tuple[int, int]
    bias: torch.Tensor | None = None
    pre_quant_scale: torch.Tensor | None = None
    input_scale: torch.Tensor | None = None
    full_precision: bool = False
    format: str = "nvfp4"


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """codes int8 [N, K], scale float32 [N, 1]: value = code * scale, no zero point (checkpoint-formats §4.1, §5.1).

    convrot: size G of the groups along K that a Hadamard rotation was applied to before rounding, or None.
    pre_quant_scale, full_precision: as in `Nvfp4Weight`.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None = None
    convrot: int | None = None
    pre_quant_scale: torch.Tensor | None = None
    full_precision: bool = False
    format: str = "int8_tensorwise"

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]


@dataclass(frozen=True, slots=True)
class Fp8Weight:
    """codes float8_e4m3fn or float8_e5m2 [N, K], scale float32 []: value = code * scale (checkpoint-formats §4.3).

    input_scale: float32 [] static activation scale, or None.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None = None
    pre_quant_scale: torch.Tensor | None = None
    input_scale: torch.Tensor | None = None
    full_precision: bool = False

    @property
    def format(self) -> str:
        return str(self.codes.dtype).removeprefix("torch.")

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]


@dataclass(frozen=True, slots=True)
class Mxfp8Weight:
    """E4M3 codes with one power-of-two scale per 32 (checkpoint-formats §2.5).

    codes:       float8_e4m3fn [ru(N,32), ru(K,32)].
    block_scale: uint8 or float8_e8m0fnu (E8M0 bytes) [ru(N',128), ru(K'/32,4)], swizzled like NVFP4's.
    """

    codes: torch.Tensor
    block_scale: torch.Tensor
    shape: tuple[int, int]
    bias: torch.Tensor | None = None
    pre_quant_scale: torch.Tensor | None = None
    full_precision: bool = False
    format: str = "mxfp8"


@dataclass(frozen=True, slots=True)
class ConvrotInt4Weight:
    """Signed 4-bit codes int8 [N, K/2] of a rotated weight, scale float32 [N] (checkpoint-formats §2.5).

    convrot: group of the rotation, which this format always has; 256 where the marker names none.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    convrot: int
    bias: torch.Tensor | None = None
    full_precision: bool = False
    format: str = "convrot_w4a4"

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1] * 2


@dataclass(frozen=True, slots=True)
class AsymInt4Weight:
    """Codes into 16 levels, relative scales of `group` and a scale per row, rotated (checkpoint-formats §2.5).

    codes:          int8 [N, K/2], or [N, 3K/4] for 6-bit codes (see `asym_w4a8`).
    relative_scale: float8_e4m3fn (or its uint8 bytes) or float32 [N, K/group].
    channel_scale:  float32 [N].
    codebook:       float32 [16] ascending, or None for evenly spaced levels.
    correction:     [K/group, N], or None.
    convrot:        group of the rotation, which this format always has; 256 where the marker names none.
    """

    codes: torch.Tensor
    relative_scale: torch.Tensor
    channel_scale: torch.Tensor
    codebook: torch.Tensor | None
    correction: torch.Tensor | None = None
    convrot: int = 256
    bias: torch.Tensor | None = None
    full_precision: bool = False
    group: int = 16
    format: str = "asym_w4a8_int8"

    @property
    def shape(self) -> tuple[int, int]:
        return self.relative_scale.shape[0], self.relative_scale.shape[1] * self.group


@dataclass(frozen=True, slots=True)
class AwqInt4Weight:
    """Unsigned 4-bit codes int8 [N, K/2], scale and zeros floating [K/G, N] (checkpoint-formats §2.5)."""

    codes: torch.Tensor
    scale: torch.Tensor
    zeros: torch.Tensor
    bias: torch.Tensor | None = None
    full_precision: bool = False
    format: str = "awq_w4a16"

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1] * 2


StoredWeight = (
    PlainWeight
    | Nvfp4Weight
    | Int8Weight
    | Fp8Weight
    | Mxfp8Weight
    | ConvrotInt4Weight
    | AsymInt4Weight
    | AwqInt4Weight
)
