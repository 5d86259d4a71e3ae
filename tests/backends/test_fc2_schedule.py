"""The known schedule of FC2: taken where everything fits, counted where not, prepared once, as weights are loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from h3runtime.backends.linear.base import BackendLinear, install
from h3runtime.backends.linear.facts import LinearFacts
from h3runtime.backends.linear.fc2_schedule import SPARK, Calls, Fc2Schedule, ScheduledLinear, schedule_of
from h3runtime.backends.linear.nvfp4 import Nvfp4Linear
from h3runtime.backends.linear.nvfp4_emulated import definition
from h3runtime.backends.linear.nvfp4_lt import Nvfp4LtLinear
from h3runtime.backends.linear.nvfp4_options import Nvfp4Options
from h3runtime.backends.linear.select import linear_backends
from h3runtime.quant import nvfp4
from h3runtime.quant.nvfp4_rows import Nvfp4Rows
from h3runtime.quant.stored import Nvfp4Weight
from tests.backends.linears import CPU, activations, error, randn
from tests.kernels.cublaslt import Played, played

GB10 = LinearFacts("cuda", (12, 1), (13, 2), "0.2.40", True, cublaslt=130400)
SMALL = replace(SPARK, m=17, n=48, k=256)
"""The same schedule of a product that can be multiplied here."""
BLOCKS = 50
"""Of H3, each with one FC2."""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    with played(monkeypatch) as library:
        yield library


def weight(n: int = SMALL.n, k: int = SMALL.k, seed: int = 1) -> Nvfp4Weight:
    return nvfp4.quantize(randn(n, k, seed=seed) * 0.05)


def unread(rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of H3's sizes, which the played library neither reads nor writes: no memory is touched."""
    tiles = torch.empty(-(-rows // 128) * 128, columns // 16, dtype=torch.float8_e4m3fn)
    return torch.empty(rows, columns // 2, dtype=torch.uint8), tiles


def real_weight(n: int = SPARK.n, k: int = SPARK.k) -> Nvfp4Weight:
    return Nvfp4Weight(*unread(n, k), torch.ones(()), (n, k))


def real_rows(rows: int, padded: int | None = None) -> Nvfp4Rows:
    codes, scales = unread(padded or rows, SPARK.k)
    return Nvfp4Rows(codes, scales, torch.ones(()), rows, torch.bfloat16)


def ready(fake: Played, facts: LinearFacts = GB10) -> Fc2Schedule:
    """After loading a layer of H3's size."""
    assert fake.count("create") == 0
    found = Fc2Schedule(SPARK, lambda _: facts)
    found.prepare(real_weight(), CPU)
    return found


@pytest.mark.parametrize("rows", [SPARK.m, 37_824])
def test_at_h3_s_size_it_runs_by_the_known_schedule(fake: Played, rows: int) -> None:
    """Whether or not the packer padded its rows to 16."""
    schedule = ready(fake)
    assert schedule.why_not is None and "algorithm 70, tile 20, stages 37, split-K 1" in schedule.told
    y = schedule.product(real_rows(SPARK.m, rows), real_weight())
    assert y is not None and y.shape == (SPARK.m, SPARK.n) and y.dtype is torch.bfloat16
    assert fake.last() == (70, 20, 37, 1, 0, 0)
    assert schedule.calls.told() == {"dispatches": 1, "fallbacks": []}


def test_what_more_the_algorithm_needs_the_library_sets(fake: Played) -> None:
    fake.told(more=3, named=1)
    schedule = ready(fake)
    assert schedule.why_not is None
    assert schedule.product(real_rows(SPARK.m), real_weight()) is not None
    assert fake.last() == (70, 20, 37, 1, 0, 0) and fake.count("heuristic") == 1


@pytest.mark.parametrize("rows", [37_809, 37_811, 1, 37_824])
def test_neighbouring_rows_fall_back(fake: Played, rows: int) -> None:
    schedule = ready(fake)
    assert schedule.product(real_rows(rows), real_weight()) is None
    assert fake.count("matmul") == 0
    why = f"{rows} rows, and it is known for 37810 alone"
    assert schedule.calls.told() == {"dispatches": 0, "fallbacks": [{"why": why, "count": 1}]}


def test_other_layers_are_none_of_its_business(fake: Played) -> None:
    schedule = ready(fake)
    for n, k in ((21_504, 5376), (5376, 7168), (28_672, 5376)):
        assert schedule.product(real_rows(SPARK.m), real_weight(n, k)) is None
    assert schedule.calls == Calls()


def test_what_differs_in_anything_else_falls_back(fake: Played) -> None:
    schedule, stored = ready(fake), real_weight()
    rows = real_rows(SPARK.m)
    half = replace(rows, dtype=torch.float16)
    cut = replace(rows, block_scale=rows.block_scale[:-128])
    turned = replace(stored, codes=stored.codes.t().contiguous().t())
    for given, held in ((half, stored), (cut, stored), (rows, turned)):
        assert schedule.product(given, held) is None
    assert fake.count("matmul") == 0 and schedule.calls.dispatches == 0
    whys = list(schedule.calls.fallbacks)
    assert "torch.float16" in whys[0] and whys[1].startswith("x's scales: ") and whys[2].startswith("the weight: ")


@pytest.mark.parametrize(
    ("facts", "told", "why"),
    [
        (replace(GB10, capability=(12, 0)), {}, "it is known on SM 12.1, and this is SM 12.0"),
        (LinearFacts("cpu"), {}, "it is known on SM 12.1, and this is no CUDA device"),
        (replace(GB10, cublaslt=130100), {}, "it isn't known of cuBLAS 13.1.0"),
        (replace(GB10, cublaslt=130500), {}, "it isn't known of cuBLAS 13.5.0"),
        (replace(GB10, cublaslt=None), {}, "it isn't known of no cuBLASLt"),
        (GB10, {"algorithm": 71}, "cublasLtMatmulAlgoInit: CUBLAS_STATUS_NOT_SUPPORTED"),
        (GB10, {"tile": 24}, "algorithm 70 has no tile 20 here"),
        (GB10, {"stages": 36}, "algorithm 70 has no stages 37 here"),
        (GB10, {"fail_check": 15}, "cublasLtMatmulAlgoCheck: CUBLAS_STATUS_NOT_SUPPORTED"),
        (GB10, {"workspace": 4096}, "it takes a workspace of 4096 bytes, not 0"),
        (GB10, {"fail_create": 1}, "cublasLtCreate: CUBLAS_STATUS_NOT_INITIALIZED"),
    ],
)
def test_what_is_missing_is_told_and_falls_back(
    fake: Played, facts: LinearFacts, told: dict[str, int], why: str
) -> None:
    fake.told(**told)
    schedule = ready(fake, facts=facts)
    assert schedule.why_not is not None and why in schedule.why_not
    for _ in range(BLOCKS):
        assert schedule.product(real_rows(SPARK.m), real_weight()) is None
    assert schedule.calls == Calls(0, schedule.calls.fallbacks) and schedule.calls.fallbacks[schedule.why_not] == 50
    assert fake.count("matmul") == 0


def test_a_product_that_is_refused_is_not_tried_again(fake: Played) -> None:
    schedule = ready(fake)
    fake.told(fail_matmul=15)
    for _ in range(3):
        assert schedule.product(real_rows(SPARK.m), real_weight()) is None
    why = "it was refused: cublasLtMatmul: CUBLAS_STATUS_NOT_SUPPORTED"
    assert schedule.calls.told() == {"dispatches": 0, "fallbacks": [{"why": why, "count": 3}]}
    assert fake.count("matmul") == 1 and schedule.why_not == why


def test_all_is_made_as_weights_are_loaded_and_once(fake: Played) -> None:
    """Of 50 layers; 50 dispatches a forward and no fallbacks follow, and make nothing."""
    schedule = Fc2Schedule(SMALL, lambda _: GB10)
    backend = Nvfp4LtLinear(fc2=schedule)
    layers = [backend.prepare(weight(seed=seed), CPU) for seed in range(BLOCKS)]
    made = {name: fake.count(name) for name in ("create", "descriptor", "layout", "init", "check")}
    assert made == {"create": 1, "descriptor": 1, "layout": 3, "init": 1, "check": 1}
    x = activations(SMALL.m)
    for _ in range(2):
        before = schedule.calls.look()
        for layer in layers:
            backend.apply(x, layer)
        assert schedule.calls.since(before).told() == {"dispatches": 50, "fallbacks": []}
    assert made == {name: fake.count(name) for name in made} and fake.count("heuristic") == 0


def test_without_loading_for_it_nothing_is_made(fake: Played) -> None:
    """As of a request that names `nvfp4` where weights were loaded for another backend."""
    schedule = Fc2Schedule(SMALL, lambda _: GB10)
    got = Nvfp4LtLinear(fc2=schedule).apply(activations(SMALL.m), weight())
    assert got.shape == (SMALL.m, SMALL.n)
    (why,) = schedule.calls.fallbacks
    assert "loaded for another backend" in why and fake.count("init") == 0


@pytest.mark.parametrize("kind", [Nvfp4Linear, Nvfp4LtLinear])
def test_both_backends_give_the_numbers_of_the_definition(
    fake: Played, kind: type[ScheduledLinear], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the schedule at its rows, as usual at others."""
    monkeypatch.setattr(Nvfp4Linear, "usual", Nvfp4LtLinear.usual)
    schedule, stored = Fc2Schedule(SMALL, lambda _: GB10), weight()
    backend = kind(fc2=schedule)
    resident = backend.prepare(stored, CPU)
    for rows, algorithm in ((SMALL.m, 70), (SMALL.m - 1, 66), (SMALL.m + 1, 66)):
        x = activations(rows)
        assert error(backend.apply(x, resident), definition(x, stored)) < 1e-3
        assert fake.last()[0] == algorithm
    assert schedule.calls.dispatches == 1 and sum(schedule.calls.fallbacks.values()) == 2


def test_the_setting_gives_both_backends_one_schedule() -> None:
    found = {b.name: getattr(b, "fc2", None) for b in linear_backends(Nvfp4Options(fc2_lt_splitk1=True))}
    assert isinstance(found["nvfp4"], Fc2Schedule) and found["nvfp4"] is found["nvfp4_lt"]
    assert not any(found[name] for name in found if name not in ("nvfp4", "nvfp4_lt"))
    assert not any(getattr(backend, "fc2", None) for backend in linear_backends())


def test_a_model_s_schedule_is_its_backend_s() -> None:
    model, schedule = nn.Sequential(nn.Linear(256, 48), nn.Linear(48, 48)), Fc2Schedule(SMALL, lambda _: GB10)
    assert schedule_of(model) is None
    install(model, "0", Nvfp4Linear(fc2=schedule), weight(), CPU, switched=True)
    assert schedule_of(model) is schedule
    assert isinstance(model[0], BackendLinear)
    model[0].backend = Nvfp4Linear()
    assert schedule_of(model) is None


def test_counts_of_a_recorded_forward_are_added() -> None:
    calls, forward = Calls(50), Calls(50)
    forward.fallbacks["why"] = 2
    calls.add(forward)
    calls.add(forward)
    assert calls.told() == {"dispatches": 150, "fallbacks": [{"why": "why", "count": 4}]}


def test_what_the_schedule_is_known_for_is_written_down() -> None:
    """performance.md, GB10, and issue 9.3."""
    assert (SPARK.m, SPARK.n, SPARK.k) == (37_810, 5376, 14_336) and SPARK.capability == (12, 1)
    assert (SPARK.algorithm, SPARK.tile, SPARK.stages, SPARK.split_k, SPARK.workspace) == (70, 20, 37, 1, 0)
    assert all(SPARK.versions.values())
