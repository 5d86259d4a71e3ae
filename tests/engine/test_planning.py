"""A plan beside what loading and admission really come to, and what it says of machines that aren't at hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.policy import row_of
from h3runtime.checkpoint.markers import SUFFIX
from h3runtime.core import Task
from h3runtime.engine.linear_memory import resident_bytes
from h3runtime.engine.load import Models
from h3runtime.engine.machines import MACHINES, machine_named
from h3runtime.engine.memory_budget import DeviceMemory
from h3runtime.engine.places import Place, place_named
from h3runtime.engine.planned_linear import candidates
from h3runtime.engine.planned_set import named_parts, published_parts
from h3runtime.engine.planning import PROMPT_ROWS, STEPS, Plan, Residency, plan
from h3runtime.engine.resident import COMPUTE_DTYPE, ResidentEngine
from h3runtime.engine.room import resident_bytes as header_bytes
from h3runtime.errors import BackendUnavailable, InvalidRequest
from h3runtime.settings import GIB, Settings
from tests.tiny_set import tiny_paths

BOTH = ("fl2va", "ref2va")
USUAL = ((1344, 768, 124),)
STORED = frozenset({"nvfp4"})


def place(name: str) -> Place:
    return place_named(name, Settings())


def with_memory(there: Place, **changed: int) -> Place:
    return replace(there, memory=replace(there.memory, **changed))


@cache
def published(*partitions: str, video_vae: str = "fp16"):
    return published_parts("nvfp4", partitions, Settings(), COMPUTE_DTYPE, DequantLinear(), video_vae=video_vae)


@cache
def on(name: str, *partitions: str, video_vae: str = "fp16") -> Plan:
    return plan(published(*partitions, video_vae=video_vae), place(name), Settings(), USUAL)


def residency(found: Plan, name: str) -> Residency:
    return next(each for each in found.residencies if each.name == name)


# On a Spark


def test_all_that_a_spark_serves_takes_43_4_gib() -> None:
    """To the byte what the files have of tensors that a model takes, as they are stored: 46,557,479,455 bytes of files
    less headers and markers, what no model reads (`logs_proj`, `mask_token`) and FP32 that is cast to FP16."""
    found = on("gb10", *BOTH)
    sizes = {line.name: line.bytes for line in found.shown.weights}
    assert sizes == {
        "transformer fl2va": 12_528_516_992,
        "transformer ref2va": 12_528_516_992,
        "text encoder": 15_686_891_864,
        "video VAE": 5_207_738_064,
        "audio VAE": 605_145_056,
    }
    assert sum(sizes.values()) / GIB == pytest.approx(43.36, abs=0.005)
    assert (found.shown.linear.name, found.attention.name) == ("nvfp4", "sage2")


COUNTED = {
    "transformer fl2va": 12_605_643_264,
    "transformer ref2va": 12_611_271_168,
    "text encoder": 15_702_900_224,
    "video VAE": 5_219_574_272,
    "audio VAE": 619_518_976,
}
"""By PyTorch's allocator on an H200, where these files were loaded one after the other (benchmarks/LOG.md)."""


def test_what_an_allocator_counted_of_a_load_is_planned_to_the_byte() -> None:
    assert {line.name: line.allocated for line in on("gb10", *BOTH).shown.weights} == COUNTED
    rounding = sum(line.allocated - line.bytes for line in on("gb10", *BOTH).shown.weights)
    (job,) = on("gb10", *BOTH).shown.jobs
    workspaces = next(line.bytes for line in on("gb10", *BOTH).fixed if line.name == "workspaces of libraries")
    assert job.memory["process_bytes"] == rounding + workspaces


def test_what_is_decoded_once_is_counted_nearly_so() -> None:
    """The load frees what it decoded, which the arithmetic doesn't follow: 530 kB of 40.3 GB too many."""
    found = on("h200", "fl2va")
    assert found.shown.weights[0].allocated == pytest.approx(40_308_716_032, rel=2e-5)


@pytest.mark.parametrize("index", [0, 1])
def test_nothing_but_headers_and_markers_is_missing(index: int) -> None:
    """Of the transformer and the encoder, which keep everything as it is stored."""
    part = published("fl2va")[index]
    with part.open() as file:
        markers = sum(entry.nbytes for name, entry in file.entries.items() if name.endswith(SUFFIX))
        resident = header_bytes(part.on_meta(file), file, part.rule, DequantLinear())
        assert file.size == file.parts[0].data_start + markers + resident


def test_a_spark_keeps_all_and_moves_nothing() -> None:
    found = on("gb10", *BOTH)
    assert found.chosen == "all" and residency(found, "all").why_not == ""
    for name in ("encoder_host", "encoder_disk"):
        refused = residency(found, name)
        assert "shares the host's" in refused.why_not and not refused.jobs
    (job,) = found.shown.jobs
    assert job.fits and job.longest == 362 and job.rows == 37_810
    assert job.peak_bytes == job.memory["total_bytes"] <= found.budget.capacity


