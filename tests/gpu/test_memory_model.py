"""Predicted peaks beside what PyTorch's allocator handed out, at the published sizes.

`benchmarks/memory_model.py` runs more requests, and longer ones."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.memory_model import (
    LAYOUTS,
    Case,
    features,
    figures,
    made_engine,
    sampled,
    spec_of,
    upscaled,
    warm_up,
)
from h3runtime.engine.memory_budget import budget_of, memory_of
from h3runtime.engine.preview import ColourMap
from h3runtime.engine.resident import ResidentEngine
from h3runtime.settings import Settings
from tests.gpu.conftest import Note
from tests.gpu.requests import t2va
from tests.tiny_set import tiny_paths

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("full size")]
"""Where several processes test at once, one of them: each would have an engine of 40 GB."""

CASES = (
    Case(320, 192, 22, 12),
    Case(960, 544, 124, 1),
    Case(640, 384, 39, 1, references=True),
    Case(320, 192, 22, 1, prompt="word " * 1300),
)


@pytest.fixture(scope="module", params=["nvfp4", "fp8"])
def made(
    cuda: torch.device, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ResidentEngine]:
    """FP8 with producers that hand over codes."""
    folder = tmp_path_factory.mktemp("made")
    fused = "triton" if request.param == "fp8" else "torch"
    engine = made_engine(str(cuda), LAYOUTS[request.param], folder, fused=fused)
    warm_up(engine, folder)
    yield engine
    engine.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_peaks_are_within_15_percent(made: ResidentEngine, tmp_path: Path, note: Note, case: Case) -> None:
    told = figures(made, spec_of(case, tmp_path))
    note(f"{case.name}: {told['ratio']} of the whole, {told['above']} above what is held, {told['measured_above']}")
    assert 0.85 <= told["ratio"] <= 1.15


@pytest.mark.parametrize("attention", ["sdpa", "cudnn_sdpa", "h3_attn8"])
def test_the_peak_of_sampling_is_within_15_percent(
    made: ResidentEngine, tmp_path: Path, note: Note, attention: str
) -> None:
    told = sampled(made, spec_of(Case(1344, 768, 124, 12, attention=attention), tmp_path))
    note(f"{attention}: {told['above']} above what is held, {told['measured_above_bytes']} bytes")
    assert 0.85 <= told["above"] <= 1.15


@pytest.mark.parametrize("case", [*features(Case(960, 544, 124, 12))], ids=lambda case: case.name)
def test_what_else_a_request_may_have_is_within_15_percent(made: ResidentEngine, note: Note, case: Case) -> None:
    """An adapter and step reuse."""
    assert made.settings.lora_dir is not None
    told = sampled(made, spec_of(case, made.settings.lora_dir.parent))
    note(f"{case.name}: {told['above']} above what is held, {told['measured_above_bytes']} bytes")
    assert 0.85 <= told["above"] <= 1.15


def test_the_upscalers_peak_is_within_15_percent(made: ResidentEngine, tmp_path: Path, note: Note) -> None:
    told = upscaled(made, spec_of(Case(1344, 768, 124, 1, refined=True), tmp_path))
    note(f"{told['above']} of {told['measured_above_bytes']} bytes")
    assert 0.85 <= told["above"] <= 1.15


def test_a_clip_that_no_card_holds_is_told_what_would_fit(made: ResidentEngine, tmp_path: Path) -> None:
    estimate = made.estimate(spec_of(Case(8192, 8192, 362, 1), tmp_path))
    assert not estimate.fits and "frames" in estimate.would_fit


def test_an_estimate_leaves_the_device_alone(made: ResidentEngine, tmp_path: Path) -> None:
    before = torch.cuda.memory_stats(made.device)["allocation.all.allocated"]
    made.estimate(spec_of(Case(1344, 768, 362, 12), tmp_path))
    assert torch.cuda.memory_stats(made.device)["allocation.all.allocated"] == before


def test_a_card_with_memory_of_its_own_is_told_by_the_driver(cuda: torch.device) -> None:
    found = memory_of(cuda)
    assert found.kind == "discrete" and not found.groups
    assert found.held + found.free <= found.total == torch.cuda.mem_get_info(cuda)[1]
    assert budget_of(found).capacity == found.held + found.free


def test_colours_of_previews_are_those_of_the_decoder(engine: ResidentEngine, cpu_engine: ResidentEngine) -> None:
    ours, host = (ColourMap.of(e.models.vaes.video).weights.cpu() for e in (engine, cpu_engine))
    assert torch.linalg.norm(ours - host) < 2e-2 * torch.linalg.norm(host)


def test_previews_come_while_the_device_samples(cuda: torch.device, tmp_path: Path) -> None:

    resident = ResidentEngine(
        Settings(device=str(cuda), data_dir=tmp_path, **tiny_paths()), previews=True, warm_up=False
    )
    resident.load(lambda _: None)
    seen: list[bytes] = []
    resident.generate(t2va(tmp_path), lambda p: seen.extend([p.preview] if p.preview else []), lambda: False)
    resident.close()
    assert seen and all(png.startswith(b"\x89PNG") for png in seen)
