"""What `sparse8` must do, on any device that runs Triton: see `producer_checks`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from h3_kernels import sparse8, sparse8_emulation
from h3_kernels.sparse8 import Launch, Lists, Quantized, attention8_sparse
from torch.nn import functional as F

from tests.gpu.attention8_checks import in_order, relative

Qkv = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """`blocks` of 128 places choose `count` tiles each."""

    batch: int
    rows: int
    heads: int
    blocks: int
    count: int


PLAIN = Launch(plain=True)


def shuffled(rows: int, device: torch.device) -> torch.Tensor:
    return torch.randperm(rows, generator=torch.Generator().manual_seed(rows)).int().to(device)


def check_quantisation(qkv: Qkv, order: torch.Tensor, case: Case) -> tuple[Quantized, Lists]:
    """Codes, scales, means and lists against plain PyTorch; places beyond S are zero.

    q bit for bit. The means of k and v may be added up in another order: then codes at a tie differ by one step.
    """
    got, wanted = sparse8.quantize(*qkv, order, case.blocks), sparse8_emulation.quantized(*qkv, order, case.blocks)
    groups, rows = case.batch * case.heads, case.rows
    q, k = (codes.float().view(groups, -1, 128) for codes in (got.q, got.k))
    v = in_order(got.v.float().view(groups, -1, 128, 64)).transpose(2, 3).reshape(groups, -1, 128)
    assert float(sum(codes[:, rows:].abs().sum() for codes in (q, k, v))) == 0
    assert torch.equal(q[:, :rows], wanted.q) and torch.equal(got.q_scales[:, :rows], wanted.q_scales)
    for codes, expected in ((k, wanted.k), (v, wanted.v)):
        assert float((codes[:, :rows] != expected).float().mean()) < 2e-3
        torch.testing.assert_close(codes[:, :rows], expected, rtol=1 / 8, atol=1)
    for name in ("k_scales", "v_scales"):
        torch.testing.assert_close(getattr(got, name), getattr(wanted, name), rtol=1e-5, atol=1e-30)
    for name in ("q_means", "k_means"):
        torch.testing.assert_close(getattr(got, name), getattr(wanted, name), rtol=1e-5, atol=1e-5)
    # What is put back is less the mean of the very codes, so a code that differs is in it: a step of 32 of 448 in 2,000
    # rows of values about 4 is 1.4e-4. With the mean of the codes it is the mean of v.
    means = [each.v_mean + codes[:, :rows].mean(1) * each.v_scales for each, codes in ((got, v), (wanted, wanted.v))]
    torch.testing.assert_close(*means, rtol=1e-5, atol=1e-5)
    return got, check_lists(got, case)


def check_lists(got: Quantized, case: Case) -> Lists:
    """In each list the tiles that `chosen` gives of the same means, but for one of two that score the same up to the
    order of a sum; then the exact ones."""
    lists = sparse8.keep(got.q_means, got.k_means, case.count, case.rows)
    kept, first = lists.kept.long(), 2 * case.blocks
    last = (case.rows - 1) // 64
    assert lists.keys == case.count * 64 + case.rows - first * 64
    assert kept.shape[2] * 64 - 256 < lists.keys <= kept.shape[2] * 64
    if case.blocks:
        picked, wanted = kept[:, :, : case.count], sparse8_emulation.chosen(got.q_means, got.k_means, case.count)
        assert bool((picked.diff(dim=2) > 0).all()) and int(picked.min()) >= 0 and int(picked.max()) < first
        assert float((picked != wanted).any(2).float().mean()) < 1e-3
        exact = torch.arange(kept.shape[2] - case.count, device=kept.device) + first
        assert torch.equal(kept[:, :, case.count :], exact.clamp(max=last).expand_as(kept[:, :, case.count :]))
    return lists


def check_ties(device: torch.device) -> None:
    """Equal scores, negative ones and some that are far below: what plain PyTorch chooses, for every count."""
    scores = torch.tensor([3.0, -1.0, 0.0, 3.0, -0.0, 90.0, -4e4, 3.0, -1.0, -5e4, 0.0, -2.5])
    q = torch.zeros(2, 12, 128, device=device)
    q[0, :, 0], q[1, :, 0], q[1, ::2, 0] = 1, -1, -3
    k = torch.zeros(2, 12, 128, device=device)
    k[0, :, 0] = k[1, :, 0] = scores.to(device)
    for count in range(1, 13):
        kept = sparse8.keep(q, k, count, 12 * 64 + 5).kept.long()
        assert torch.equal(kept[:, :, :count], sparse8_emulation.chosen(q, k, count)), count
        assert bool((kept[:, :, count:] == 12).all())


def check_attention(qkv: Qkv, case: Case, launch: Launch, *, emulation: float, exact: float = 0.055) -> float:
    """Relative L2 to the emulation over the same lists and to fp32 attention over them, each within its bound, once the
    mean of v is taken off (see `attention8_checks`). Every row is written. Returns the error of the whole."""
    q, _, v = qkv
    order = shuffled(case.rows, q.device)
    made, lists = check_quantisation(qkv, order, case)
    got = torch.full_like(q, torch.nan, memory_format=torch.contiguous_format)
    sparse8.attend_quantized(made, order, lists, got, launch)
    assert bool(torch.isfinite(got).all())
    kept = lists.kept[:, :, : case.count].long()
    codes = sparse8_emulation.quantized(*qkv, order, case.blocks)
    emulated = in_sequence(sparse8_emulation.attend(codes, kept), order, case)
    wanted = under_mask(qkv, order, kept, case)
    common = v.float().mean(1, keepdim=True) * (case.rows > 1)
    ulp = float(wanted.norm() / (wanted - common).norm()) * 2.0**-9  # what rounding to bf16 alone may add
    to_emulation = relative(got - common, emulated - common)
    assert to_emulation < emulation + 2 * ulp, f"{to_emulation:.2e} from the emulation"
    to_exact = relative(got - common, wanted - common)
    assert to_exact < exact + ulp, f"{to_exact:.2%} from fp32 attention"
    return relative(got, wanted)


def in_sequence(attended: torch.Tensor, order: torch.Tensor, case: Case) -> torch.Tensor:
    """[G, S, D] at places -> [B, S, H, D]."""
    out = torch.empty(case.batch, case.rows, case.heads, 128, device=order.device)
    out[:, order.long()] = attended.view(case.batch, case.heads, case.rows, 128).transpose(1, 2)
    return out


def under_mask(qkv: Qkv, order: torch.Tensor, kept: torch.Tensor, case: Case) -> torch.Tensor:
    """fp32 attention [B, S, H, D] of the given inputs over the kept tiles and the exact rows."""
    q, k, v = (x.float().index_select(1, order.long()).transpose(1, 2).flatten(0, 1) for x in qkv)
    start = case.blocks * 128
    reads = torch.ones(len(q), case.rows, case.rows, dtype=torch.bool, device=q.device)
    tiles = torch.zeros(len(q), case.blocks, 2 * case.blocks, dtype=torch.bool, device=q.device)
    if case.blocks:
        tiles.scatter_(2, kept, value=True)
        reads[:, :start, :start] = tiles.repeat_interleave(64, 2).repeat_interleave(128, 1)
    return in_sequence(F.scaled_dot_product_attention(q, k, v, attn_mask=reads), order, case)


def check_degenerate(device: torch.device, launch: Launch | None = None) -> None:
    """Where everything is alike, the result is v: nothing of what fills a turn or a block is in it."""
    zero = torch.zeros(1, 300, 1, 128, dtype=torch.bfloat16, device=device)
    one = zero + 1
    order = shuffled(300, device)
    for q, k in ((zero, zero), (one, zero), (zero, one), (one, one)):
        assert float((attention8_sparse(q, k, one, order, 1, 1, launch) - 1).abs().max()) == 0
