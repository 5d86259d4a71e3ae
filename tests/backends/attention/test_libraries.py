"""How each library's function is called: its name, its arguments, strides without copies, k left as it was."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from h3runtime.backends.attention.attn8 import H3Attn8Attention
from h3runtime.backends.attention.base import Candidate
from h3runtime.backends.attention.ck_int8 import CkInt8Attention
from h3runtime.backends.attention.cudnn_fp8 import KEPT, CudnnFp8Attention, Quantised
from h3runtime.backends.attention.fa4 import Fa4Attention
from h3runtime.backends.attention.kj_sage import KjSageAttention
from h3runtime.backends.attention.probe import reference, relative_error, why_its_call_fails
from h3runtime.backends.attention.sage import BY_ARCHITECTURE, counts_in_32_bits
from h3runtime.backends.attention.sage1 import Sage1Attention
from h3runtime.backends.attention.sage2 import Sage2Attention
from h3runtime.backends.attention.sage3 import Sage3Attention
from tests.backends.attention.fakes import FakeCudnn, Recorded, attention, module, qkv

FUNCTIONS = (
    "sageattn_qk_int8_pv_fp16_cuda",
    "sageattn_qk_int8_pv_fp16_triton",
    "sageattn_qk_int8_pv_fp8_cuda",
    "sageattn_qk_int8_pv_fp8_cuda_sm90",
)


@pytest.fixture
def sage(monkeypatch: pytest.MonkeyPatch) -> dict[str, Recorded]:
    functions = {name: Recorded() for name in FUNCTIONS}
    monkeypatch.setitem(sys.modules, "sageattention", module("sageattention", **functions))
    return functions


def on(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)


def called(functions: dict[str, Recorded]) -> tuple[str, dict[str, Any]]:
    ((name, one),) = [(name, function.seen) for name, function in functions.items() if function.seen]
    (seen,) = one
    return name, seen.arguments


def right(backend: Candidate, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """The result, which is attention's and contiguous enough for what follows."""
    before = [x.clone() for x in given]
    out = backend.attend(*given, layout=None, step=0)
    assert relative_error(out, reference(*given)) < 0.01
    assert out.shape == given[0].shape and out.dtype is given[0].dtype
    assert all(torch.equal(x, old) for x, old in zip(given, before, strict=True))
    return out


@pytest.mark.parametrize(
    ("capability", "function", "arguments"),
    [
        ((8, 0), FUNCTIONS[0], {"pv_accum_dtype": "fp32"}),
        ((8, 6), FUNCTIONS[1], {}),
        ((8, 9), FUNCTIONS[2], {"pv_accum_dtype": "fp32+fp16"}),
        ((9, 0), FUNCTIONS[3], {"pv_accum_dtype": "fp32+fp32"}),
        ((12, 0), FUNCTIONS[2], {"pv_accum_dtype": "fp32+fp16", "qk_quant_gran": "per_warp"}),
        ((12, 1), FUNCTIONS[2], {"pv_accum_dtype": "fp32+fp16", "qk_quant_gran": "per_warp"}),
    ],
)
def test_sage2_takes_the_kernel_of_the_architecture(
    sage: dict[str, Recorded],
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    function: str,
    arguments: dict[str, str],
) -> None:
    on(monkeypatch, capability)
    right(Sage2Attention(), qkv())
    assert called(sage) == (function, {"tensor_layout": "NHD", **arguments})
    assert len(BY_ARCHITECTURE) == 6


@pytest.mark.parametrize(
    ("name", "capability", "function", "accumulator"),
    [
        ("kj_sage_cuda", (9, 0), FUNCTIONS[0], "fp32"),
        ("kj_sage_cuda", (12, 1), FUNCTIONS[0], "fp32"),
        ("kj_sage_triton", (9, 0), FUNCTIONS[1], None),
        ("kj_sage_fp8", (8, 9), FUNCTIONS[2], "fp32+fp32"),
        ("kj_sage_fp8", (9, 0), FUNCTIONS[3], "fp32+fp32"),
        ("kj_sage_fp8pp", (9, 0), FUNCTIONS[2], "fp32+fp16"),
        ("kj_sage_fp8pp", (12, 0), FUNCTIONS[2], "fp32+fp16"),
    ],
)
def test_kj_sage_calls_one_kernel_by_name(
    sage: dict[str, Recorded],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    capability: tuple[int, int],
    function: str,
    accumulator: str | None,
) -> None:
    on(monkeypatch, capability)
    right(KjSageAttention(name), qkv())
    found, arguments = called(sage)
    assert (found, arguments.get("pv_accum_dtype")) == (function, accumulator)


@pytest.mark.parametrize(
    ("layout", "tensor_layout", "copied"),
    [("strided_nhd", "NHD", False), ("contiguous_nhd", "NHD", True), ("contiguous_hnd", "HND", True)],
)
def test_sage_gets_the_views_themselves_or_the_copies_asked_for(
    sage: dict[str, Recorded], monkeypatch: pytest.MonkeyPatch, layout: Any, tensor_layout: str, copied: bool
) -> None:
    on(monkeypatch, (9, 0))
    given = qkv()
    right(Sage2Attention(layout), given)
    (seen,) = sage[FUNCTIONS[3]].seen
    assert seen.arguments["tensor_layout"] == tensor_layout
    same = [a.data_ptr() == b.data_ptr() for a, b in zip((seen.q, seen.k, seen.v), given, strict=True)]
    assert same == [not copied] * 3
    assert all(x.is_contiguous() for x in (seen.q, seen.k, seen.v)) is copied


