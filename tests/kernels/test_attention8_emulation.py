"""What 8-bit attention costs, by its emulation: within the bounds that the kernel's docstring states."""

import pytest
import torch
from h3_kernels.attention8_emulation import emulate, quantized
from torch.nn import functional as F


def made(rows: int, bias: float = 0.0, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v [1, S, 1, 128] bf16; bias: of the keys' channels."""
    source = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, rows, 1, 128, generator=source) for _ in range(3))
    k = k + bias * torch.randn(1, 1, 1, 128, generator=source)
    return q.bfloat16(), k.bfloat16(), v.bfloat16()


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    turned = (x.float().transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*turned).transpose(1, 2)


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.float() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("bias", [0.0, 4.0, 20.0])
def test_the_error_is_the_stated_one_whatever_the_keys_have_in_common(bias: float) -> None:
    q, k, v = made(900, bias)
    off = error(emulate(q, k, v), exact(q, k, v))
    # bf16 keys far from zero are themselves rounded; that is in the inputs of both.
    assert 0.02 < off < 0.04


def test_what_all_values_have_in_common_costs_nothing() -> None:
    """Off comes the mean; what the queries see differently is as exact as it was without one."""
    q, k, v = made(900)
    moved = (v.float() + torch.sign(torch.randn(128, generator=torch.Generator().manual_seed(1)))).bfloat16()
    common = moved.float().mean(1, keepdim=True)
    got, wanted = emulate(q.float(), k.float(), moved.float()), exact(q, k, moved)
    assert error(got - common, wanted - common) < 0.055
    assert error(got, wanted) < 0.003


def test_blocks_are_joined_as_one_softmax() -> None:
    """Blocks change the scales of k and nothing else: with one outlier, its block alone pays."""
    q, k, v = made(500)
    one, many = emulate(q, k, v, keys=512), emulate(q, k, v, keys=64)
    assert error(one, exact(q, k, v)) < 0.04 and error(many, exact(q, k, v)) < 0.04
    k[0, 3] *= 40
    assert error(emulate(q, k, v, keys=64), exact(q, k, v)) < error(emulate(q, k, v, keys=512), exact(q, k, v))


def test_padded_keys_can_be_taken_off_a_row_s_sum() -> None:
    """Smoothed keys score 0 on average, so the largest score isn't below a padded key's."""
    q, k, v = made(300, 9.0)
    held = quantized(q, k, v, keys=256)
    spread = held.k_scales.repeat_interleave(256, 1)[:, :300]
    scores = (held.q @ (held.k * spread.unsqueeze(2)).transpose(1, 2)) * held.q_scales.unsqueeze(2)
    assert float(scores.amax(2).min()) > 0
    assert float(scores.exp2().sum(2).min()) > 300 * 0.99


def test_eight_bits_hold_what_they_should() -> None:
    q, k, v = made(70)
    held = quantized(q, k, v, keys=32)
    assert float(held.q.abs().max()) == 127 == float(held.k.abs().max())
    assert torch.equal(held.q, held.q.round())
    assert float(held.v.abs().max()) == 448
    assert held.k_scales.shape == (1, 3) and held.q_scales.shape == (1, 70) and held.v_scales.shape == (1, 128)


def test_zeros_and_a_lone_row_are_fine() -> None:
    zero = torch.zeros(1, 5, 1, 128, dtype=torch.bfloat16)
    assert torch.equal(emulate(zero, zero, zero), zero)
    q, k, v = made(1)
    assert error(emulate(q, k, v), v.float()) < 0.04
