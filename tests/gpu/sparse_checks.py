"""What the sparse kernels must do, on any device that runs Triton: see `producer_checks`."""

from collections.abc import Sequence

import numpy as np
import torch
from h3_kernels import sparse
from h3_kernels.sparse import Launch

from h3runtime.backends.attention.sparse import definition
from h3runtime.backends.attention.sparse.tiles import Tiles, kept_cubes, tile
from h3runtime.packing.layout import pack

LAUNCHES = (Launch(), Launch(keys=64))


def made(
    grid: Sequence[int], heads: int, head_dim: int, dtype: torch.dtype, device: torch.device, text: int = 70
) -> tuple[Tiles, tuple[torch.Tensor, ...]]:
    """Tiles of a clip whose latent grid is T, h, w, and q, k, v as views of one projection."""
    layout = pack(*grid, 5, np.ones(text, dtype=np.int64), [], [])
    source = torch.Generator().manual_seed(layout.rows)
    qkv = torch.randn(1, layout.rows, 3, heads, head_dim, generator=source)
    return tile(layout, device), qkv.to(device, dtype).unbind(2)


def check_means(tiles: Tiles, x: torch.Tensor) -> None:
    """fp32 sums of 64 numbers in another order."""
    got = sparse.pooled(x, tiles.rows, tiles.sizes)
    torch.testing.assert_close(got, definition.pooled(x, tiles.rows, tiles.sizes), rtol=1e-5, atol=1e-6)


def check_attention(tiles: Tiles, qkv: Sequence[torch.Tensor], share: float, launch: Launch, bound: float) -> float:
    """Relative L2 against the definition in fp32 of the same rounded inputs, at most `bound`; rows of no cube stay."""
    q, k, v = qkv
    means = (definition.pooled(x, tiles.rows, tiles.sizes) for x in (q, k))
    kept = definition.chosen(*means, tiles.exact, kept_cubes(share, tiles.cubes))
    got, wanted = torch.full_like(q, 7.0, memory_format=torch.contiguous_format), torch.full(q.shape, 7.0).to(q.device)
    sparse.attend_tiles(q, k, v, tiles.rows, kept, tiles.exact, got, launch)
    definition.attend_tiles(q.float(), k.float(), v.float(), tiles.rows, kept, tiles.exact, wanted)
    assert torch.equal(got[:, : tiles.exact_rows].float(), wanted[:, : tiles.exact_rows])
    cubes = slice(tiles.exact_rows, None)
    error = float((got[:, cubes].float() - wanted[:, cubes]).norm() / wanted[:, cubes].norm())
    assert error <= bound, error
    return error
