"""Sparse attention on CUDA: the kernels against the definition, and both methods as requests call them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.attention import CANONICAL_ROWS, STEP, layout_of, timed
from h3runtime.backends.attention.base import Place, exact_rows
from h3runtime.backends.attention.options import AttentionOptions
from h3runtime.backends.attention.probe import reference, relative_error
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.attention.sparse.sla8_topk import name_of as name8_of
from h3runtime.backends.attention.sparse.sla_topk import PERCENTS, name_of
from h3runtime.backends.attention.sparse.vsa import VsaAttention
from h3runtime.core import PackedLayout
from h3runtime.packing.layout import pack
from tests.gpu.conftest import Note
from tests.gpu.test_waiting import no_waiting

pytestmark = pytest.mark.gpu

GRIDS = ((13, 22, 38), (1, 4, 18), (7, 16, 16))
"""Latent frames, height, width; ragged, and whole but for the frames."""
BF16 = 4e-3
"""Relative L2 of one rounding of P and one of the result; the interpreter gives 2.3e-3."""


@pytest.fixture(scope="module")
def checks(cuda: torch.device) -> Any:  # noqa: ARG001  # Triton is there only where a GPU is
    return import_module("tests.gpu.sparse_checks")


@pytest.fixture(scope="module")
def hopper(cuda: torch.device) -> torch.device:
    if torch.cuda.get_device_capability(cuda) != (9, 0):
        pytest.skip("no GPU of SM 9.0")
    return cuda


@pytest.fixture(scope="module")
def checks8(hopper: torch.device) -> Any:  # noqa: ARG001
    return import_module("tests.gpu.sparse8_checks")


@pytest.fixture(scope="module")
def attending(hopper: torch.device) -> Any:  # noqa: ARG001
    return import_module("tests.gpu.attention8_checks")


@pytest.fixture(scope="module")
def found(cuda: torch.device) -> Attentions:
    return Attentions(cuda, AttentionOptions())


def layout(grid: tuple[int, int, int]) -> PackedLayout:
    return pack(*grid, 5, np.ones(70, dtype=np.int64), [], [])


def qkv(rows: int, heads: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    made = torch.empty(1, rows, 3, heads, 128, dtype=torch.bfloat16, device=device)
    return made.normal_(generator=torch.Generator(device).manual_seed(rows)).unbind(2)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
@pytest.mark.parametrize("head_dim", [128, 64, 24])
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_the_kernels_are_the_definition(
    cuda: torch.device, checks: Any, note: Note, grid: tuple[int, int, int], head_dim: int, share: float
) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        tiles, given = checks.made(grid, 3, head_dim, dtype, cuda)
        checks.check_means(tiles, given[0])
        errors = [checks.check_attention(tiles, given, share, launch, BF16) for launch in (*checks.LAUNCHES, None)]
        note(f"{grid} D {head_dim} share {share} {dtype}: {max(errors):.1e}")


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_fp32_runs_the_definition(found: Attentions, cuda: torch.device, grid: tuple[int, int, int]) -> None:
    packed = layout(grid)
    given = [x.float() for x in qkv(packed.rows, 2, cuda)]
    one, other = (
        found.choose("sla_topk_50")[0].attend(*(x.to(device) for x in given), layout=packed, step=STEP)
        for device in (cuda, torch.device("cpu"))
    )
    assert relative_error(one.cpu(), other) <= 1e-5


@pytest.mark.parametrize("percent", PERCENTS)
def test_what_conditions_is_exact(found: Attentions, cuda: torch.device, percent: int) -> None:
    packed = layout(GRIDS[0])
    given = qkv(packed.rows, 4, cuda)
    out = found.choose(name_of(percent))[0].attend(*given, layout=packed, step=STEP)
    exact, wanted = exact_rows(packed), reference(*given)
    assert relative_error(out[:, :exact], wanted[:, :exact]) <= BF16 < relative_error(out[:, exact:], wanted[:, exact:])


CASES8 = (
    (1, 1, 1, 0, 0),
    (1, 331, 2, 0, 0),
    (1, 200, 2, 1, 1),
    (2, 1031, 3, 7, 4),
    (1, 2000, 2, 15, 30),
    (1, 3000, 2, 20, 9),
    (1, 4100, 2, 32, 6),
)
"""Batch, rows, heads, blocks, count."""


@pytest.mark.parametrize("bias", [0.0, 4.0])
@pytest.mark.parametrize("case", CASES8, ids=str)
def test_8_bits_are_their_emulation(
    hopper: torch.device, checks8: Any, attending: Any, note: Note, case: tuple[int, ...], bias: float
) -> None:
    given = checks8.Case(*case)
    qkv = attending.made(given.batch, given.rows, given.heads, hopper, bias=bias)
    # The tensor cores keep fewer bits of an FP8 sum than fp32 has.
    off = checks8.check_attention(qkv, given, checks8.Launch(), emulation=0.01)
    note(f"{case}, bias {bias}: {off:.2%} from fp32 attention over the same keys")


@pytest.mark.parametrize("case", [(1, 200, 2, 1, 1), (2, 1031, 3, 7, 4)], ids=str)
def test_8_bits_in_plain_triton(hopper: torch.device, checks8: Any, attending: Any, case: tuple[int, ...]) -> None:
    given = checks8.Case(*case)
    checks8.check_attention(attending.made(*case[:3], hopper), given, checks8.PLAIN, emulation=0.01)


def test_equal_scores_keep_the_first(hopper: torch.device, checks8: Any) -> None:
    checks8.check_ties(hopper)


def test_8_bits_of_what_is_all_alike(hopper: torch.device, checks8: Any) -> None:
    checks8.check_degenerate(hopper)


@pytest.mark.parametrize("percent", PERCENTS)
def test_8_bits_read_all_of_what_conditions(hopper: torch.device, found: Attentions, note: Note, percent: int) -> None:
    """As requests call it: exact rows are within 8 bits of fp32, the pictures' are not; nothing waits."""
    packed = layout(GRIDS[0])
    given = qkv(packed.rows, 4, hopper)
    backend = found.choose(name8_of(percent))[0]
    backend.attend(*given, layout=packed, step=STEP)
    with no_waiting():
        out = backend.attend(*given, layout=packed, step=STEP)
    exact, wanted = exact_rows(packed), reference(*given)
    errors = relative_error(out[:, :exact], wanted[:, :exact]), relative_error(out[:, exact:], wanted[:, exact:])
    note(f"{percent} %: exact rows {errors[0]:.2%}, pictures {errors[1]:.2%}")
    assert errors[0] <= 0.06 < errors[1]


