"""The owned Triton kernels in Triton's interpreter, on a CPU: `TRITON_INTERPRET=1 python -m tests.gpu.interpreted`.

Needs an importable Triton 3.6 and no driver; that interpreter needs NumPy below 2.4, which no longer makes a number of
an array with one element. Small ragged shapes; `test_kernels` runs the same checks on a GPU at the model's own. Half a
minute on one core.
"""

import torch
from h3_kernels.attention8 import Tile

from tests.gpu import attention8_checks as attending
from tests.gpu import cnn_checks as cnn
from tests.gpu import producer_checks as producing
from tests.gpu import sparse8_checks as sparse8
from tests.gpu import sparse_checks as sparse
from tests.gpu import vit_checks as vit

SIZES = (
    producing.Size(rows=7, width=48, heads=2, head_dim=32, turning=12),
    producing.Size(rows=5, width=200, heads=3, head_dim=128, turning=48),
    producing.Size(rows=3, width=2100, heads=1, head_dim=16, turning=8),
)
TILE = Tile(queries=16, keys=32)
SHAPES = ((1, 70, 2), (2, 33, 1), (1, 16, 1))
"""Batch, rows, heads: ragged in queries and keys, in keys alone, and whole."""
CASES = (
    sparse8.Case(batch=2, rows=1, heads=1, blocks=0, count=0),
    sparse8.Case(batch=1, rows=331, heads=1, blocks=0, count=0),
    sparse8.Case(batch=1, rows=300, heads=2, blocks=2, count=2),
    sparse8.Case(batch=1, rows=524, heads=1, blocks=3, count=3),
)
"""All exact; an exact block of less than a tile; two exact blocks, and lists that fill one turn and begin another."""
GRIDS = (((5, 8, 10), 2, 32), ((1, 4, 18), 1, 24))
"""Latent frames, height, width, heads, head dim: ragged cubes, and a width that is no power of two."""
VIT_SIZES = (
    vit.Size(batch=2, grid=(1, 2, 3), width=200, heads=3, head_dim=24, feed_forward=40),
    vit.Size(batch=1, grid=(2, 1, 2), width=64, heads=2, head_dim=64, feed_forward=2100),
)
FRAMES = ((2, 32, 3, 6, 10), (1, 96, 1, 5, 4), (1, 64, 2, 33, 40))


def main() -> None:
    device = torch.device("cpu")
    torch.set_num_threads(1)
    for size in SIZES:
        for dtype in (torch.bfloat16, torch.float32):
            given = producing.inputs(size, device, dtype)
            producing.check_norm_modulate(given)
            producing.check_norm_rotate(given)
            producing.check_swiglu(given, exact=False)
            producing.check_gates(given)
            producing.check_gate_and_norm(given)
            producing.check_fp8(given)
    print("producers: right in the interpreter")
    for shape in SHAPES:
        q, k, v = attending.made(*shape, device)
        attending.check_quantisation(q, k, v, TILE)
        attending.check_attention(q, k, v, TILE, emulation=1e-3)
    print("attention8: right in the interpreter")
    for case in CASES:
        qkv = attending.made(case.batch, case.rows, case.heads, device)
        sparse8.check_attention(qkv, case, sparse8.PLAIN, emulation=1e-3)
    sparse8.check_ties(device)
    sparse8.check_degenerate(device)
    print("sparse8: right in the interpreter")
    for grid, heads, head_dim in GRIDS:
        for dtype, bound in ((torch.float32, 1e-6), (torch.bfloat16, 4e-3)):
            tiles, qkv = sparse.made(grid, heads, head_dim, dtype, device)
            sparse.check_means(tiles, qkv[0])
            for launch in sparse.LAUNCHES:
                for share in (1.0, 0.5, 0.01):
                    sparse.check_attention(tiles, qkv, share, launch, bound)
    print("sparse: right in the interpreter")
    for given in VIT_SIZES:
        for dtype in (torch.float16, torch.float32):
            made = vit.inputs(given, device, dtype)
            vit.check_norms(made)
            vit.check_rotation(made)
            vit.check_gated(made, exact=False)
            vit.check_codes(made)
    print("vit: right in the interpreter")
    for frames in FRAMES:
        for dtype in (torch.float16, torch.float32):
            cnn.check(frames, device, dtype)
    print("cnn: right in the interpreter")


if __name__ == "__main__":
    main()
