"""Sparse attention against dense attention under a mask that is built row by row."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from h3runtime.backends.attention.base import Place, attend_at, exact_rows
from h3runtime.backends.attention.counting import Counted, Tally
from h3runtime.backends.attention.probe import relative_error, why_its_call_fails
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.attention.sparse import definition
from h3runtime.backends.attention.sparse.backend import BlockSparseAttention
from h3runtime.backends.attention.sparse.sla_topk import SlaTopkAttention
from h3runtime.backends.attention.sparse.tiles import Tiles, kept_cubes, tile
from h3runtime.backends.attention.sparse.vsa import VsaAttention
from h3runtime.core import PackedLayout
from h3runtime.errors import BackendUnavailable
from tests.backends.attention.fakes import qkv
from tests.denoiser.tiny import layout as tiny_layout

CPU = torch.device("cpu")
SAME = 1e-6
"""fp32: the sums are the same but for their order; 3e-7 was measured at share 1."""


@pytest.fixture(scope="module")
def layout() -> PackedLayout:
    """5 x 7 x 11 rows of pictures in 12 ragged cubes, behind text, two guides, a reference and sound."""
    return tiny_layout(height=14, width=22, frames=5, text=70)


@pytest.fixture(scope="module")
def given(layout: PackedLayout) -> tuple[torch.Tensor, ...]:
    return qkv(layout.rows, 3, 32, torch.float32)


def sparse(share: float, tally: Tally | None = None) -> SlaTopkAttention:
    tally = tally or Tally()
    return SlaTopkAttention("sla", share, SdpaAttention(), tally, Counted(SdpaAttention(), tally))


def sparsely(backend: BlockSparseAttention, given: tuple[torch.Tensor, ...], layout: PackedLayout) -> torch.Tensor:
    return backend.attend(*given, layout=layout, step=5)


def row_mask(tiles: Tiles, given: tuple[torch.Tensor, ...], share: float) -> torch.Tensor:
    """[H, S, S], made anew: which rows each row reads."""
    q, k, _ = (x[0].transpose(0, 1) for x in given)
    held = [rows[rows >= 0].long() for rows in tiles.rows]
    mask = torch.zeros(q.shape[0], q.shape[1], q.shape[1], dtype=torch.bool)
    mask[:, : tiles.exact_rows] = True
    mask[:, :, : tiles.exact_rows] = True
    count = kept_cubes(share, tiles.cubes)
    for head in range(q.shape[0]):
        middle = torch.stack([k[head, rows].mean(0) for rows in held[tiles.exact :]])
        for rows in held[tiles.exact :]:
            for best in (middle @ q[head, rows].mean(0)).topk(count).indices:
                mask[head, rows[:, None], held[tiles.exact + int(best)]] = True
    return mask


@pytest.mark.parametrize("share", [0.75, 0.5, 0.25, 0.01])
def test_it_is_dense_attention_under_its_mask(
    layout: PackedLayout, given: tuple[torch.Tensor, ...], share: float
) -> None:
    mask = row_mask(tile(layout, CPU), given, share)
    q, k, v = (x.transpose(1, 2) for x in given)
    wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
    assert relative_error(sparsely(sparse(share), given, layout), wanted) <= SAME


def test_all_of_it_is_dense_attention(layout: PackedLayout, given: tuple[torch.Tensor, ...]) -> None:
    wanted = SdpaAttention().call(*given)
    assert relative_error(sparsely(sparse(1.0), given, layout), wanted) <= SAME
    rounded = tuple(x.bfloat16() for x in given)
    assert relative_error(sparsely(sparse(1.0), rounded, layout), SdpaAttention().call(*rounded).float()) <= 3e-3


@pytest.mark.parametrize("share", [0.5, 0.01])
def test_what_conditions_and_the_sound_are_exact(
    layout: PackedLayout, given: tuple[torch.Tensor, ...], share: float
) -> None:
    exact, wanted = exact_rows(layout), SdpaAttention().call(*given)
    out = sparsely(sparse(share), given, layout)
    assert relative_error(out[:, :exact], wanted[:, :exact]) <= SAME
    assert relative_error(out[:, exact:], wanted[:, exact:]) > 0.05


def test_no_key_of_what_conditions_is_left_out(layout: PackedLayout, given: tuple[torch.Tensor, ...]) -> None:
    q, k, v = given
    before = sparsely(sparse(0.01), given, layout)
    for row in (0, exact_rows(layout) - 1):
        moved = v.clone()
        moved[:, row] += 1e3
        assert bool((sparsely(sparse(0.01), (q, k, moved), layout) != before).any(-1).all())


def test_each_head_of_each_clip_chooses_for_itself(layout: PackedLayout) -> None:
    both = [torch.randn(2, layout.rows, 2, 16, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    whole = sparsely(sparse(0.3), tuple(both), layout)
    for clip in range(2):
        for head in range(2):
            alone = tuple(x[clip : clip + 1, :, head : head + 1] for x in both)
            part = whole[clip : clip + 1, :, head : head + 1]
            assert relative_error(sparsely(sparse(0.3), alone, layout), part) <= SAME


def test_pieces_are_the_whole(
    layout: PackedLayout, given: tuple[torch.Tensor, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sparsely(sparse(0.5), given, layout)
    monkeypatch.setattr(definition, "PIECE_BYTES", 1)
    assert relative_error(sparsely(sparse(0.5), given, layout), whole) <= SAME


def test_nothing_is_written_to(layout: PackedLayout, given: tuple[torch.Tensor, ...]) -> None:
    before = [x.clone() for x in given]
    sparsely(sparse(0.5), given, layout)
    assert all(torch.equal(x, old) for x, old in zip(given, before, strict=True))


def test_its_probe_passes() -> None:
    assert why_its_call_fails(sparse(0.5), CPU, 128) is None


def test_first_steps_and_blocks_and_strange_sequences_are_dense(
    layout: PackedLayout, given: tuple[torch.Tensor, ...]
) -> None:
    tally = Tally()
    backend, wanted = Counted(sparse(0.5, tally), tally), SdpaAttention().call(*given)
    calls = [
        (layout, 0, Place(3), "one of the first 1 steps"),
        (layout, 1, Place(0), "one of the first 1 blocks"),
        (None, 1, Place(3), "no layout"),
        (replace(layout, latent_frames=4), 1, Place(3), "385 rows are no grid of 4x7x11"),
        (replace(layout, segments=layout.segments[:-1]), 1, Place(3), "its last rows are audio"),
    ]
    for packed, step, place, why in calls:
        before = tally.look()
        assert torch.equal(attend_at(backend, *given, layout=packed, step=step, place=place), wanted)
        told = [{"backend": "sla", "to": "sdpa", "why": why, "count": 1}]
        assert tally.since(before) == {"dispatches": {"sdpa": 1}, "fallbacks": told}
    before = tally.look()
    assert not torch.equal(attend_at(backend, *given, layout=layout, step=1, place=Place(1)), wanted)
    assert tally.since(before) == {"dispatches": {"sla": 1}, "fallbacks": [], "kept_share": {"sla": 0.5}}


def vsa(share: float = 0.1) -> VsaAttention:
    return VsaAttention("vsa", share, SdpaAttention(), Tally())


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_vsa_adds_attention_among_means_times_its_gate(
    layout: PackedLayout, given: tuple[torch.Tensor, ...], share: float
) -> None:
    gate = torch.randn(given[0].shape, generator=torch.Generator().manual_seed(9))
    got = vsa(share).attend_at(*given, layout=layout, step=0, place=Place(0, lambda: gate))
    tiles = tile(layout, CPU)
    held = [rows[rows >= 0].long() for rows in tiles.rows]
    q, k, v = (torch.stack([x[0, rows].mean(0) for rows in held], 1) for x in given)
    coarse = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), -1) @ v
    wanted = sparsely(sparse(share), given, layout)
    for index, rows in enumerate(held):
        wanted[0, rows] += coarse[:, index] * gate[0, rows]
    assert relative_error(got, wanted) <= SAME


def test_vsa_without_its_layer_is_refused(layout: PackedLayout, given: tuple[torch.Tensor, ...]) -> None:
    for place in (None, Place(4)):
        with pytest.raises(BackendUnavailable, match="this block has no to_gate_compress") as caught:
            vsa().attend_at(*given, layout=layout, step=3, place=place)
        assert caught.value.offences[0].field == "attention"


def test_what_it_takes_beside_its_tensors_grows_as_the_source_says() -> None:
    """S = 37,810 at the real sizes: copies 2.2 GB on the CPU, the kept tiles' numbers among 1,186 at most."""
    few, many = (sparse(share).workspace_bytes(37_810, 56, 128) for share in (0.1, 0.75))
    assert many - few == pytest.approx(0.65 * (4 * 56 * 1186 * 1186 + 7 * definition.PIECE_BYTES), rel=0.01)
    values = 37_810 * 56 * 128
    assert few < values and 4 * values < vsa().workspace_bytes(37_810, 56, 128) < 5 * values
    assert sparse(0.1).host_bytes(37_810, 56, 128) == 8 * values + 2 * definition.PIECE_BYTES


def test_a_short_sequence_takes_no_whole_piece() -> None:
    assert sparse(0.75).workspace_bytes(193, 2, 128) + sparse(0.75).host_bytes(193, 2, 128) < 11 * 2**20
