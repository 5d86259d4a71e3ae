"""The rotation, against the digit rule of the contract and the library's matrix and product."""

import pytest
import torch
from comfy_kitchen.tensor import int8_utils as kitchen
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.quant import rotation
from tests.quant.samples import DTYPES, SEEDS, generator, relative_error, same

GROUPS = st.sampled_from([4, 16, 64, 256])
CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [4, 16, 64, 256])
def test_a_sign_is_minus_for_an_odd_number_of_base_4_digits_that_add_up_to_3(size: int) -> None:
    matrix = rotation.hadamard(size, torch.float32, CPU)
    digits = [[(i // 4**d) % 4 for d in range(8)] for i in range(size)]
    for i in range(0, size, 5):
        for j in range(0, size, 3):
            threes = sum(a + b == 3 for a, b in zip(digits[i], digits[j], strict=True))
            assert matrix[i, j] == (-1) ** threes / size**0.5


@pytest.mark.parametrize("size", [4, 16, 64, 256, 1024])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_matrix_is_the_library_s_symmetric_and_its_own_inverse(size: int, dtype: torch.dtype) -> None:
    matrix = rotation.hadamard(size, dtype, CPU)
    assert same(matrix, kitchen._build_hadamard(size, dtype=dtype))
    assert torch.equal(matrix, matrix.T)
    assert torch.equal(matrix.float() @ matrix.float(), torch.eye(size))


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 40), groups=st.integers(1, 5), group=GROUPS, seed=SEEDS, dtype=DTYPES)
def test_a_rotation_is_the_library_s_bit_for_bit(
    rows: int, groups: int, group: int, seed: int, dtype: torch.dtype
) -> None:
    x = torch.randn(rows, groups * group, generator=generator(seed)).to(dtype)
    rotated = rotation.rotate(x, group)
    assert same(rotated, kitchen._rotate_weight(x, kitchen._build_hadamard(group, dtype=dtype), group))
    assert relative_error(rotation.rotate(rotated.float(), group), x) < {4: 1e-6, 2: 5e-3}[x.element_size()]


@pytest.mark.parametrize("group", [-4, 0, 1, 2, 3, 8, 32, 60, 128, 255])
def test_a_group_that_is_no_power_of_4_is_refused(group: int) -> None:
    with pytest.raises(ValueError, match="power of 4"):
        rotation.rotate(torch.ones(1, 256), group)


def test_a_group_that_does_not_divide_the_columns_is_refused() -> None:
    """2 x 96 columns hold three whole groups of 64, but none in a row of its own."""
    with pytest.raises(ValueError, match="divide"):
        rotation.rotate(torch.ones(2, 96), 64)


@pytest.mark.parametrize(
    ("columns", "groups"), [(5376, (4, 16, 64, 256)), (2688, (4, 16, 64)), (100, (4,)), (48, (4, 16)), (6, ())]
)
def test_legal_groups_are_the_powers_of_4_that_divide(columns: int, groups: tuple[int, ...]) -> None:
    assert rotation.legal_groups(columns) == groups
    if groups:
        assert rotation.largest_group(columns) == groups[-1]
    else:
        with pytest.raises(ValueError, match="no power of 4"):
            rotation.largest_group(columns)
