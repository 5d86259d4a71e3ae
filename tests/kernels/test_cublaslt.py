"""What the binding asks of cuBLASLt and what it makes of the answers, by a library that is played."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from h3_kernels import cublaslt, cublaslt_api
from h3_kernels.cublaslt import AVOIDED, BF16, FP8, NVFP4, PLANS, CublasLt, Product, Schedule, ScheduleUnfit
from h3_kernels.cublaslt_api import Algorithm, CublasLtError, CublasLtNotSupported, Heuristic

from h3runtime.quant import nvfp4
from tests.kernels.cublaslt import CPU, Played, on_cpu

WANTED = Schedule(algorithm=70, tile=20, stages=37, split_k=1, workspace=0)
SMALL = Product(17, 48, 96)


@pytest.fixture
def fake() -> Played:
    return Played()


@pytest.fixture
def lt(fake: Played) -> Iterator[CublasLt]:
    made = on_cpu(fake)
    yield made
    made.close()


def randn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 129])
def test_nvfp4_operands_are_read_where_they_lie(lt: CublasLt, rows: int) -> None:
    """By layouts, scale modes and addresses alone: any of them wrong would give other numbers. 160 columns are 10
    blocks of 16, so the scales' tiles are padded; so are their rows, and those of the weight."""
    x, w = nvfp4.quantize(randn(rows, 160, seed=1)), nvfp4.quantize(randn(136, 160, seed=2))
    codes = x.codes[:rows].contiguous()
    alpha = (x.tensor_scale * w.tensor_scale).reshape(1)
    plan = lt.plan(cublaslt.nvfp4_shape(codes, w.codes, torch.float32))
    got = lt.multiply(plan, codes, w.codes, alpha, x_scale=x.block_scale, w_scale=w.block_scale)
    wanted = nvfp4.dequantize_fp32(x).double() @ nvfp4.dequantize_fp32(w).double().T
    assert got.shape == (rows, 144) and got.dtype is torch.float32 and not got[:, 136:].any()
    assert float((got[:, :136] - wanted).norm() / wanted.norm()) < 1e-6


def test_alpha_multiplies_before_the_one_rounding(lt: CublasLt) -> None:
    x, w = nvfp4.quantize(randn(16, 96, seed=3)), nvfp4.quantize(randn(48, 96, seed=4))
    alpha = torch.tensor([0.3], dtype=torch.float32)
    wide, narrow = (
        lt.multiply(
            lt.plan(cublaslt.nvfp4_shape(x.codes, w.codes, dtype)),
            *(x.codes, w.codes, alpha),
            x_scale=x.block_scale,
            w_scale=w.block_scale,
        )
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert torch.equal(wide.bfloat16(), narrow)


def test_other_operands_go_the_same_way(lt: CublasLt) -> None:
    x, w = randn(5, 64, seed=5), randn(24, 64, seed=6)
    one = torch.ones(1)
    got = lt.multiply(lt.plan(Product(5, 24, 64, BF16, torch.float32)), x.bfloat16(), w.bfloat16(), one)
    assert torch.allclose(got, x.bfloat16().float() @ w.bfloat16().float().T, atol=1e-5)
    x8, w8 = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
    scales = {"x_scale": torch.tensor([0.5]), "w_scale": torch.tensor([4.0])}
    got = lt.multiply(lt.plan(Product(5, 24, 64, FP8, torch.float32)), x8, w8, one, **scales)
    assert torch.allclose(got, 2 * (x8.float() @ w8.float().T), atol=1e-4)


def test_a_plan_is_made_once_for_a_product(fake: Played, lt: CublasLt) -> None:
    x, w = nvfp4.quantize(randn(16, 96, seed=1)), nvfp4.quantize(randn(48, 96, seed=2))
    for _ in range(5):
        plan = lt.plan(cublaslt.nvfp4_shape(x.codes, w.codes, torch.bfloat16))
        lt.multiply(plan, x.codes, w.codes, torch.ones(1), x_scale=x.block_scale, w_scale=w.block_scale)
    found = {name: fake.count(name) for name in ("create", "heuristic", "descriptor", "layout", "matmul")}
    assert found == {"create": 1, "heuristic": 1, "descriptor": 1, "layout": 3, "matmul": 5}


def test_what_was_made_is_given_back(fake: Played) -> None:
    lt = on_cpu(fake)
    for rows in range(1, PLANS + 11):
        lt.plan(Product(rows, 8, 32))
    assert fake.count("alive") == 4 * PLANS
    fake.told(no_candidates=1)
    with pytest.raises(CublasLtNotSupported):
        lt.plan(Product(PLANS + 100, 8, 32))
    assert fake.count("alive") == 4 * PLANS
    lt.close()
    assert fake.count("alive") == 0 and fake.count("destroy") == 1


def test_the_heuristic_s_workspace_is_what_a_product_gets(lt: CublasLt) -> None:
    with pytest.raises(ScheduleUnfit):
        lt.plan(SMALL, replace(WANTED, algorithm=3))
    lt.plan(SMALL, WANTED)
    assert lt.workspace_address is None
    assert lt.plan(SMALL).chosen == Schedule(66, 20, 36, 1, 4096)
    assert lt.plan(SMALL).workspace == 4096 and lt.workspace_address is not None


def test_algorithms_that_may_be_wrong_are_passed_over(fake: Played) -> None:
    fake.told(first_stages=cublaslt_api.STAGES_768XAUTO)
    assert on_cpu(fake).plan(SMALL).chosen.algorithm == 66
    assert on_cpu(fake, AVOIDED[10, 3]).plan(SMALL).chosen.algorithm == 71
    fake.told(second=66, second_stages=cublaslt_api.STAGES_768XAUTO)
    with pytest.raises(CublasLtNotSupported):
        on_cpu(fake, AVOIDED[10, 3]).plan(SMALL)


def test_a_given_schedule_is_what_runs(fake: Played, lt: CublasLt) -> None:
    x, w = nvfp4.quantize(randn(16, 96, seed=1)), nvfp4.quantize(randn(48, 96, seed=2))
    plan = lt.plan(cublaslt.nvfp4_shape(x.codes, w.codes, torch.bfloat16), WANTED)
    assert plan.chosen == WANTED
    lt.multiply(plan, x.codes, w.codes, torch.ones(1), x_scale=x.block_scale, w_scale=w.block_scale)
    assert fake.last() == (70, 20, 37, 1, 0, 0) and fake.count("heuristic") == 0


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"algorithm": 69}, "cublasLtMatmulAlgoInit: CUBLAS_STATUS_NOT_SUPPORTED"),
        ({"tile": 23}, "algorithm 70 has no tile 20 here"),
        ({"stages": 35}, "algorithm 70 has no stages 37 here"),
        ({"fail_check": 8}, "cublasLtMatmulAlgoCheck: CUBLAS_STATUS_ARCH_MISMATCH"),
        ({"workspace": 1024}, "it takes a workspace of 1024 bytes, not 0"),
    ],
)
def test_a_schedule_that_is_not_to_be_had_says_why(fake: Played, lt: CublasLt, told: dict[str, int], why: str) -> None:
    fake.told(**told)
    with pytest.raises(ScheduleUnfit) as caught:
        lt.plan(SMALL, WANTED)
    assert str(caught.value) == f"{why}; nor does the heuristic name it" and fake.count("alive") == 0


