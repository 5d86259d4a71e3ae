import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.backends.fused.definition import rotate_
from h3runtime.denoiser.rope import Rope

FREQS, HEAD = 16, 128


@pytest.fixture(scope="module")
def rope() -> Rope:
    module = Rope(FREQS)
    module.inv_freq.copy_(10_000.0 ** (-torch.arange(FREQS) / FREQS))
    return module


def positions(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-6, 300, size=(rows, 3))


def direct(x: torch.Tensor, ids: np.ndarray) -> torch.Tensor:
    """The definition, one pair at a time, in float64."""
    out = x.double().clone()
    for axis in range(3):
        for k in range(FREQS):
            angle = torch.from_numpy(ids[:, axis]) * 10_000.0 ** (-k / FREQS)
            first, second = axis * FREQS + k, axis * FREQS + k + 3 * FREQS
            c, s = angle.cos()[:, None], angle.sin()[:, None]
            out[..., first] = c * x[..., first] - s * x[..., second]
            out[..., second] = s * x[..., first] + c * x[..., second]
    return out


def test_rotation_is_the_float64_formula(rope: Rope) -> None:
    ids = positions(40)
    x = torch.randn(40, 3, HEAD, generator=torch.Generator().manual_seed(1))
    want = direct(x, ids)
    rotate_(x, *rope(ids, torch.float32))
    # 300 * 2^-24 is the rounding of the largest angle.
    assert (x - want).abs().max() < 1e-4


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), shift=st.floats(0, 50))
def test_products_depend_on_distance_alone(rope: Rope, seed: int, shift: float) -> None:
    source = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, 1, 1, HEAD, generator=source)
    ids = positions(2, seed)
    products = []
    for moved in (ids, ids + shift):
        cos, sin = rope(moved, torch.float32)
        a, b = q.clone(), k.clone()
        rotate_(a, cos[:1], sin[:1])
        rotate_(b, cos[1:], sin[1:])
        products.append(float((a * b).sum()))
    assert products[0] == pytest.approx(products[1], abs=5e-3)


def test_dims_above_the_rotated_ones_pass(rope: Rope) -> None:
    x = torch.randn(5, 2, HEAD)
    before = x.clone()
    rotate_(x, *rope(positions(5), torch.float32))
    assert torch.equal(x[..., 6 * FREQS :], before[..., 6 * FREQS :])
    assert not torch.equal(x[..., : 6 * FREQS], before[..., : 6 * FREQS])


def test_bf16_rounds_tables_products_and_sums(rope: Rope) -> None:
    ids = positions(7)
    x = torch.randn(7, 2, HEAD).bfloat16()
    cos, sin = rope(ids, torch.bfloat16)
    angles = (torch.from_numpy(ids).float()[..., None] * rope.inv_freq).reshape(7, -1)
    assert torch.equal(cos, angles.cos().bfloat16())
    assert torch.equal(sin, angles.sin().bfloat16())
    first, second = x[..., :48].clone(), x[..., 48:96].clone()
    c, s = cos[:, None], sin[:, None]
    rotate_(x, cos, sin)
    assert torch.equal(x[..., :48], (c * first).sub(s * second))
    assert torch.equal(x[..., 48:96], (s * first).add(c * second))


def test_positions_are_rounded_to_fp32_before_they_are_multiplied(rope: Rope) -> None:
    ids = np.full((1, 3), 16_777_217.0)
    cos, _ = rope(ids, torch.float32)
    assert torch.equal(cos[0, 0], torch.tensor(16_777_216.0).cos())


def test_a_view_is_rotated_where_it_lies(rope: Rope) -> None:
    qkv = torch.randn(5, 3, 2, HEAD)
    before = qkv.clone()
    cos, sin = rope(positions(5), torch.float32)
    rotate_(qkv[:, 1], cos, sin)
    alone = before[:, 1].clone()
    rotate_(alone, cos, sin)
    assert torch.equal(qkv[:, 1], alone)
    assert torch.equal(qkv[:, [0, 2]], before[:, [0, 2]])
