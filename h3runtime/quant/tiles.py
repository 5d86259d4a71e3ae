"""The order that block scales are stored in, shared by NVFP4 and MXFP8: cuBLAS's tiles of 128 rows by 4 blocks.

    scale of row r, block c is byte ((r // 128) * CB + c // 4) * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + c % 4
    CB = ceil(blocks / 4)

The stored tensor has the shape of the padded natural matrix, [ru(rows, 128), 4 * CB], and this flat order; padding is 0
(checkpoint-formats §3). One byte a scale: which number the byte stands for is the format's business.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from h3runtime.quant.slices import round_up

TILE_ROWS, TILE_COLUMNS = 128, 4


def tiled_shape(rows: int, blocks: int) -> tuple[int, int]:
    """Natural [rows, blocks] -> shape of the stored scales."""
    return round_up(rows, TILE_ROWS), round_up(blocks, TILE_COLUMNS)


def swizzle(scale: torch.Tensor) -> torch.Tensor:
    """Natural order [rows, blocks], any one-byte dtype -> stored order, `tiled_shape`, same dtype."""
    rows, columns = scale.shape
    raw = F.pad(scale.view(torch.uint8), (0, -columns % TILE_COLUMNS, 0, -rows % TILE_ROWS))
    tiles = raw.reshape(-1, 4, 32, raw.shape[1] // TILE_COLUMNS, TILE_COLUMNS)
    return tiles.permute(0, 3, 2, 1, 4).reshape(raw.shape).view(scale.dtype)


def unswizzle(stored: torch.Tensor, rows: int, blocks: int) -> torch.Tensor:
    """Stored order (whole tiles of rows), any one-byte dtype -> the bytes uint8 [rows, blocks] in natural order."""
    raw = stored.contiguous().view(torch.uint8)
    tiles = raw.reshape(-1, raw.shape[1] // TILE_COLUMNS, 32, 4, TILE_COLUMNS)
    natural = tiles.permute(0, 3, 2, 1, 4).reshape(raw.shape)
    return natural[:rows, :blocks].contiguous()
