"""`sla8_topk` by its emulation: what it reads, what stays exact, which calls it gives away and to whom."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from h3runtime.backends.attention.attn8 import H3Attn8Attention
from h3runtime.backends.attention.base import Place, attend_at, exact_rows
from h3runtime.backends.attention.counting import Counted, Tally
from h3runtime.backends.attention.probe import relative_error, why_its_call_fails
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.attention.sparse import sla8_topk
from h3runtime.backends.attention.sparse.order import Order, order
from h3runtime.backends.attention.sparse.sla8_topk import Sla8TopkAttention
from h3runtime.backends.attention.sparse.tiles import kept_cubes
from h3runtime.core import PackedLayout
from tests.backends.attention.fakes import qkv
from tests.denoiser.tiny import layout as tiny_layout

CPU = torch.device("cpu")
EIGHT_BITS = 0.055
"""Of random numbers, 3.7 to 5 % of what a softmax over few keys leaves of them."""
Qkv = tuple[torch.Tensor, ...]


@pytest.fixture(scope="module")
def layout() -> PackedLayout:
    """9 x 8 x 11 rows of pictures in 12 tiles and 24 rows more, behind text, two guides, a reference and sound."""
    return tiny_layout(height=16, width=22, frames=9, text=70)


@pytest.fixture(scope="module")
def given(layout: PackedLayout) -> Qkv:
    return qkv(layout.rows, 2, 128, torch.bfloat16)


def sparse(share: float, tally: Tally | None = None) -> Sla8TopkAttention:
    tally, dense, eight = tally or Tally(), SdpaAttention(), H3Attn8Attention()
    return Sla8TopkAttention("sla8", share, dense, eight, tally, Counted(dense, tally), Counted(eight, tally))


def sparsely(backend: Sla8TopkAttention, given: Qkv, layout: PackedLayout) -> torch.Tensor:
    return backend.attend(*given, layout=layout, step=5)


def row_mask(placed: Order, given: Qkv, share: float) -> torch.Tensor:
    """[H, S, S], made anew: which rows each row reads."""
    q, k, _ = (x[0].float().transpose(0, 1) for x in given)
    rows = placed.rows.long()
    tiles = rows[: placed.tiles * 64].view(placed.tiles, 64)
    exact = rows[placed.tiles * 64 :]
    mask = torch.zeros(q.shape[0], len(rows), len(rows), dtype=torch.bool)
    mask[:, exact] = True
    mask[:, :, exact] = True
    for head in range(q.shape[0]):
        middle = torch.stack([k[head, tile].mean(0) for tile in tiles])
        for queries in rows[: placed.blocks * 128].view(placed.blocks, 128):
            halves = torch.stack([q[head, half].mean(0) for half in queries.view(2, 64)])
            weight = torch.softmax(halves @ middle.T / math.sqrt(128), 1).sum(0)
            best = weight.topk(kept_cubes(share, placed.tiles)).indices
            mask[head, queries[:, None], tiles[best].flatten()] = True
    return mask


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25, 0.01])
def test_it_is_attention_under_its_mask_in_8_bits(layout: PackedLayout, given: Qkv, share: float) -> None:
    mask = row_mask(order(layout, CPU), given, share)
    q, k, v = (x.float().transpose(1, 2) for x in given)
    wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
    got = sparsely(sparse(share), given, layout)
    assert got.dtype == torch.bfloat16 and relative_error(got, wanted) <= EIGHT_BITS


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_what_conditions_and_the_sound_are_exact(layout: PackedLayout, given: Qkv, share: float) -> None:
    exact, wanted = exact_rows(layout), SdpaAttention().call(*given).float()
    out = sparsely(sparse(share), given, layout)
    assert relative_error(out[:, :exact], wanted[:, :exact]) <= EIGHT_BITS
    assert relative_error(out[:, exact:], wanted[:, exact:]) > 4 * EIGHT_BITS


def test_no_key_of_what_conditions_is_left_out(layout: PackedLayout, given: Qkv) -> None:
    """Keys that all queries prefer by far are read by all, wherever they lie among the exact rows."""
    q, k, v = (x.clone() for x in given)
    q[..., 0] = 8
    for row in (0, exact_rows(layout) // 2, exact_rows(layout) - 1):
        preferred, moved = k.clone(), v.clone()
        preferred[:, row, :, 0] = 64
        moved[:, row] = 3
        out = sparsely(sparse(0.01), (q, preferred, moved), layout)
        assert float((out.float() - 3).abs().max()) < 3 / 16 + 0.02, "E4M3 rounds to a sixteenth at most"


def test_a_clip_and_a_head_choose_for_themselves(layout: PackedLayout) -> None:
    both = [
        torch.randn(2, layout.rows, 2, 128, generator=torch.Generator().manual_seed(i)).bfloat16() for i in range(3)
    ]
    whole = sparsely(sparse(0.3), tuple(both), layout)
    for clip in range(2):
        for head in range(2):
            alone = tuple(x[clip : clip + 1, :, head : head + 1] for x in both)
            part = whole[clip : clip + 1, :, head : head + 1].float()
            assert relative_error(sparsely(sparse(0.3), alone, layout), part) <= 1e-3


def test_nothing_is_written_to(layout: PackedLayout, given: Qkv) -> None:
    before = [x.clone() for x in given]
    sparsely(sparse(0.5), given, layout)
    assert all(torch.equal(x, old) for x, old in zip(given, before, strict=True))


def test_its_probe_passes() -> None:
    assert why_its_call_fails(sparse(0.5), CPU, 128) is None


def test_first_steps_and_blocks_and_strange_sequences_are_dense(layout: PackedLayout, given: Qkv) -> None:
    tally = Tally()
    backend, wanted = Counted(sparse(0.5, tally), tally), SdpaAttention().call(*given)
    few = tiny_layout(height=16, width=14, frames=2)
    calls = [
        (layout, 0, Place(3), "one of the first 1 steps"),
        (layout, 1, Place(0), "one of the first 1 blocks"),
        (None, 1, Place(3), "no layout"),
        (replace(layout, latent_frames=4), 1, Place(3), "792 rows are no grid of 4x8x11"),
        (few, 1, Place(3), "112 rows of pictures are below 128"),
    ]
    for packed, step, place, why in calls:
        before = tally.look()
        assert torch.equal(attend_at(backend, *given, layout=packed, step=step, place=place), wanted)
        told = [{"backend": "sla8", "to": "sdpa", "why": why, "count": 1}]
        assert tally.since(before) == {"dispatches": {"sdpa": 1}, "fallbacks": told}
    before = tally.look()
    assert not torch.equal(attend_at(backend, *given, layout=layout, step=1, place=Place(1)), wanted)
    assert tally.since(before) == {"dispatches": {"sla8": 1}, "fallbacks": [], "kept_share": {"sla8": 0.5}}


def test_dense_calls_are_of_8_bits_where_the_kernels_run(
    layout: PackedLayout, given: Qkv, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally()
    monkeypatch.setattr(H3Attn8Attention, "call", lambda _, q, k, v: q + k + v)
    monkeypatch.setattr(sla8_topk, "in_kernels", lambda _: True)
    assert torch.equal(sparse(0.5, tally).attend(*given, layout=layout, step=0), sum(given[1:], given[0]))
    assert tally.dispatches == {"h3_attn8": 1}
    assert {(f.backend, f.to) for f in tally.fallbacks} == {("sla8", "h3_attn8")}


def test_an_order_is_made_once_a_layout(layout: PackedLayout, given: Qkv, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(sla8_topk, "order", lambda *args: made.append(args) or order(*args))
    backend = sparse(0.5)
    for packed in (layout, layout, replace(layout), layout):
        sparsely(backend, given, packed)
    assert len(made) == 3
