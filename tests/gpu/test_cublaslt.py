"""The binding of cuBLASLt on the real library: products beside PyTorch's, schedules, graphs, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path

import pytest
import torch
from h3_kernels import cublaslt, cublaslt_api
from h3_kernels.cublaslt import BF16, FP8, WORKSPACE_BYTES, CublasLt, Product, Schedule, ScheduleUnfit
from torch.nn import functional as F

from tests.backends.linears import apart, error
from tests.gpu.conftest import Note

pytestmark = pytest.mark.gpu

ROWS = (1, 15, 16, 17, 127, 128, 129, 4096)
N, K = 5376, 7168


@pytest.fixture(scope="module")
def lt(cuda: torch.device) -> CublasLt:
    return cublaslt.on_device(cuda)


def made(rows: int, columns: int, seed: int, device: torch.device) -> torch.Tensor:
    source = torch.Generator(device).manual_seed(seed)
    return torch.randn(rows, columns, generator=source, device=device).bfloat16()


def test_it_is_the_library_that_torch_loaded(lt: CublasLt, note: Note) -> None:
    maps = Path("/proc/self/maps").read_text().splitlines()
    found = {line.split()[-1] for line in maps if "libcublasLt" in line}
    assert len(found) == 1, found
    assert lt.library.version >= 120800
    note(f"cuBLASLt {cublaslt_api.told(lt.library.version)}, {lt.library.path}")


def test_bf16_products_are_torch_s(lt: CublasLt, note: Note) -> None:
    """Any number of rows. Sums in another order: both are held to FP64 of the first 64 rows."""
    w, half = made(N, K, 1, lt.device), torch.tensor([0.5], device=lt.device)
    worst = 0.0
    for rows in ROWS:
        x = made(rows, K, rows, lt.device)
        plan = lt.plan(Product(rows, N, K, BF16))
        got, theirs = lt.multiply(plan, x, w, half), F.linear(x, w) * 0.5
        wanted = 0.5 * (x[:64].double() @ w.double().t())
        worst = max(worst, error(got[:64], wanted))
        assert error(got[:64], wanted) < 1.02 * error(theirs[:64], wanted)
        assert error(got, theirs) < 1e-3
        note(f"{rows} rows: {plan.chosen}; of torch's {100 * apart(got, theirs)[0]:.3f} % differ")
    assert worst < 0.0025


def test_fp8_products_are_torch_s(lt: CublasLt, note: Note) -> None:
    w = (made(N, K, 2, lt.device)).to(torch.float8_e4m3fn)
    one = torch.ones(1, device=lt.device)
    x_scale, w_scale = torch.tensor([0.25], device=lt.device), torch.tensor([3.0], device=lt.device)
    for rows in ROWS:
        x = made(rows, K, rows, lt.device).to(torch.float8_e4m3fn)
        got = lt.multiply(lt.plan(Product(rows, N, K, FP8)), x, w, one, x_scale=x_scale, w_scale=w_scale)
        wanted = (x[:64].double() @ w.double().t()) * 0.75
        assert error(got[:64], wanted) < 0.0025
        theirs = torch._scaled_mm(x, w.t(), x_scale, w_scale, out_dtype=torch.bfloat16) if rows % 16 == 0 else got
        note(f"{rows} rows: of torch's {100 * apart(got, theirs)[0]:.3f} % differ")
        assert error(got, theirs) < 1e-3


def test_alpha_is_read_by_the_device_when_it_multiplies(lt: CublasLt) -> None:
    x, w = made(256, K, 1, lt.device), made(N, K, 2, lt.device)
    alpha, plan = torch.ones(1, device=lt.device), lt.plan(Product(256, N, K, BF16, torch.float32))
    whole = lt.multiply(plan, x, w, alpha)
    alpha.fill_(0.25)
    assert torch.equal(lt.multiply(plan, x, w, alpha), 0.25 * whole)


def test_a_graph_holds_a_product(lt: CublasLt) -> None:
    """Replayed with other numbers in x and another alpha: both are read anew."""
    x, w, alpha = made(256, K, 1, lt.device), made(N, K, 2, lt.device), torch.ones(1, device=lt.device)
    plan = lt.plan(Product(256, N, K, BF16))
    lt.multiply(plan, x, w, alpha)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = lt.multiply(plan, x, w, alpha)
    for seed, factor in ((3, 1.0), (4, -2.0)):
        x.copy_(made(256, K, seed, lt.device))
        alpha.fill_(factor)
        graph.replay()
        assert torch.equal(y, lt.multiply(plan, x, w, alpha))


def test_a_schedule_goes_there_and_back(lt: CublasLt, note: Note) -> None:
    """What the heuristic names, asked for by its numbers, is the same schedule and gives the same bits; what an
    algorithm hasn't got is refused."""
    product = Product(4096, N, K, BF16)
    x, w, one = made(4096, K, 1, lt.device), made(N, K, 2, lt.device), torch.ones(1, device=lt.device)
    found = lt.plan(product)
    listed = lt.algorithms(product)
    note(f"algorithms {listed}; heuristic {found.chosen}")
    assert found.chosen.algorithm in listed
    again = lt.plan(product, replace(found.chosen, workspace=WORKSPACE_BYTES))
    note(f"asked for by its numbers: {again.chosen}")
    assert astuple(again.chosen)[:4] == astuple(found.chosen)[:4]
    ours, theirs = lt.multiply(again, x, w, one), lt.multiply(found, x, w, one)
    assert torch.equal(ours, theirs)
    with pytest.raises(ScheduleUnfit, match="has no tile 65000"):
        lt.plan(product, Schedule(found.chosen.algorithm, 65_000, found.chosen.stages, 1, 0))
    with pytest.raises(ScheduleUnfit, match="cublasLtMatmulAlgoInit: CUBLAS_STATUS"):
        lt.plan(product, Schedule(9999, 20, 37, 1, 0))


