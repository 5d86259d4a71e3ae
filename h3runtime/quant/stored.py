"""Linear weights as a checkpoint stores them: one frozen class per storage format, nothing decoded yet.

`checkpoint` makes them from a file's tensors and per-layer markers; the linear backends turn them into what they keep
resident. The arithmetic of each format is in the module named after it. Nothing here knows a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PlainWeight:
    """weight [N, K] and bias [N] in the file's own floating dtype."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    format: str = "plain"

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
class Int8RowWeight:
    """codes int8 [N, K], scale float32 [N, 1]: value = code * scale, no zero point (checkpoint-formats §5.1)."""

    codes: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None = None
    format: str = "int8_tensorwise"

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]


StoredWeight = PlainWeight | Nvfp4Weight | Int8RowWeight