def test_8_bits_are_those_of_the_cpu(hopper: torch.device, found: Attentions) -> None:
    packed = layout(GRIDS[2])
    given = qkv(packed.rows, 2, hopper)
    here, there = (
        found.choose("sla8_topk_50")[0].attend(*(x.to(device) for x in given), layout=packed, step=STEP)
        for device in (hopper, torch.device("cpu"))
    )
    assert relative_error(here.cpu(), there.float()) <= 0.01


def test_a_dense_step_costs_what_8_bits_cost(hopper: torch.device, found: Attentions) -> None:
    packed = layout(GRIDS[0])
    given = qkv(packed.rows, 2, hopper)
    before = found.tally.look()
    out = found.choose("sla8_topk_10")[0].attend(*given, layout=packed, step=0)
    told = found.tally.since(before)
    assert told["dispatches"] == {"h3_attn8": 1} and told["fallbacks"][0]["why"] == "one of the first 1 steps"
    assert torch.equal(out, found.choose("h3_attn8")[0].attend(*given, layout=packed, step=0))


def test_vsa_adds_its_coarse_branch_without_waiting_for_the_device(found: Attentions, cuda: torch.device) -> None:
    packed = layout(GRIDS[0])
    given = qkv(packed.rows, 4, cuda)
    (backend,) = (b for b in found.backends if isinstance(b, VsaAttention))
    gate = torch.ones_like(given[0])

    def attended(by: torch.Tensor) -> torch.Tensor:
        return backend.attend_at(*given, layout=packed, step=0, place=Place(0, lambda: by))

    attended(gate)
    with no_waiting():
        with_it, without = attended(gate), attended(gate * 0)
    added = with_it.float() - without.float()
    assert bool((added[:, exact_rows(packed) :].abs().amax(-1) > 0).all())


def test_the_canonical_clip(found: Attentions, cuda: torch.device, note: Note) -> None:
    """Time beside sdpa, printed and not judged: no table of it has been made."""
    packed = layout_of(CANONICAL_ROWS)
    given = qkv(packed.rows, 56, cuda)
    in_8_bits = map(name8_of, PERCENTS) if torch.cuda.get_device_capability(cuda) == (9, 0) else ()
    names = ("sdpa", *map(name_of, PERCENTS), *in_8_bits)
    backends = {name: found.choose(name)[0] for name in names}
    calls = {
        name: lambda attend=backend.attend: attend(*given, layout=packed, step=STEP)
        for name, backend in backends.items()
    }
    for name, times in timed(calls, 3, cuda).items():
        note(f"{name}: {min(times):.1f} ms at S {packed.rows}")
    for name in names[-4:]:
        assert bool(calls[name]().isfinite().all())
