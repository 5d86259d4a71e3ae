"""Every attention backend that can run on this GPU, against fp32: strided views, ragged rows, the real model's heads.

One whose library isn't here is told with its reason among the figures, not skipped in silence.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from benchmarks.attention import error_of, error_on, layout_of
from benchmarks.attention_inputs import SIZES, Recorded, recorded
from h3runtime.backends.attention.counting import Tally
from h3runtime.backends.attention.facts import device_facts
from h3runtime.backends.attention.options import AttentionOptions, SolOptions
from h3runtime.backends.attention.probe import reference, relative_error
from h3runtime.backends.attention.registry import attention_backends
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.policy import PLAIN, row_of
from h3runtime.errors import BackendUnavailable

pytestmark = pytest.mark.gpu

ROWS = (1000, 4097, 37_810)
HEADS, HEAD_DIM = 56, 128
ERRORS = {
    "sdpa": 0.004,
    "cudnn_sdpa": 0.004,
    "fa4": 0.004,
    "sage2": 0.045,
    "sage1": 0.02,
    "sage3": 0.4,
    "ck_int8": 0.025,
    "cudnn_fp8": 0.075,
    "h3_attn8": 0.05,
    "kj_sage_cuda": 0.02,
    "kj_sage_triton": 0.02,
    "kj_sage_fp8": 0.045,
    "kj_sage_fp8pp": 0.06,
    "kj_head_sliced": 0.045,
}
"""Most relative L2 on random normal numbers: what performance.md measured (sage2 3.8 %, sage1 1.3 %, ck_int8 1.6 %,
cudnn_fp8 6.1 %) and a quarter more for another seed and size; BF16 rounds its result by 2^-9 at most and its
probabilities likewise. `sol_attn` is judged where it reads everything."""
NANO = {
    **dict.fromkeys(("sdpa", "cudnn_sdpa", "fa4"), 0.003),
    **dict.fromkeys(("sage1", "kj_sage_cuda", "kj_sage_triton"), 0.008),
    **dict.fromkeys(("sage2", "kj_sage_fp8", "kj_sage_fp8pp", "kj_head_sliced", "h3_attn8"), 0.02),
    "ck_int8": 0.013,
    "cudnn_fp8": 0.05,
}
"""Most relative L2 on what h3-nano's blocks give at the size that it was trained at: half as much again as was measured
on one H200 (1.7e-3; 4.4 to 4.7e-3; 1.2 to 1.3e-2; 8.6e-3; 3.5e-2)."""
OPTIONS = AttentionOptions(sol=SolOptions(min_tokens=1)).on(PLAIN)


@pytest.fixture(scope="module")
def found(cuda: torch.device) -> Attentions:
    return Attentions(cuda, OPTIONS)


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()


def qkv(device: torch.device, rows: int, heads: int = HEADS, head_dim: int = HEAD_DIM) -> tuple[torch.Tensor, ...]:
    """Views [1, S, H, D] of one projection."""
    made = torch.empty(1, rows, 3, heads, head_dim, dtype=torch.bfloat16, device=device)
    return made.normal_(generator=torch.Generator(device).manual_seed(rows)).unbind(2)


def chosen(found: Attentions, name: str) -> Any:
    try:
        return found.choose(name)[0]
    except BackendUnavailable as error:
        pytest.skip(error.message)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", ERRORS)
def test_it_is_attention(found: Attentions, cuda: torch.device, note: Any, name: str, rows: int) -> None:
    backend = chosen(found, name)
    given = qkv(cuda, rows)
    before = [x[:, ::97].clone() for x in given]
    with torch.no_grad():
        out = backend.attend(*given, layout=layout_of(rows), step=0)
    error = error_of(out, given)
    note(f"{name} S {rows}: error {error:.2e}")
    assert out.shape == given[0].shape and out.dtype is torch.bfloat16
    assert error <= ERRORS[name]
    assert all(torch.equal(x[:, ::97], old) for x, old in zip(given, before, strict=True))


@pytest.fixture(scope="module")
def calls(cuda: torch.device) -> list[Recorded]:
    return recorded(str(cuda), SIZES[0])


@pytest.mark.parametrize("name", NANO)
def test_it_is_attention_on_what_a_model_gives(found: Attentions, calls: list[Recorded], note: Any, name: str) -> None:
    with torch.no_grad():
        error = error_on(chosen(found, name), calls, found.tally)
    note(f"{name} on h3-nano's: error {error}")
    assert error is not None and error <= NANO[name]


@pytest.mark.parametrize("name", ERRORS)
def test_views_and_copies_give_the_same(found: Attentions, cuda: torch.device, name: str) -> None:
    """But for the last bit of k's mean, which is added up in another order."""
    backend = chosen(found, name)
    given = qkv(cuda, 1001, 8)
    with torch.no_grad():
        views = backend.attend(*given, layout=layout_of(1001), step=0)
        copies = backend.attend(*(x.contiguous() for x in given), layout=layout_of(1001), step=0)
    assert relative_error(views, copies.float()) <= 5e-3


