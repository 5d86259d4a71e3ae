"""Weights and bit patterns that the tests of several formats share."""

import torch
from hypothesis import strategies as st

from h3runtime.quant import slices

SEEDS = st.integers(0, 2**31)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_weight(rows: int, columns: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values over several orders of magnitude, some of them exactly 0, as well as whole zero blocks."""
    made = generator(seed)
    weight = torch.randn(rows, columns, generator=made)
    weight *= torch.exp2(torch.randint(-9, 3, (rows, 1), generator=made).float())
    weight[torch.rand(rows, columns, generator=made) < 0.1] = 0.0
    weight[:, : 16 * int(torch.randint(0, 2, (), generator=made))] = 0.0
    return weight.to(dtype)


def normal_weight(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """N(0, 0.05), what the contract's error figures were measured on."""
    return torch.randn(rows, columns, generator=generator(seed)) * 0.05


def random_bytes(shape: tuple[int, ...], seed: int, low: int = 0, high: int = 256) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=generator(seed), dtype=torch.uint8)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Same dtype, shape and bits: not even 0 and -0 are alike."""
    return a.dtype is b.dtype and torch.equal(bits(a), bits(b))


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


def rows_of(count: int, columns: int) -> int:
    """SLICE_ELEMENTS for `count` rows a slice."""
    assert count * columns < slices.SLICE_ELEMENTS
    return count * columns
