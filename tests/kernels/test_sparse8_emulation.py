"""What 8-bit block-sparse attention costs, by its emulation, beside fp32 attention over the same keys."""

import pytest
import torch
from h3_kernels.attention8_emulation import emulate
from h3_kernels.sparse8_emulation import attention8_sparse, chosen, quantized
from torch.nn import functional as F

Qkv = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def made(rows: int, bias: float = 0.0, batch: int = 1, heads: int = 1) -> Qkv:
    """q, k, v [B, S, H, 128]; bias: of the channels of k and v."""
    source = torch.Generator().manual_seed(rows)
    q, k, v = (torch.randn(batch, rows, heads, 128, generator=source) for _ in range(3))
    k, v = (x + bias * torch.randn(1, 1, heads, 128, generator=source) for x in (k, v))
    return q, k, v


def shuffled(rows: int) -> torch.Tensor:
    return torch.randperm(rows, generator=torch.Generator().manual_seed(rows)).int()


def over(qkv: Qkv, order: torch.Tensor, kept: torch.Tensor, blocks: int) -> torch.Tensor:
    """fp32 attention, block after block, over the rows of the kept tiles and the exact ones; B = H = 1."""
    q, k, v = (x[0, :, 0] for x in qkv)
    rows, out = order.long(), torch.empty_like(q)
    exact = rows[blocks * 128 :]
    for block in range(blocks):
        read = torch.cat([*(rows[tile * 64 : tile * 64 + 64] for tile in kept[0, block].tolist()), exact])
        asked = rows[block * 128 : block * 128 + 128]
        out[asked] = F.scaled_dot_product_attention(q[asked][None], k[read][None], v[read][None])[0]
    out[exact] = F.scaled_dot_product_attention(q[exact][None], k[None], v[None])[0]
    return out[None, :, None]


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("bias", [0.0, 4.0, 20.0])
@pytest.mark.parametrize(("blocks", "count"), [(5, 10), (5, 4), (3, 1)])
def test_the_error_is_that_of_8_bits_whatever_keys_and_values_have_in_common(
    blocks: int, count: int, bias: float
) -> None:
    qkv, order = made(700, bias), shuffled(700)
    held = quantized(*qkv, order, blocks)
    kept = chosen(held.q_means, held.k_means, count)
    common = qkv[2].mean(1, keepdim=True)
    got, wanted = attention8_sparse(*qkv, order, blocks, count), over(qkv, order, kept, blocks)
    assert 0.02 < error(got - common, wanted - common) < 0.055


def test_with_every_tile_kept_it_is_dense_8_bit_attention_of_any_order() -> None:
    q, k, v = made(700, batch=2, heads=3)
    wide, order = emulate(q, k, v), shuffled(700)
    for blocks, count in ((0, 0), (5, 10)):
        assert error(attention8_sparse(q, k, v, order, blocks, count), wide) < 0.04


def test_a_result_lies_where_its_query_did() -> None:
    """A query of zeros sees the mean of what it reads, which no other one does."""
    q, k, v = made(300)
    q[:, 7] = 0
    away = (attention8_sparse(q, k, v, shuffled(300), 2, 4) - v.mean(1, keepdim=True)).norm(dim=3).flatten()
    assert int(away.argmin()) == 7 and float(away[7]) < 0.05 * float(v.mean(1).norm()) < float(away.sort().values[1])


def test_the_tiles_of_most_weight_are_chosen_and_of_equal_ones_the_first() -> None:
    q = torch.zeros(1, 4, 128)
    q[0, :, 0] = torch.tensor([1.0, 1.0, -1.0, -1.0])
    k = torch.zeros(1, 4, 128)
    k[0, :, 0] = torch.tensor([2.0, 5.0, 2.0, 1.0])
    assert chosen(q, k, 2).tolist() == [[[0, 1], [0, 3]]]
    assert chosen(q, k, 3).tolist() == [[[0, 1, 2], [0, 2, 3]]]


def test_both_halves_of_a_block_have_their_say() -> None:
    """Weights, not scores: a half whose scores are large is worth no more than the other one."""
    q, k = torch.zeros(1, 2, 128), torch.zeros(1, 2, 128)
    q[0, 0, 0], q[0, 1, 1] = 100, 20
    k[0, 0, 0], k[0, 1, 0], k[0, 1, 1] = 1, 0.9, 5
    k = torch.cat([k, torch.zeros(1, 2, 128)], 1)
    q = torch.cat([q, q], 1)
    weights = torch.softmax(q @ k.transpose(1, 2) / 128**0.5, 2)
    together = weights[:, 0] + weights[:, 1]
    for count in (1, 2):
        wanted = together.topk(count, 1).indices.sort(1).values
        assert torch.equal(chosen(q, k, count)[:, 0], wanted)
    assert int(chosen(q, k, 1)[0, 0]) == 1 and float(q[0, 0] @ k[0, 0]) > float(q[0, 0] @ k[0, 1])


def test_what_weighs_next_to_nothing_keeps_its_order() -> None:
    q, k = torch.zeros(1, 4, 128), torch.zeros(1, 4, 128)
    q[..., 0] = 1
    k[0, :, 0] = torch.tensor([-9e4, -4e4, 1e4, -5e4])
    assert chosen(q, k, 2)[0, 0].tolist() == [1, 2] and chosen(q, k, 3)[0, 0].tolist() == [1, 2, 3]


def test_means_are_those_of_tiles() -> None:
    qkv, order = made(300, heads=2), shuffled(300)
    held = quantized(*qkv, order, 2)
    for means, x in ((held.q_means, qkv[0]), (held.k_means, qkv[1])):
        placed = x[0, order.long()].transpose(0, 1)
        assert means.shape == (2, 4, 128)
        for tile in range(4):
            torch.testing.assert_close(means[:, tile], placed[:, tile * 64 : tile * 64 + 64].mean(1))


def test_zeros_and_a_lone_row_are_fine() -> None:
    zero = torch.zeros(1, 300, 1, 128)
    assert torch.equal(attention8_sparse(zero, zero, zero, shuffled(300), 2, 1), zero)
    q, k, v = made(1)
    assert error(attention8_sparse(q, k, v, shuffled(1), 0, 0), v) < 0.04