@pytest.mark.parametrize("layout", ["contiguous_nhd", "contiguous_hnd"])
def test_sage_gives_the_same_in_every_layout(found: Attentions, cuda: torch.device, layout: Any) -> None:
    chosen(found, "sage2")
    other = Attentions(cuda, AttentionOptions(sage_layout=layout)).choose("sage2")[0]
    given = qkv(cuda, 1001, 8)
    views = found.choose("sage2")[0].attend(*given, layout=None, step=0)
    assert relative_error(other.attend(*given, layout=None, step=0), views.float()) < 1e-3


@pytest.mark.parametrize("name", ["sdpa", "cudnn_sdpa", "fa4", "sage2", "sage1", "ck_int8", "h3_attn8"])
def test_slices_of_heads_are_the_whole(found: Attentions, cuda: torch.device, name: str) -> None:
    """Bit for bit where a kernel has no plan that depends on the number of heads."""
    backend = chosen(found, name)
    sliced = Attentions(cuda, AttentionOptions(slice_backend=name, slice_size=8)).choose("kj_head_sliced")[0]
    given = qkv(cuda, 4097, 16)
    with torch.no_grad():
        pieces, whole = (b.attend(*given, layout=None, step=0) for b in (sliced, backend))
    assert relative_error(pieces, whole.float()) <= 5e-3
    assert torch.equal(pieces, whole) or name not in ("sdpa", "fa4")


def test_sparse_attention_that_reads_everything_is_dense(found: Attentions, cuda: torch.device, note: Any) -> None:
    chosen(found, "sol_attn")
    backend = Attentions(cuda, AttentionOptions(sol=SolOptions(min_tokens=1, tau=-100.0))).choose("sol_attn")[0]
    given = qkv(cuda, 4097, 8)
    error = error_of(backend.attend(*given, layout=layout_of(4097), step=0), given)
    note(f"sol_attn, tau -100: error {error:.2e}")
    assert error <= 0.03


def test_sparse_attention_keeps_the_conditions_exact(found: Attentions, cuda: torch.device) -> None:
    """Rows ahead of the pictures see everything, whatever tau is; the pictures' rows don't."""
    backend = chosen(found, "sol_attn")
    rows = 8192
    given = qkv(cuda, rows, 8)
    out, wanted = backend.attend(*given, layout=layout_of(rows), step=0), reference(*given)
    exact = layout_of(rows).segments[-1].start
    assert relative_error(out[:, :exact], wanted[:, :exact]) <= 0.03 < relative_error(out[:, exact:], wanted[:, exact:])


def test_what_sparse_attention_isn_t_made_for_is_counted(cuda: torch.device) -> None:
    options = AttentionOptions(sol=SolOptions(fallback="sdpa"))
    found = Attentions(cuda, options)
    given = qkv(cuda, 1000, 8)
    chosen(found, "sol_attn").attend(*given, layout=layout_of(1000), step=0)
    assert found.tally.dispatches["sdpa"] == 1 and sum(found.tally.fallbacks.values()) == 1


def test_auto_is_the_first_of_its_row_that_runs(cuda: torch.device, note: Any) -> None:
    found = Attentions(cuda)
    backend, why = found.choose("auto")
    note(f"{backend.name}: {why}")
    facts = device_facts(cuda)
    row = row_of(facts.kind, facts.capability).attention.value
    available = found.listing(backend.name, why).available
    assert backend.name == next(name for name in row if name in available)


def test_what_is_missing_is_told(cuda: torch.device, note: Any) -> None:
    facts = device_facts(cuda)
    for backend in attention_backends(OPTIONS, Tally()):
        why_not = backend.why_unavailable(facts)
        note(f"{backend.name}: {why_not or 'is here'}")
    assert facts.capability == torch.cuda.get_device_capability(cuda)
