"""What the NVFP4 packer does on the host: what it refuses, the room it makes, when it copies. No kernel runs here."""

from typing import Any

import pytest
import torch
from h3_kernels import nvfp4

from h3runtime.quant import tiles


def test_the_room_it_makes_is_that_of_the_tiles() -> None:
    for rows, columns in ((1, 16), (128, 64), (129, 5376), (257, 80)):
        made = nvfp4.empty_packed(rows, columns, torch.ones(1))
        assert made.codes.shape == (rows, columns // 2) and made.codes.dtype == torch.uint8
        assert made.block_scale.shape == tiles.tiled_shape(rows, columns // 16)
        assert made.block_scale.dtype == torch.float8_e4m3fn and made.tensor_scale.shape == ()


def test_rows_are_copied_only_where_the_loads_need_it() -> None:
    wide = torch.zeros(8, 64, dtype=torch.bfloat16)
    for kept in (wide, wide[:, :32], wide[:, 8:40], wide[2:, 16:]):
        assert nvfp4.aligned(kept) is kept
    narrow = torch.zeros(8, 36, dtype=torch.bfloat16)
    for moved in (wide[:, 4:36], narrow[:, :32], wide.t()):
        copy = nvfp4.aligned(moved)
        assert copy is not moved and copy.is_contiguous() and torch.equal(copy, moved)


@pytest.mark.parametrize(
    ("x", "scale", "error", "told"),
    [
        (torch.zeros(4, 32), torch.ones(()), TypeError, "torch.float32; legal: torch.bfloat16, torch.float16"),
        (
            torch.zeros(4, 24).half(),
            torch.ones(()),
            ValueError,
            r"\[4, 24\]; legal: \[M, K\] with K in multiples of 16",
        ),
        (torch.zeros(32).half(), torch.ones(()), ValueError, r"\[32\]; legal: \[M, K\]"),
        (torch.zeros(4, 32).half(), torch.ones(()), ValueError, "x is on cpu; legal: cuda"),
    ],
)
def test_what_it_does_not_take(x: torch.Tensor, scale: torch.Tensor, error: type[Exception], told: str) -> None:
    calls: tuple[Any, ...] = (lambda: nvfp4.tensor_scale(x), lambda: nvfp4.pack(x, scale))
    for call in calls:
        with pytest.raises(error, match=told):
            call()


def test_a_tensor_scale_is_one_number_on_the_same_device() -> None:
    device = torch.device("cpu")
    nvfp4.check_scale(torch.ones(1), device)
    with pytest.raises(TypeError, match=r"float32 \[2\], not one float32"):
        nvfp4.check_scale(torch.ones(2), device)
    with pytest.raises(TypeError, match="float64"):
        nvfp4.check_scale(torch.ones((), dtype=torch.float64), device)
    with pytest.raises(ValueError, match="on meta, x on cpu"):
        nvfp4.check_scale(torch.ones((), device="meta"), device)


@pytest.mark.parametrize(("processors", "blocks"), [(48, 256), (64, 256), (132, 1056), (188, 1504)])
def test_the_walk_over_a_tensor_fits_the_gpu(processors: int, blocks: int) -> None:
    """GB10, what was measured there; an H200; an RTX PRO 6000."""
    assert nvfp4.discovery_blocks(processors) == blocks
