"""The two backends that hand calls to another: heads in slices, and sparse attention with what it isn't made for."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from h3runtime.backends.attention.base import exact_rows
from h3runtime.backends.attention.counting import Tally
from h3runtime.backends.attention.options import AttentionOptions, SolOptions
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.attention.sol_attn import SolAttention
from h3runtime.errors import BackendUnavailable
from tests.backends.attention.fakes import Recorded, module, qkv
from tests.backends.attention.machines import H200
from tests.denoiser.tiny import layout as tiny_layout

CPU = torch.device("cpu")


@pytest.mark.parametrize("heads", [1, 5, 8, 9])
@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_slices_of_heads_are_the_whole_bit_for_bit(heads: int, size: int, dtype: torch.dtype) -> None:
    found = Attentions(CPU, AttentionOptions(slice_backend="sdpa", slice_size=size))
    given = qkv(333, heads, 32, dtype)
    sliced = found.choose("kj_head_sliced")[0].attend(*given, layout=None, step=0)
    assert torch.equal(sliced, SdpaAttention().attend(*given, layout=None, step=0))
    assert found.tally.dispatches == {"kj_head_sliced": 1, "sdpa": -(-heads // size)}


def test_a_slice_backend_that_can_t_run_is_a_typed_error_that_says_so() -> None:
    with pytest.raises(
        BackendUnavailable, match="H3_HEAD_SLICE_BACKEND=sage2 can't run: needs a CUDA device"
    ) as caught:
        Attentions(CPU).choose("kj_head_sliced")
    assert (caught.value.code, caught.value.offences[0].field) == ("backend_unavailable", "attention")


def sol(options: SolOptions, tally: Tally) -> SolAttention:
    return SolAttention(options, SdpaAttention(), tally)


@pytest.fixture
def function(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    made = Recorded("NHD")
    monkeypatch.setitem(sys.modules, "comfy_kitchen", module("comfy_kitchen", sol_attn=made))
    return made


def test_sparse_attention_keeps_what_conditions_exact(function: Recorded) -> None:
    layout, tally = tiny_layout(), Tally()
    given = qkv(layout.rows, 2, 128)
    sol(SolOptions(tau=1.7, min_tokens=1), tally).attend(*given, layout=layout, step=3)
    (seen,) = function.seen
    start = layout.segments[-1].start
    assert exact_rows(layout) == start > layout.text_rows
    assert seen.arguments == {"tau": 1.7, "sink_blocks": [0, -(-start // 64)], "sink_q": [0, -(-start // 64)]}
    assert seen.q.data_ptr() == given[0].data_ptr()
    assert tally.since(Tally()) == {"dispatches": {"sol_attn": 1}, "fallbacks": []}


def test_its_probe_reads_every_block(function: Recorded) -> None:
    sol(SolOptions(), Tally()).call(*qkv(331, 2, 128))
    assert function.seen[0].arguments["sink_blocks"] == [0, 6]


def test_a_misaligned_view_is_copied(function: Recorded) -> None:
    layout = tiny_layout()
    wide = torch.zeros(1, layout.rows, 2, 129, dtype=torch.bfloat16)
    sol(SolOptions(min_tokens=1), Tally()).attend(*[wide[..., 1:]] * 3, layout=layout, step=0)
    assert function.seen[0].q.is_contiguous()


@pytest.mark.parametrize(
    ("options", "given", "with_layout", "why"),
    [
        ({}, {}, False, "no layout"),
        ({}, {}, True, "rows are below H3_SOL_MIN_TOKENS=4096"),
        ({"min_tokens": 1}, {"head_dim": 64}, True, "heads of 64, not 128"),
        ({"min_tokens": 1}, {"dtype": torch.float32}, True, "torch.float32"),
    ],
)
def test_what_it_isn_t_made_for_is_handed_on_and_counted(
    function: Recorded, options: dict[str, Any], given: dict[str, Any], with_layout: bool, why: str
) -> None:
    layout, tally = tiny_layout(), Tally()
    rows = qkv(layout.rows, 2, **({"head_dim": 128} | given))
    before = tally.look()
    out = sol(SolOptions(**options), tally).attend(*rows, layout=layout if with_layout else None, step=0)
    assert torch.equal(out, SdpaAttention().call(*rows)) and not function.seen
    (fallback,) = tally.since(before)["fallbacks"]
    assert (fallback["backend"], fallback["to"], fallback["count"]) == ("sol_attn", "sdpa", 1)
    assert why in fallback["why"]
    strict = sol(SolOptions(**options, strict=True), tally)
    with pytest.raises(BackendUnavailable, match="H3_SOL_STRICT") as caught:
        strict.attend(*rows, layout=layout if with_layout else None, step=0)
    assert why in caught.value.offences[0].message


def test_rows_that_end_in_no_pictures_are_handed_on_too(function: Recorded) -> None:
    layout, tally = tiny_layout(), Tally()
    rows = qkv(layout.rows, 2, 128)
    cut = replace(layout, segments=layout.segments[:-1])
    out = sol(SolOptions(min_tokens=1), tally).attend(*rows, layout=cut, step=5)
    assert torch.equal(out, SdpaAttention().call(*rows)) and not function.seen
    assert {fallback.why for fallback in tally.fallbacks} == {"its last rows are audio"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"thresh_type": "exact"}, "H3_SOL_THRESH_TYPE=exact can't be had"),
        ({"int8_qk": False}, "H3_SOL_INT8_QK=0 can't be had"),
        ({"int8_pv": False}, "H3_SOL_INT8_PV=0 can't be had"),
    ],
)
def test_what_the_kernel_doesn_t_do_makes_it_unavailable(options: dict[str, Any], why: str) -> None:
    told = sol(SolOptions(**options), Tally()).why_unavailable(H200)
    assert told is not None and why in told
    assert sol(SolOptions(), Tally()).why_unavailable(H200) is None
