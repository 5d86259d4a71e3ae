"""The text encoder's weights come for an encoding and go: same bits, little at once, and no harm when it ends badly.

Here both ends are the CPU, which nothing but a test may ask for; tests/gpu/test_residency.py has a device.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.checkpoint.load import load_module
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.conditioning.pieces import Vision
from h3runtime.conditioning.presentation import Markers, Presentation, assemble
from h3runtime.engine import components
from h3runtime.engine.crate import Crate, HostMemory, Place, places_of, tensors_of
from h3runtime.engine.residency import units_of
from h3runtime.engine.room import resident_by_name
from h3runtime.engine.visits import HostSource, Visits, lodge, units_of_encoder
from h3runtime.errors import CheckpointChanged, JobCancelled, SettingsError
from tests.conditioning.small import picture
from tests.tiny_set import tiny_paths

CPU, META = torch.device("cpu"), torch.device("meta")
MARKERS = Markers(start=500, end=501, pad=10**9, empty=502)
MOVED = ("encoder_host", "encoder_disk")


def text() -> Presentation:
    return assemble(([1, 2, 3, 4, 5, 300],), MARKERS)


def with_pictures() -> Presentation:
    return assemble(([1, 2], Vision(picture(64, 96)), [3], Vision(picture(128, 64, 2, seed=1)), [4, 5]), MARKERS)


def loaded(path: Path, residency: str) -> TextEncoder:
    part = components.text_encoder(path)
    home = {"encoder_host": CPU, "encoder_disk": META, "all": CPU}[residency]
    with part.open() as file:
        module = part.on_meta(file)
        load_module(module, file, linear=DequantLinear(), device=home, rule=part.rule)
        assert isinstance(module, TextEncoder)
        module.eval().requires_grad_(False)
        if residency != "all":
            lodge(module, part, file, residency, CPU, lambda: None)
    return module


@pytest.fixture(scope="module")
def path() -> Path:
    """NVFP4 with AWQ scales, and an INT8 table."""
    return tiny_paths()["text_encoder_path"]


@pytest.fixture(scope="module")
def staying(path: Path) -> TextEncoder:
    return loaded(path, "all")


@pytest.fixture(params=MOVED)
def moved(request: pytest.FixtureRequest, path: Path) -> Iterator[TextEncoder]:
    encoder = loaded(path, request.param)
    yield encoder
    assert encoder.lodging is not None
    encoder.lodging.close()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def places(encoder: TextEncoder) -> list[Place]:
    return [place for unit in units_of_encoder(encoder) for place in places_of(unit.module)]


def held(encoder: TextEncoder) -> list[Any]:
    """Parameters, buffers and resident forms."""
    return [place.value for place in places(encoder)]


def same(before: list[Any], encoder: TextEncoder) -> bool:
    return all(a is b for a, b in zip(before, held(encoder), strict=True))


@pytest.mark.parametrize("given", [text, with_pictures])
def test_the_bits_are_those_of_an_encoder_that_stays(moved: TextEncoder, staying: TextEncoder, given) -> None:
    wanted = staying.encode(given()).hidden
    for _ in range(2):
        assert torch.equal(bits(moved.encode(given()).hidden), bits(wanted))


def test_between_encodings_it_is_as_it_was(moved: TextEncoder) -> None:
    before = held(moved)
    moved.encode(with_pictures())
    assert len(before) > 50 and same(before, moved)


def test_on_disk_nothing_is_kept_and_on_the_host_all_of_it_once(path: Path) -> None:
    disk, host = loaded(path, "encoder_disk"), loaded(path, "encoder_host")
    assert all(tensor.is_meta for tensor in tensors_of(places(disk))) and disk.lodging.host_bytes == 0
    storages = [tensor.untyped_storage() for tensor in tensors_of(places(host))]
    spaces = {storage.data_ptr(): storage.nbytes() for storage in storages}
    assert len(spaces) == len(units_of_encoder(host))
    assert host.lodging.host_bytes == sum(spaces.values())


def test_what_is_reckoned_is_what_is_packed(path: Path) -> None:
    part = components.text_encoder(path)
    with part.open() as file:
        sizes = resident_by_name(part.on_meta(file), file, part.rule, DequantLinear())
    host = loaded(path, "encoder_host").lodging.host_bytes
    assert host == pytest.approx(units_of(sizes).total, rel=0.2) and host <= 1.5 * sum(sizes.values())


def test_two_units_are_there_at_once_and_the_tower_only_for_pictures(path: Path, monkeypatch) -> None:
    encoder = loaded(path, "all")
    source = HostSource(units_of_encoder(encoder), CPU)
    encoder.lodging = Visits(encoder, source, CPU)
    sent: list[weakref.ref[torch.Tensor]] = []
    most = 0
    send = source._send

    def watched(crate: Crate) -> Any:
        nonlocal most
        coming = send(crate)
        sent.append(weakref.ref(coming.there))
        most = max(most, sum(ref() is not None for ref in sent))
        return coming

    monkeypatch.setattr(source, "_send", watched)
    encoder.encode(text())
    assert len(sent) == 1 + encoder.config.layers and most == 2
    assert not any(ref() is not None for ref in sent)
    sent.clear()
    encoder.encode(with_pictures())
    assert len(sent) == 2 + encoder.config.layers and most == 2


def test_a_stop_leaves_nothing_behind(moved: TextEncoder, staying: TextEncoder) -> None:
    before = held(moved)
    for enough in (1, 4, 9):
        asked = iter(range(enough))
        with pytest.raises(JobCancelled):
            moved.encode(with_pictures(), lambda asked=asked: next(asked, None) is None)
        assert same(before, moved)
    assert torch.equal(moved.encode(text()).hidden, staying.encode(text()).hidden)


def test_stops_are_asked_for_while_units_move(moved: TextEncoder) -> None:
    def asked(encoder: TextEncoder) -> int:
        count = 0

        def ask() -> bool:
            nonlocal count
            count += 1
            return False

        encoder.encode(text(), ask)
        return count

    assert asked(moved) > moved.config.layers + 1


def test_a_failing_disk_fails_the_encoding_and_not_the_next(path: Path, staying: TextEncoder, monkeypatch) -> None:
    encoder = loaded(path, "encoder_disk")
    before, real, calls = held(encoder), os.preadv, []

    def failing(fd: int, buffers: list[memoryview], offset: int) -> int:
        calls.append(offset)
        if len(calls) == 3:
            raise OSError(5, "Input/output error")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", failing)
    with pytest.raises(CheckpointChanged, match=r"can't be read: .*input/output error"):
        encoder.encode(text())
    assert same(before, encoder)
    assert torch.equal(encoder.encode(text()).hidden, staying.encode(text()).hidden)


@pytest.mark.parametrize("how", ["written to", "replaced", "removed"])
def test_another_file_in_its_place_is_refused(path: Path, tmp_path: Path, how: str) -> None:
    copy = tmp_path / path.name
    copy.write_bytes(path.read_bytes())
    encoder = loaded(copy, "encoder_disk")
    encoder.encode(text())
    match how:
        case "written to":
            with copy.open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"\xff")
        case "replaced":
            other = tmp_path / "other"
            other.write_bytes(path.read_bytes())
            other.replace(copy)
        case "removed":
            copy.unlink()
    with pytest.raises(CheckpointChanged, match=f"was {how}"):
        encoder.encode(text())


class Driver:
    """What CUDA is asked about memory of the host. fault: what locking answers."""

    def __init__(self, fault: int = 0) -> None:
        self.fault = fault
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        assert flags == 0
        self.locked[address] = nbytes
        return self.fault

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.locked[address]
        return 0


def test_exactly_what_is_needed_is_locked_and_given_back(monkeypatch) -> None:
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    memory = HostMemory(3 * 2**20 + 5, torch.device("cuda"))
    assert driver.locked == {memory.bytes.data_ptr(): 3 * 2**20 + 5}
    assert memory.bytes.shape == (3 * 2**20 + 5,) and memory.bytes.data_ptr() % 4096 == 0
    del memory
    assert driver.locked == {}


def test_a_system_that_locks_no_more_is_told_of(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: Driver(fault=2))
    with pytest.raises(SettingsError, match=r"H3_RESIDENCY: encoder_host: .* 4096 bytes .*CUDA error 2") as raised:
        HostMemory(4096, torch.device("cuda"))
    assert raised.value.offences[0].legal == "all, encoder_disk"
