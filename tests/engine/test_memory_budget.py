"""What an engine may have, by recorded facts of machines that aren't at hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from h3runtime.engine import load as module
from h3runtime.engine import memory_budget
from h3runtime.engine.memory_budget import Budget, DeviceMemory, budget_of, kind_of
from h3runtime.engine.resident import ResidentEngine
from h3runtime.engine.room import Needs, Weights, require_room
from h3runtime.errors import CheckpointError, SettingsError
from h3runtime.observe import memory
from h3runtime.observe.control_groups import LimitedGroup
from h3runtime.settings import GIB, MIB, Settings

SPARK = DeviceMemory("integrated", 128_501_256_192, 115 * GIB)
"""Total as the kernel of one tells it (leptonai/gpud #1170)."""
CARD = DeviceMemory("discrete", 80 * GIB, 79 * GIB, held=GIB)


def test_a_spark_keeps_8_gib_for_its_system() -> None:
    budget = budget_of(SPARK)
    assert (budget.reserve, budget.loadable, budget.capacity) == (8 * GIB, 107 * GIB, 107 * GIB)
    assert budget_of(SPARK, 20 * GIB).loadable == 95 * GIB
    assert budget_of(SPARK, 0).loadable == 115 * GIB


def test_a_small_integrated_gpu_keeps_an_eighth() -> None:
    assert budget_of(DeviceMemory("integrated", 8 * GIB, 6 * GIB)).reserve == GIB


def test_what_this_process_holds_is_its_own_again() -> None:
    """Before and after a load capacity is the same: what was free is held."""
    loaded = replace(SPARK, free=SPARK.free - 43 * GIB, held=43 * GIB)
    assert budget_of(loaded).capacity == budget_of(SPARK).capacity
    assert budget_of(loaded).loadable == 64 * GIB


def test_a_card_and_a_cpu_keep_nothing_unless_told() -> None:
    assert (budget_of(CARD).loadable, budget_of(CARD).capacity) == (79 * GIB, 80 * GIB)
    assert budget_of(CARD, 4 * GIB).loadable == 75 * GIB
    assert budget_of(DeviceMemory("cpu", 16 * GIB, 10 * GIB)).reserve == 0


def test_nothing_is_left_where_less_than_the_reserve_is_free() -> None:
    """No room is another thing than nobody knows."""
    assert budget_of(replace(SPARK, free=3 * GIB)).loadable == 0
    assert budget_of(DeviceMemory("cpu", 0, 0)).loadable is None


def test_a_container_s_limit_counts_where_it_is_less() -> None:
    group = LimitedGroup(110 * GIB, 2 * GIB)
    # 115 less 8 is less than 108: the machine's own figure decides.
    assert budget_of(replace(SPARK, groups=(group,))).loadable == 107 * GIB
    tight = budget_of(replace(SPARK, groups=(LimitedGroup(64 * GIB, 2 * GIB), group)))
    assert (tight.loadable, tight.total, tight.free) == (62 * GIB, 64 * GIB, 62 * GIB)


def test_pages_that_no_group_is_charged_for_count_all_the_same() -> None:
    """A group of 64 GiB that counts 3 while 43 are held on the GPU has room for 18, not for 61; one that counts 46 has
    them among these."""
    held = replace(SPARK, free=70 * GIB, held=43 * GIB)
    assert budget_of(replace(held, groups=(LimitedGroup(64 * GIB, 3 * GIB),))).loadable == 18 * GIB
    assert budget_of(replace(held, groups=(LimitedGroup(64 * GIB, 46 * GIB),))).loadable == 18 * GIB


def test_the_kind_is_the_driver_s_word(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kind_of(torch.device("cpu")) == "cpu"
    for integrated, kind in ((1, "integrated"), (0, "discrete")):
        told = type("Properties", (), {"is_integrated": integrated, "name": "NVIDIA GB10"})
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, told=told: told)
        assert kind_of(torch.device("cuda", 0)) == kind


def test_a_shared_memory_is_asked_of_the_kernel_and_not_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "kind_of", lambda _: "integrated")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 5)
    monkeypatch.setattr(torch.cuda, "mem_get_info", None)
    found = memory_budget.memory_of(torch.device("cuda", 0))
    assert (found.kind, found.held, found.total) == ("integrated", 5, memory.total_bytes())
    assert abs(found.free - memory.available_bytes()) < GIB


WEIGHTS = [
    Weights("fl2va", "fl2va.safetensors", 12 * GIB, "fl2va"),
    Weights("text encoder", "te.safetensors", 15 * GIB),
]


def refused(budget: Budget) -> str:
    with pytest.raises(CheckpointError) as caught:
        require_room(WEIGHTS, Needs(3 * GIB), budget, torch.device("cuda", 0))
    return caught.value.message


def test_the_refusal_has_all_figures() -> None:
    require_room(WEIGHTS, Needs(3 * GIB), budget_of(replace(SPARK, free=38 * GIB)), torch.device("cuda", 0))
    assert refused(budget_of(replace(SPARK, free=37 * GIB))) == (
        "the weights don't fit into memory: fl2va 12.00 GiB (fl2va.safetensors) + text encoder 15.00 GiB "
        "(te.safetensors) + 3.00 GiB to sample a 1344x768 clip of 124 frames = 30.00 GiB, but cuda:0 has 37.00 GiB "
        "free of 119.68 GiB that it shares with the host, and 8.00 GiB stay the system's: short by 1.00 GiB"
    )
    assert refused(budget_of(DeviceMemory("discrete", 24 * GIB, 23 * GIB))).endswith(
        "but cuda:0 has 23.00 GiB free of 24.00 GiB: short by 7.00 GiB"
    )


def on_spark(free: int) -> DeviceMemory:
    return DeviceMemory("integrated", 119 * GIB, free, held=0)


@pytest.fixture
def integrated(monkeypatch: pytest.MonkeyPatch) -> dict[str, DeviceMemory]:
    """The device says that it shares the host's memory, and has so much free."""
    there = {"memory": on_spark(100 * GIB)}
    monkeypatch.setattr(memory_budget, "memory_of", lambda _: there["memory"])
    return there


def test_a_start_is_refused_before_any_data_is_read(
    integrated: dict[str, DeviceMemory], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And the reserve is what refuses it: with none the same memory is enough."""
    integrated["memory"] = on_spark(8 * GIB + MIB)
    monkeypatch.setattr(module, "load_module", None)
    engine = ResidentEngine(Settings(data_dir=tmp_path, device="cpu"), threads=1, warm_up=False)
    with pytest.raises((CheckpointError, SettingsError), match=r"8192\.00 MiB stay the system's: short by"):
        engine.load(lambda _: None)
    freely = ResidentEngine(Settings(data_dir=tmp_path, device="cpu", system_reserve_bytes=0), threads=1, warm_up=False)
    with pytest.raises(TypeError):
        freely.load(lambda _: None)


def test_a_request_is_judged_by_the_same_budget(
    integrated: dict[str, DeviceMemory], engine: ResidentEngine, make_spec
) -> None:
    spec = make_spec(width=64, height=64, frames=5, steps=1)
    wanted = engine.estimate(spec)
    integrated["memory"] = on_spark(8 * GIB + wanted.peak_bytes)
    assert engine.estimate(spec).fits and engine.estimate(spec).capacity_bytes == wanted.peak_bytes
    integrated["memory"] = on_spark(8 * GIB + wanted.peak_bytes - 1)
    told = engine.estimate(spec)
    assert not told.fits and told.would_fit
