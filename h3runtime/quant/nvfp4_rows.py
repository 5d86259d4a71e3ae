"""An activation in NVFP4, as a W4A4 product reads it: codes, block scales in tiles, one scale for all.

    value = E2M1(code) * E4M3(block scale) * tensor_scale          as of a stored weight (`nvfp4`)

Made by the linears themselves (`backends.linear.nvfp4_packing`) or by a producer, by the same rule; read by the linears
of NVFP4 weights. Bytes are those of `nvfp4`: the even column in the high nibble, block scales in the order of `tiles`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from h3runtime.quant.stored import Nvfp4Weight


@dataclass(frozen=True, slots=True)
class Nvfp4Rows:
    """codes uint8 [M', K'/2], block_scale E4M3 [ru(M', 128), ru(K'/16, 4)] in tiles, tensor_scale fp32 [].

    M', K': rows and columns with what padding the packer wants, zeros; without any, M and K. rows: M, the ones that
    mean something. dtype: of what was packed, which the product will have. values [M, K] in `dtype`: what was packed,
    for who else reads it; None where nobody does.
    """

    codes: torch.Tensor
    block_scale: torch.Tensor
    tensor_scale: torch.Tensor
    rows: int
    dtype: torch.dtype
    values: torch.Tensor | None = None

    @property
    def as_weight(self) -> Nvfp4Weight:
        """The same bytes as `nvfp4` decodes them, padding included."""
        shape = self.codes.shape[0], 2 * self.codes.shape[1]
        return Nvfp4Weight(self.codes, self.block_scale, self.tensor_scale, shape)
