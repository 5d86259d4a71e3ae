"""Reading in blocks: every tensor bit for bit, each byte once, the digests on the way, and files that change."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.checkpoint import blocks
from h3runtime.checkpoint.blocks import Block, plan
from h3runtime.checkpoint.entries import Span, StoredTensor
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.stream import Reading, stream, stream_groups
from h3runtime.checkpoint.tensor_file import TensorFile
from h3runtime.errors import CheckpointError
from tests.checkpoint.conftest import Write

CPU = torch.device("cpu")


@pytest.fixture(params=[64, 1000, 4096, 32 << 20])
def any_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BLOCK_BYTES", request.param)


def tensors(scale: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "a": torch.randn(30 * scale, 7, generator=generator),
        "b": torch.randint(0, 256, (11, scale), generator=generator, dtype=torch.uint8),
        "c": torch.randn(5, 9 * scale, generator=generator).bfloat16(),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(3.5),
    }


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """(file, offset, count) of everything that is read from now on."""
    seen: list[tuple[str, int, int]] = []
    real = TensorFile.fill

    def fill(self: TensorFile, view: memoryview, offset: int, name: str | None = None) -> None:
        seen.append((self.path.name, offset, len(view)))
        real(self, view, offset, name)

    monkeypatch.setattr(TensorFile, "fill", fill)
    return seen


@pytest.mark.usefixtures("any_blocks")
def test_tensors_are_those_of_the_file_in_its_order(write: Write) -> None:
    stored = tensors(40)
    with CheckpointFile(write(stored)) as file:
        out = list(stream(file, list(stored), CPU))
        order = sorted((e.spans[0].start, name) for name, e in file.entries.items() if e.nbytes)
    assert [name for name, _ in out] == ["empty", *(name for _, name in order)]
    for name, tensor in out:
        assert (tensor.dtype, tensor.shape) == (stored[name].dtype, stored[name].shape)
        assert torch.equal(bits(tensor), bits(stored[name])), name


@pytest.mark.usefixtures("any_blocks")
def test_groups_come_in_the_order_that_is_asked_for(write: Write) -> None:
    stored = tensors(40)
    groups = [["c", "scalar"], ["a"], ["b", "empty"]]
    with CheckpointFile(write(stored)) as file:
        out = list(stream_groups(file, groups, CPU))
    assert [name for name, _ in out][:1] == ["empty"]
    names = [name for name, _ in out][1:]
    assert set(names[:2]) == {"c", "scalar"} and names[2:] == ["a", "b"]
    assert all(torch.equal(bits(tensor), bits(stored[name])) for name, tensor in out)


def test_a_wish_reads_no_more_than_its_bytes(write: Write, reads: list[tuple[str, int, int]]) -> None:
    with CheckpointFile(write(tensors(40))) as file:
        reads.clear()
        wanted = ["a", "scalar"]
        assert {name for name, _ in stream(file, wanted, CPU)} == set(wanted)
        assert sum(count for _, _, count in reads) == sum(file.entries[name].nbytes for name in wanted)


@pytest.mark.usefixtures("any_blocks")
def test_a_hashed_file_is_read_once_from_end_to_end(write: Write, reads: list[tuple[str, int, int]]) -> None:
    path = write(tensors(40))
    found, positions = {}, []
    with CheckpointFile(path) as file:
        reads.clear()
        reading = Reading(frozenset({0}), found.__setitem__, positions.append)
        assert [name for name, _ in stream(file, ["b"], CPU, reading)] == ["b"]
    assert found == {0: hashlib.sha256(path.read_bytes()).hexdigest()}
    ends = [offset + count for _, offset, count in reads]
    assert [offset for _, offset, _ in reads] == [0, *ends[:-1]] and ends[-1] == path.stat().st_size
    assert positions == sorted(positions) and positions[-1] == path.stat().st_size


@pytest.mark.usefixtures("any_blocks")
def test_spans_of_several_files_become_one_tensor(tmp_path: Path, write: Write) -> None:
    """Rows of `a` in turn from two files, backwards; both hashed."""
    stored = tensors(40)
    first = write(stored).rename(tmp_path / "first.safetensors")
    with CheckpointFile(first) as one, CheckpointFile(write(stored)) as two:
        whole = one.entries["a"].spans[0]
        edges = range(whole.start, whole.stop + 1, 7 * 4)
        spans = [Span(row % 2, a, b) for row, (a, b) in enumerate(pairwise(edges))][::-1]
        one.parts = (*one.parts, *two.parts)
        one.entries = {**one.entries, "a": StoredTensor("a", torch.float32, stored["a"].shape, tuple(spans))}
        found: dict[int, str] = {}
        out = dict(stream(one, ["a", "b"], CPU, Reading(frozenset({0, 1}), found.__setitem__)))
    assert torch.equal(out["a"], stored["a"].flip(0)) and torch.equal(out["b"], stored["b"])
    assert set(found.values()) == {hashlib.sha256(first.read_bytes()).hexdigest()} and len(found) == 2


@pytest.mark.usefixtures("any_blocks")
def test_a_failed_read_names_the_tensor_and_leaves_no_thread(write: Write) -> None:
    with CheckpointFile(write(tensors(40))) as file:
        os.truncate(file.path, file.size - 1)
        last = max(file.entries.values(), key=lambda e: e.spans[0].stop).name
        with pytest.raises(CheckpointError, match=rf"model.safetensors: {last} can't be read: .*cut short"):
            list(stream(file, list(file.entries), CPU))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("read_", "hash_"))]


def test_a_buffer_waits_for_its_hash(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing far slower than reading, and reading that would overwrite what is being hashed."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4096)

    sha256 = hashlib.sha256

    class Slow:
        def __init__(self) -> None:
            self.real = sha256()

        def update(self, data: memoryview) -> None:
            time.sleep(0.01)
            self.real.update(data)

        def hexdigest(self) -> str:
            return self.real.hexdigest()

    path = write(tensors(40))
    found: dict[int, str] = {}
    with CheckpointFile(path) as file:
        monkeypatch.setattr(blocks.hashlib, "sha256", Slow)
        list(stream(file, list(file.entries), CPU, Reading(frozenset({0}), found.__setitem__)))
        monkeypatch.undo()
    assert found == {0: hashlib.sha256(path.read_bytes()).hexdigest()}


@pytest.mark.parametrize("change", ["written", "replaced", "removed"])
def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path: Path, write: Write, change: str) -> None:
    path = write(tensors())
    with CheckpointFile(path) as file:
        rows = stream(file, list(file.entries), CPU)
        next(rows)
        if change == "written":
            with path.open("r+b") as out:
                out.seek(-1, os.SEEK_END)
                out.write(b"\xff")
            os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))
        elif change == "replaced":
            (tmp_path / "other").write_bytes(path.read_bytes())
            (tmp_path / "other").replace(path)
        else:
            path.unlink()
        with pytest.raises(CheckpointError, match=rf"model.safetensors: was {change}.* while it was read"):
            list(rows)


def test_a_reader_that_gives_up_leaves_the_file_readable(write: Write) -> None:
    with CheckpointFile(write(tensors(40))) as file:
        for name, _ in stream(file, list(file.entries), CPU):
            if name == "a":
                break
        assert torch.equal(file.read("a"), tensors(40)["a"])


SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=3)


@given(SIZES, st.data())
@settings(max_examples=200, deadline=None)
def test_a_plan_covers_what_is_wanted_once_and_in_order(sizes: Sequence[int], data: st.DataObject) -> None:
    part = st.integers(0, len(sizes) - 1)
    whole = data.draw(st.frozensets(part))
    wanted = []
    for number in data.draw(st.lists(part, max_size=6)):
        start, stop = sorted(data.draw(st.lists(st.integers(0, sizes[number]), min_size=2, max_size=2)))
        wanted.append(Block(number, start, stop))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", 8)
        found = plan(sizes, wanted, whole)
    assert found == sorted(found, key=lambda b: (b.part, b.start))
    bytes_ = [(b.part, at) for b in found for at in range(b.start, b.stop)]
    needed = {(b.part, at) for b in wanted for at in range(b.start, b.stop)}
    needed |= {(number, at) for number in whole for at in range(sizes[number])}
    assert len(bytes_) == len(set(bytes_)) and set(bytes_) == needed
    assert all(b.stop - b.start <= 8 and b.start // 8 == (b.stop - 1) // 8 for b in found)
