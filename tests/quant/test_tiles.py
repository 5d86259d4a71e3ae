"""The stored order of block scales, against the formula of the contract and the library's own rearrangement."""

import torch
from comfy_kitchen.float_utils import from_blocked, to_blocked
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.quant import tiles


def natural(rows: int, blocks: int) -> torch.Tensor:
    return torch.arange(rows * blocks).remainder(251).to(torch.uint8).reshape(rows, blocks)


def test_every_scale_is_where_the_formula_says() -> None:
    rows, columns = 300, 10
    scale = natural(rows, columns)
    stored = tiles.swizzle(scale.view(torch.float8_e4m3fn))
    assert stored.shape == tiles.tiled_shape(rows, columns) == (384, 12)
    assert stored.dtype is torch.float8_e4m3fn
    flat = stored.view(torch.uint8).flatten()
    for r in range(rows):
        for c in range(columns):
            at = ((r // 128) * 3 + c // 4) * 512 + (r % 32) * 16 + (r % 128) // 32 * 4 + c % 4
            assert flat[at] == scale[r, c]
    assert int(flat.long().sum()) == int(scale.long().sum()), "padding isn't zero"


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 400), blocks=st.integers(1, 40))
def test_the_order_is_the_library_s_and_comes_back(rows: int, blocks: int) -> None:
    scale = natural(rows, blocks)
    stored = tiles.swizzle(scale)
    assert stored.shape == tiles.tiled_shape(rows, blocks)
    assert torch.equal(stored, to_blocked(scale, flatten=False))
    assert torch.equal(tiles.unswizzle(stored, rows, blocks), scale)
    assert torch.equal(tiles.unswizzle(stored, rows, blocks), from_blocked(stored, rows, blocks))