@pytest.mark.parametrize(("rows", "fits"), [(37_810, True), (99_700, True), (109_162, False)])
def test_a_view_too_long_for_32_bits_is_copied(rows: int, fits: bool) -> None:
    """Of the real model's projection, 3 x 7168 numbers a row."""
    view = torch.empty(1, device="meta").expand(1, 1).as_strided((1, rows, 56, 128), (0, 21_504, 128, 1))
    assert counts_in_32_bits(view) is fits
    assert counts_in_32_bits(torch.empty(1, rows, 56, 128, device="meta"))


def test_sage1_smooths_a_copy_of_k(monkeypatch: pytest.MonkeyPatch) -> None:
    function = Recorded()
    monkeypatch.setitem(sys.modules, "sageattention", module("sageattention", sageattn=function))
    given = qkv()
    right(Sage1Attention(), given)
    (seen,) = function.seen
    assert seen.arguments == {"tensor_layout": "NHD", "smooth_k": False}
    assert float(seen.k.float().mean(1).abs().max()) < 0.01 < float(given[1].float().mean(1).abs().max())
    assert seen.q.data_ptr() == given[0].data_ptr()


def test_sage3_may_write_to_what_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_place(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k -= k.mean(dim=-2, keepdim=True)
        assert all(x.is_contiguous() for x in (q, k, v))
        return attention(q, k, v, "HND")

    monkeypatch.setitem(sys.modules, "sageattn3", module("sageattn3", sageattn3_blackwell=in_place))
    right(Sage3Attention(), qkv())
    right(Sage3Attention(), qkv(heads=1))


def test_fa4_gives_its_first_result(monkeypatch: pytest.MonkeyPatch) -> None:
    function = Recorded("NHD", wrap=lambda out: (out, None))
    monkeypatch.setitem(sys.modules, "flash_attn", module("flash_attn"))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", module("flash_attn.cute", flash_attn_func=function))
    given = qkv()
    right(Fa4Attention(), given)
    assert function.seen[0].strides[0] == given[0].stride() and function.seen[0].arguments == {}


def test_ck_int8_gets_heads_first_views(monkeypatch: pytest.MonkeyPatch) -> None:
    function = Recorded("HND")
    monkeypatch.setitem(sys.modules, "comfy_kitchen", module("comfy_kitchen", int8_attention=function))
    given = qkv()
    right(CkInt8Attention(), given)
    assert function.seen[0].q.shape == (1, 3, 70, 64) and function.seen[0].q.data_ptr() == given[0].data_ptr()


def test_our_own_kernel_gets_the_views(monkeypatch: pytest.MonkeyPatch) -> None:
    function = Recorded("NHD")
    fake = module("h3_kernels.attention8", attention8=function)
    monkeypatch.setitem(sys.modules, "h3_kernels.attention8", fake)
    given = qkv(head_dim=128)
    right(H3Attn8Attention(), given)
    assert function.seen[0].v.data_ptr() == given[2].data_ptr()


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch) -> FakeCudnn:
    fake = FakeCudnn()
    monkeypatch.setitem(sys.modules, "cudnn", fake)
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=7))
    return fake


@pytest.mark.parametrize(("capability", "out"), [((9, 0), torch.float8_e4m3fn), ((10, 0), torch.bfloat16)])
def test_cudnn_fp8_scales_in_and_out(
    cudnn: FakeCudnn, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], out: torch.dtype
) -> None:
    on(monkeypatch, capability)
    assert why_its_call_fails(CudnnFp8Attention(), torch.device("cpu"), 64) is None
    assert cudnn.streams == [7] and cudnn.built[0].ports["o"].facts["data_type"] is out


@pytest.mark.parametrize("factor", [1e-3, 1.0, 50.0])
def test_cudnn_fp8_doesn_t_depend_on_the_size_of_v_or_the_means_of_k_and_v(
    cudnn: FakeCudnn, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    on(monkeypatch, (9, 0))
    q, k, v = qkv()
    given = q, k + 20, v * factor
    assert relative_error(CudnnFp8Attention().call(*given), reference(*given)) < 0.12
    moved = q, k, (v + 4) * factor
    out, wanted = CudnnFp8Attention().call(*moved), reference(*moved)
    assert relative_error(out - 4 * factor, wanted - 4 * factor) < 0.1, "BF16 alone has 0.04"
    assert len(cudnn.built) == 2


def test_cudnn_fp8_plans_once_a_shape_and_keeps_a_few(cudnn: FakeCudnn, monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, (9, 0))
    backend = CudnnFp8Attention()
    for rows in (16, 16, 16, *range(17, 17 + KEPT)):
        backend.call(*qkv(rows))
    assert len(cudnn.built) == 1 + KEPT and cudnn.built[0].executed == 3
    backend.call(*qkv(16))
    assert len(cudnn.built) == 2 + KEPT


def test_a_tensor_of_zeros_has_a_scale() -> None:
    made = Quantised.of(torch.zeros(1, 2, 1, 16, dtype=torch.bfloat16))
    assert torch.isfinite(made.values.float()).all() and float(made.descale) > 0
