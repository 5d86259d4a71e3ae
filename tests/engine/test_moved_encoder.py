"""An engine whose text encoder is read from its file for every prompt: clips, timings, estimates, and a failing disk.

On the CPU, where nobody else may have that: what refuses it is told not to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from h3runtime.core import GenerateSpec, Progress
from h3runtime.engine import resident
from h3runtime.engine.linear_memory import resident_bytes
from h3runtime.engine.memory_budget import DeviceMemory, budget_of
from h3runtime.engine.residency import Units, text_moved
from h3runtime.engine.resident import ResidentEngine
from h3runtime.engine.room import Needs, Weights, require_host_room, require_room
from h3runtime.engine.visits import Visits
from h3runtime.errors import CheckpointChanged, CheckpointError, JobCancelled, SettingsError
from h3runtime.settings import GIB, Settings
from tests.e2e.conftest import MakeSpec
from tests.tiny_set import tiny_paths

CUDA = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResidentEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resident, "require_legal", lambda *_, **__: None)
        settings = Settings(
            device="cpu",
            data_dir=tmp_path_factory.mktemp("data"),
            residency="encoder_disk",
            self_test="off",
            warmup_shapes=((64, 64, 5),),
            **tiny_paths(),
        )
        engine = ResidentEngine(settings, threads=1)
        engine.load(lambda _: None)
    yield engine
    engine.close()


def clip(engine: ResidentEngine, spec: GenerateSpec) -> str:
    return engine.generate(spec, lambda _: None, lambda: False).sha256


def visits(engine: ResidentEngine) -> int:
    lodging = engine.models.text_encoder.lodging
    assert isinstance(lodging, Visits)
    return lodging.visits


def test_it_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    missing = {name: tmp_path / name for name in tiny_paths()}
    with pytest.raises(SettingsError, match="H3_RESIDENCY: encoder_host needs a CUDA device"):
        ResidentEngine(Settings(device="cpu", residency="encoder_host", **missing))


def test_an_integrated_gpu_refuses_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "kind_of", lambda _: "integrated")
    monkeypatch.setattr(resident, "choose_device", lambda _: resident.DeviceChoice(CUDA, "NVIDIA GB10", "asked for"))
    with pytest.raises(SettingsError, match=r"H3_RESIDENCY: encoder_disk .*shares the host's"):
        ResidentEngine(Settings(residency="encoder_disk"))


def test_clips_are_the_same_and_a_remembered_prompt_reads_nothing(
    engine: ResidentEngine, moving: ResidentEngine, make_spec: MakeSpec
) -> None:
    before = visits(moving)
    assert clip(moving, make_spec(overwrite=True)) == clip(engine, make_spec(overwrite=True))
    assert visits(moving) == before + 1
    clip(moving, make_spec(overwrite=True))
    assert visits(moving) == before + 1
    assert moving.facts().residency == "encoder_disk" and engine.facts().residency == "all"
    assert moving.facts().memory["host_locked_bytes"] == 0 and "host_locked_bytes" not in engine.facts().memory


def test_while_it_moves_it_gets_on_and_can_be_stopped(moving: ResidentEngine, make_spec: MakeSpec) -> None:
    seen: list[Progress] = []
    moving.generate(make_spec(prompt="news of every layer", overwrite=True), seen.append, lambda: False)
    told = [progress for progress in seen if progress.stage == "conditioning"]
    assert len(told) > moving.models.text_encoder.config.layers
    with pytest.raises(JobCancelled) as raised:
        asked = iter(range(6))
        moving.generate(make_spec(prompt="stopped"), lambda _: None, lambda: next(asked, None) is None)
    assert raised.value.stage == "conditioning"
    assert all(tensor.is_meta for tensor in moving.models.text_encoder.parameters())


def test_a_failing_disk_costs_one_job(
    moving: ResidentEngine, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:

        def failing(*_: object) -> int:
            raise OSError(5, "Input/output error")

        patch.setattr(os, "preadv", failing)
        with pytest.raises(CheckpointChanged, match=r"the text encoder can't be read: .*input/output error") as raised:
            clip(moving, make_spec(prompt="from a broken disk"))
    assert (raised.value.stage, raised.value.code) == ("conditioning", "checkpoint_changed")
    assert tiny_paths()["text_encoder_path"].parent.name not in raised.value.message
    clip(moving, make_spec(prompt="from a broken disk"))


def test_admission_counts_the_encoder_while_a_prompt_is_read(
    engine: ResidentEngine, moving: ResidentEngine, make_spec: MakeSpec
) -> None:
    units = moving.models.encoder_units
    staying, away = (each.estimate(make_spec()).memory for each in (engine, moving))
    encoder = resident_bytes([engine.models.text_encoder])
    assert staying["weights_bytes"] - away["weights_bytes"] == encoder
    moved = text_moved("encoder_disk", units)
    assert away["conditioning_text_bytes"] - staying["conditioning_text_bytes"] == moved > 0
    assert away["sampling_bytes"] == staying["sampling_bytes"]
    assert units.total == pytest.approx(encoder, rel=0.2)


WEIGHTS = [Weights("fl2va", "fl2va.safetensors", 12 * GIB, "fl2va")]
CARD = DeviceMemory("discrete", 24 * GIB, 23 * GIB)


def test_a_start_needs_the_larger_of_a_clip_and_of_what_reads_its_prompt() -> None:
    require_room(WEIGHTS, Needs(sampling=3 * GIB, reading=11 * GIB), budget_of(CARD), CUDA)
    with pytest.raises(CheckpointError) as raised:
        require_room(WEIGHTS, Needs(sampling=3 * GIB, reading=12 * GIB), budget_of(CARD), CUDA)
    assert "12.00 GiB of the text encoder while it reads a prompt = 24.00 GiB" in raised.value.message


def test_a_refusal_says_whether_moving_the_encoder_would_help() -> None:
    weights = [*WEIGHTS, Weights("text encoder", "te.safetensors", 15 * GIB)]
    needs = Needs(sampling=3 * GIB, movable=14 * GIB)

    def refused(memory: DeviceMemory) -> str:
        with pytest.raises(CheckpointError) as raised:
            require_room(weights, needs, budget_of(memory), CUDA)
        return raised.value.message

    hint = "with H3_RESIDENCY=encoder_host it would fit"
    assert hint in refused(CARD)
    assert hint not in refused(replace(CARD, free=15 * GIB))
    assert hint not in refused(DeviceMemory("integrated", 24 * GIB, 23 * GIB))


def test_the_host_must_have_room_for_what_waits_there() -> None:
    encoder = Units(embedding=GIB, tower=GIB, layers=(GIB,) * 12)
    require_host_room(encoder, budget_of(DeviceMemory("cpu", 32 * GIB, 15 * GIB)))
    require_host_room(encoder, budget_of(DeviceMemory("cpu", 0, 0)))
    with pytest.raises(SettingsError, match=r"H3_RESIDENCY: encoder_host: .* 15.00 GiB .* 14.00 GiB free") as raised:
        require_host_room(encoder, budget_of(DeviceMemory("cpu", 32 * GIB, 14 * GIB)))
    assert raised.value.offences[0].legal == "encoder_disk, or all"
