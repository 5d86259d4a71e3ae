"""ConvRot: the regular Hadamard matrix that rotates groups of columns before rounding, and the rotation itself.

    H_4 = [[1,1,1,-1],[1,1,-1,1],[1,-1,1,1],[-1,1,1,1]]      H_G = H_4 (x) ... (x) H_4 / sqrt(G), G a power of 4
    rotated = weight viewed [N, K/G, G] @ H_G^T

H_G is symmetric and orthogonal, so rotating twice gives the weight back (checkpoint-formats §4.1); its entries
+-1/sqrt(G) are powers of two, so only the order of the additions can differ between two implementations. Read by the
formats that rotate; which group a file uses stands in its markers. On CUDA the FP32 products must not run in TF32:
the engine switches that off and asserts it.
"""

from __future__ import annotations

from functools import cache

import torch

LARGEST_GROUP = 256
"""The group of the published files, where it divides K (checkpoint-formats §2.6)."""


def legal_groups(columns: int) -> tuple[int, ...]:
    """Powers of 4 from 4 to 256 that divide `columns`, the largest last: it is the one that published files use."""
    return tuple(g for g in (4, 16, 64, LARGEST_GROUP) if columns % g == 0)


def largest_group(columns: int) -> int:
    """Group that published files use for `columns`: 256, or 64 for 2688. Raises ValueError if 4 doesn't divide it."""
    groups = legal_groups(columns)
    if not groups:
        raise ValueError(f"no power of 4 divides {columns} columns, so they can't be rotated")
    return groups[-1]


def rotate(x: torch.Tensor, group: int) -> torch.Tensor:
    """x [..., K] -> same shape, each `group` columns times H^T, in x's dtype. Raises ValueError: an illegal group."""
    matrix = hadamard(group, x.dtype, x.device)
    if x.shape[-1] % group:
        raise ValueError(f"a rotation over {group} columns doesn't divide {x.shape[-1]} columns")
    return (x.reshape(-1, group) @ matrix.T).reshape(x.shape)


@cache
def hadamard(size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """H [size, size]. Kept, because to send the first factor to a device the host waits for it."""
    if size < 4 or size.bit_count() != 1 or size.bit_length() % 2 == 0:
        raise ValueError(f"a rotation's group must be a power of 4, not {size}")
    quarter = torch.tensor([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], dtype=dtype, device=device) / 2
    matrix = quarter
    while len(matrix) < size:
        matrix = torch.kron(matrix, quarter)
    return matrix