REFUSED = """
import torch
from h3_kernels import cublaslt
from h3_kernels.cublaslt import BF16, Product, Schedule, ScheduleUnfit
from h3_kernels.cublaslt_api import CublasLtNotSupported
device = torch.device("cuda:0")
x = torch.ones(128, 64, dtype=torch.bfloat16, device=device)
lt = cublaslt.on_device(device)
for product in (Product(37810, 5376, 14336), Product(16, 48, 96)):
    try:
        lt.plan(product)
        print("taken")
    except CublasLtNotSupported as error:
        print(error)
    try:
        lt.plan(product, Schedule(70, 20, 37, 1, 0))
        print("taken")
    except ScheduleUnfit as unfit:
        print(unfit)
y = lt.multiply(lt.plan(Product(128, 128, 64, BF16)), x, x, torch.ones(1, device=device))
torch.cuda.synchronize()
print(y.float().mean().item())
"""


def test_nvfp4_is_refused_by_name_where_the_hardware_has_none(cuda: torch.device, note: Note) -> None:
    """In a process of its own, which multiplies rightly afterwards."""
    if torch.cuda.get_device_capability(cuda) >= (10, 0):
        pytest.skip("this GPU multiplies NVFP4")
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=120, check=False)
    note(" | ".join(done.stdout.split("\n")))
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert "taken" not in lines and all("CUBLAS_STATUS_NOT_SUPPORTED" in line for line in (lines[0], lines[2]))
    assert lines[-1] == "64.0"


def test_what_a_call_costs_the_host(lt: CublasLt, note: Note) -> None:
    """Of a product so small that the device has nothing to do, beside PyTorch's own."""
    x, w, one = made(16, 64, 1, lt.device), made(64, 64, 2, lt.device), torch.ones(1, device=lt.device)
    product, times = Product(16, 64, 64, BF16), dict[str, float]()
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "ours": lambda: lt.multiply(lt.plan(product), x, w, one),
        "torch": lambda: F.linear(x, w),
    }
    for name, call in calls.items():
        call()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(500):
            call()
        times[name] = 1e6 * (time.perf_counter() - began) / 500
        torch.cuda.synchronize()
    note(f"ours {times['ours']:.1f} us a call, F.linear {times['torch']:.1f} us")
    assert times["ours"] < 100
