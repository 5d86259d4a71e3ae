"""The text encoder from the host's memory and from its file, onto a device: same bits, and room while it is away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from h3runtime.engine.linear_memory import resident_bytes
from h3runtime.engine.resident import ResidentEngine
from h3runtime.engine.visits import HostSource, Unit, Visits
from h3runtime.settings import Settings
from tests.gpu.conftest import Note
from tests.gpu.requests import fl2va, run, same_bits, t2va
from tests.tiny_set import tiny_paths

pytestmark = pytest.mark.gpu

MIB = 2**20


@pytest.fixture(scope="module", params=["encoder_host", "encoder_disk"])
def moving(
    cuda: torch.device, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ResidentEngine]:
    """The tiny set, warmed up with its encoder away."""
    folder = tmp_path_factory.mktemp("moving")
    engine = ResidentEngine(Settings(device=str(cuda), data_dir=folder, residency=request.param, **tiny_paths()))
    engine.load(lambda _: None)
    yield engine
    engine.close()


def visits(engine: ResidentEngine) -> int:
    lodging = engine.models.text_encoder.lodging
    assert isinstance(lodging, Visits)
    return lodging.visits


def on_device(engine: ResidentEngine) -> list[bool]:
    units = (*engine.models.text_encoder.parameters(), *engine.models.text_encoder.buffers())
    return [tensor.is_cuda for tensor in units]


@pytest.mark.parametrize("make", [t2va, fl2va])
def test_clips_are_those_of_an_encoder_that_stays(
    engine: ResidentEngine, moving: ResidentEngine, tmp_path: Path, make: Any
) -> None:
    wanted, found = (run(each, make(tmp_path)) for each in (engine, moving))
    assert same_bits(found.latents, wanted.latents) and found.clip.sha256 == wanted.clip.sha256
    assert not any(on_device(moving)) and all(on_device(engine))


def test_a_remembered_prompt_moves_nothing(moving: ResidentEngine, tmp_path: Path) -> None:
    run(moving, t2va(tmp_path, prompt="seen before"))
    before = visits(moving)
    run(moving, t2va(tmp_path, prompt="seen before"))
    assert visits(moving) == before
    run(moving, t2va(tmp_path, prompt="not seen before"))
    assert visits(moving) == before + 1


def test_sampling_has_the_encoders_memory(
    engine: ResidentEngine, moving: ResidentEngine, tmp_path: Path, note: Note
) -> None:
    encoder = resident_bytes([engine.models.text_encoder])
    assert resident_bytes(engine.models.modules()) - resident_bytes(moving.models.modules()) == encoder
    before, begun = torch.cuda.memory_allocated(), []
    assert not any(on_device(moving))

    def look(progress: Any) -> None:
        if progress.stage == "sampling" and not begun:
            begun.append(torch.cuda.memory_allocated())

    moving.generate(t2va(tmp_path, prompt="what is held"), look, lambda: False)
    added = begun[0] - before
    note(
        f"{moving.models.residency}: {added / MIB:.2f} MiB more as sampling begins; the encoder has {encoder / MIB:.1f}"
    )
    assert added < encoder / 8


def test_what_is_locked_is_told(moving: ResidentEngine) -> None:
    facts = moving.facts()
    locked = facts.memory["host_locked_bytes"]
    assert facts.residency == moving.settings.residency and bool(locked) == (facts.residency == "encoder_host")
    if locked:
        assert locked >= moving.models.encoder_units.total > 0
        assert all(tensor.is_pinned() for tensor in moving.models.text_encoder.parameters())


class Filled(nn.Module):
    """64 MiB that all say `number`."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4096, 4096), float(number)), requires_grad=False)


def test_a_unit_is_whole_while_it_is_used_and_two_are_there(cuda: torch.device) -> None:
    """The computing stream is kept busy ahead of every use: a copy that didn't wait for it would be seen."""
    units = [Unit(str(number), Filled(number)) for number in range(12)]
    source = HostSource(units, cuda)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for busy in (0, 30_000_000):
        seen = []
        for unit, _ in zip(units, source.arrivals(units, lambda: None), strict=False):
            torch.cuda._sleep(busy)
            seen.append(torch.stack(unit.module.weight.aminmax()))
        assert torch.stack(seen).tolist() == [[number, number] for number in range(12)]
    assert torch.cuda.max_memory_allocated() - before < 2.1 * 64 * MIB
    assert torch.cuda.memory_allocated() - before < MIB
    assert not any(unit.module.weight.is_cuda for unit in units)


def test_what_ends_early_waits_for_what_is_on_its_way(cuda: torch.device) -> None:
    """Memory that is given back while a copy into it runs would be written to by whoever gets it next and by that."""
    units = [Unit(str(number), Filled(number)) for number in range(4)]
    source = HostSource(units, cuda)
    for _ in range(5):
        arrivals = source.arrivals(units, lambda: None)
        next(arrivals)
        arrivals.close()
        mine = torch.full((2, 4096, 4096), -1.0, device=cuda)
        torch.cuda.synchronize()
        assert mine.aminmax() == (torch.tensor(-1.0, device=cuda), torch.tensor(-1.0, device=cuda))
        del mine