def test_what_more_a_schedule_needs_is_the_heuristic_s_to_say(fake: Played, lt: CublasLt) -> None:
    """As the real library has it of algorithm 66 on an H200; and it must fit all the same."""
    fake.told(more=7)
    with pytest.raises(ScheduleUnfit, match=r"AlgoCheck: CUBLAS_STATUS_NOT_SUPPORTED; nor does the heuristic name it"):
        lt.plan(SMALL, WANTED)
    fake.told(named=1)
    assert lt.plan(SMALL, WANTED).chosen == WANTED
    fake.told(workspace=1024)
    with pytest.raises(ScheduleUnfit, match="nor does the heuristic name it"):
        lt.plan(replace(SMALL, m=18), WANTED)
    assert lt.plan(replace(SMALL, m=18), replace(WANTED, workspace=2048)).workspace == 1024
    with pytest.raises(ScheduleUnfit, match="nor does the heuristic name it"):
        lt.plan(replace(SMALL, m=18), replace(WANTED, workspace=2048, split_k=2))


def test_errors_have_cublas_s_names(fake: Played, lt: CublasLt) -> None:
    fake.told(fail_create=1)
    with pytest.raises(CublasLtError, match="cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED") as caught:
        on_cpu(fake)
    assert (caught.value.call, caught.value.status) == ("cublasLtCreate", 1)
    fake.told(fail_create=0, fail_heuristic=15)
    with pytest.raises(CublasLtNotSupported, match="AlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED"):
        lt.plan(SMALL)
    assert str(CublasLtError("f", 99)) == "f: status 99"


def test_a_shape_that_the_library_does_not_take_is_its_own_word(lt: CublasLt) -> None:
    with pytest.raises(CublasLtNotSupported):
        lt.plan(Product(16, 48, 48))
    with pytest.raises(CublasLtNotSupported):
        lt.plan(Product(16, 44, 96))


def test_tensors_that_do_not_fit_a_plan_are_told(lt: CublasLt) -> None:
    plan, codes = lt.plan(SMALL), torch.zeros(17, 48, dtype=torch.uint8)
    weight, one = torch.zeros(48, 48, dtype=torch.uint8), torch.ones(1)
    for wrong in (
        (codes[:16], weight, one),
        (codes, weight.t(), one),
        (codes, weight.float(), one),
        (codes, weight, one.double()),
        (codes, weight, torch.ones(2)),
    ):
        with pytest.raises(ValueError, match=r"^(x|w|alpha): "):
            lt.multiply(plan, *wrong)


def test_algorithms_are_listed(lt: CublasLt) -> None:
    assert lt.algorithms(SMALL) == (66, 71, 70)


def test_a_process_without_the_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublaslt_api, "loaded", lambda: None)
    with pytest.raises(LookupError, match="PyTorch was built without CUDA"):
        CublasLt(CPU)


def test_structures_are_as_long_as_the_header_has_them() -> None:
    """cublasLt.h of cuBLAS 13.1.0, by the C compiler."""
    assert ctypes.sizeof(Algorithm) == 64 and ctypes.sizeof(Heuristic) == 96
    assert (Heuristic.workspace.offset, Heuristic.state.offset, Heuristic.waves.offset) == (64, 72, 76)


def test_versions_are_told_as_people_write_them() -> None:
    assert cublaslt_api.told(130100) == "13.1.0" and cublaslt_api.told(130402) == "13.4.2"


def test_nvfp4_is_what_the_plain_operands_are_not() -> None:
    assert (NVFP4.per_byte, FP8.per_byte, BF16.bytes_each) == (2, 1, 2)