def test_the_reserve_and_the_host_s_side_are_taken_off() -> None:
    """119.68 GiB less what is taken, the reserve, and what only a driver and other processes hold."""
    found, memory = on("gb10", *BOTH), machine_named("spark").memory
    outside = sum(line.bytes for line in found.fixed if line.name != "workspaces of libraries")
    assert memory.total - memory.free == 6_910_320_640
    assert found.budget.loadable == memory.free - 8 * GIB - outside
    larger = plan(published(*BOTH), place("gb10"), Settings(system_reserve_bytes=90 * GIB), USUAL)
    assert larger.chosen == ""
    assert "90.00 GiB stay the system's: short by" in residency(larger, "all").why_not


# On cards


def test_a_small_card_moves_the_encoder() -> None:
    found = on("5090", "fl2va")
    assert "short by" in residency(found, "all").why_not
    assert "H3_RESIDENCY=encoder_host it would fit" in residency(found, "all").why_not
    assert found.chosen == "encoder_host" and found.shown.host > 14 * GIB
    assert found.shown.sampling == sum(line.bytes for line in found.shown.weights if line.name != "text encoder")
    assert found.shown.sampling < found.shown.conditioning < found.shown.sampling + 3 * GIB
    assert residency(found, "encoder_disk").conditioning < found.shown.conditioning


def test_the_longest_clip_fits_and_one_chunk_more_does_not() -> None:
    lengths = range(22, 363, 17)
    shapes = [(1344, 768, frames) for frames in lengths]
    found = plan(published(*BOTH, video_vae="int8_convrot"), place("5090"), Settings(), shapes)
    jobs = found.shown.jobs
    longest = max(job.frames for job in jobs if job.fits)
    assert 22 <= longest < 362 and {job.longest for job in jobs} == {longest}
    assert [job.fits for job in jobs] == [frames <= longest for frames in lengths]
    peaks = [job.peak_bytes for job in jobs]
    assert peaks == sorted(peaks) and jobs[0].longest_peak_bytes == peaks[lengths.index(longest)]
    assert peaks[lengths.index(longest)] <= found.budget.capacity < peaks[lengths.index(longest) + 1]


def test_what_has_no_fp4_unit_decodes_once_where_that_fits_and_else_at_every_call() -> None:
    card, found = place("h200"), on("h200", "fl2va")
    assert found.shown.linear.name == "resident_bf16"
    assert found.shown.weights[0].bytes == 40_225_668_192
    small = plan(published("fl2va"), with_memory(card, total=60 * GIB, free=60 * GIB), Settings(), USUAL)
    assert small.shown.linear.name == "dequant" and "decoded at every call" in small.shown.linear.why
    assert small.shown.weights[0].bytes == 12_528_516_992


def test_a_backend_that_a_machine_has_not_got_is_refused() -> None:
    with pytest.raises(BackendUnavailable, match=r"nvfp4 can't run there: needs SM 10\.0"):
        candidates("nvfp4", place("h200"), [STORED])
    with pytest.raises(InvalidRequest, match="no backend 'nvfp5'"):
        candidates("nvfp5", place("h200"), [STORED])
    assert candidates("nvfp4", place("rtx-pro-6000"), [STORED]).linear.name == "nvfp4"


# The machines


def test_each_machine_has_its_numbers_sources_and_architecture() -> None:
    names = [name for machine in MACHINES for name in (machine.name, *machine.aliases)]
    assert len(names) == len(set(names))
    for machine in MACHINES:
        assert set(machine.sources) == {"total", "taken"} and all(machine.sources.values())
        assert 0 <= machine.taken < machine.total and row_of("cuda", machine.capability).capability is not None
        assert (machine.kind == "integrated") == (machine.name == "gb10")


def test_a_name_of_no_machine_lists_those_that_are() -> None:
    with pytest.raises(InvalidRequest) as caught:
        place("h100")
    (offence,) = caught.value.offences
    assert offence.field == "device" and "gb10 or spark" in offence.legal


# Beside what really is


@pytest.fixture(params=["dequant", "resident_bf16"])
def loaded(request, tmp_path):
    settings = Settings(data_dir=tmp_path, device="cpu", linear=request.param, warmup_shapes=(), **tiny_paths())
    engine = ResidentEngine(settings, threads=1)
    engine.load(lambda _: None)
    yield engine
    engine.close()


def test_a_plan_is_what_a_load_comes_to(loaded: ResidentEngine, make_spec) -> None:
    """Every component to the byte; every stage of a request as admission predicts it."""
    settings = loaded.settings
    here = replace(place("here"), memory=DeviceMemory("cpu", 64 * GIB, 60 * GIB))
    parts = named_parts(settings, COMPUTE_DTYPE, DequantLinear())
    found = plan(parts, here, settings, [(128, 96, 22)])
    assert [line.bytes for line in found.shown.weights] == [resident_bytes([module]) for module in every(loaded.models)]
    spec = make_spec(prompt="x" * PROMPT_ROWS, width=128, height=96, frames=22, steps=STEPS)
    predicted, (job,) = loaded.estimate(replace(spec, task=Task.T2VA)), found.shown.jobs
    assert sum(predicted.rows.values()) == job.rows
    told = {name: value for name, value in predicted.memory.items() if name not in ("process_bytes", "total_bytes")}
    assert told == {name: job.memory[name] for name in told}


def every(models: Models) -> tuple[torch.nn.Module, ...]:
    return (*models.transformers.values(), models.text_encoder, models.vaes.video, models.vaes.audio)
