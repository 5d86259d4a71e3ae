"""A model on meta that its file fills again, part by part: what it gets is what a load gives, and nothing is kept."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from torch import nn

from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.checkpoint import rules
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.groups import Made, assign
from h3runtime.checkpoint.load import load_module
from h3runtime.checkpoint.markers import SUFFIX
from h3runtime.checkpoint.refill import Refill
from h3runtime.checkpoint.stream import Reading
from h3runtime.checkpoint.tensor_file import TensorFile
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.errors import CheckpointError, JobCancelled
from tests.checkpoint.conftest import Write
from tests.checkpoint.tiny_transformer import (
    FORMATS,
    interleaved,
    loaded,
    resident,
    same,
    stored,
    weights,
    write_shards,
)

CPU, META = torch.device("cpu"), torch.device("meta")


def bare(file: CheckpointFile) -> Dit:
    with META:
        return Dit(DitConfig.from_shapes(file.shapes))


def parts_of(model: nn.Module) -> list[str]:
    """The blocks from the last to the first, then all else: another order than the file's."""
    blocks = [f"blocks.{index}" for index in reversed(range(len(model.blocks)))]
    own = [name for name, _ in model.named_parameters(recurse=False)]
    own += [name for name, _ in model.named_buffers(recurse=False)]
    return [*blocks, *(name for name, _ in model.named_children() if name != "blocks"), *own]


def on_meta(file: CheckpointFile, reading: Reading | None = None) -> Dit:
    model = bare(file)
    load_module(model, file, linear=DequantLinear(), device=META, rule=rules.TRANSFORMER, reading=reading)
    return model


def put(model: nn.Module, name: str, made: Made) -> None:
    if isinstance(made, torch.Tensor):
        assign(model, name, made)
    else:
        model.get_submodule(name).resident = made


@pytest.mark.parametrize("form", FORMATS)
def test_what_is_read_again_is_what_a_load_gives(write: Write, form: str) -> None:
    path = write(stored(weights(), form))
    wanted = loaded(path)
    with CheckpointFile(path) as file:
        model = on_meta(file)
        told = resident(model)
        assert all(tensor.is_meta for tensor in told.values())
        assert {n: (t.dtype, t.shape) for n, t in told.items()} == {n: (t.dtype, t.shape) for n, t in wanted.items()}
        parts = parts_of(model)
        refill = Refill(bare(file), file, rules.TRANSFORMER, parts)
        for _ in range(2):
            for part, values in zip(parts, refill.read(parts, CPU, lambda: None), strict=True):
                assert all(name == part or name.startswith(f"{part}.") for name in values)
                for name, made in values.items():
                    put(model, name, made)
            assert same(resident(model), wanted)


def test_a_folder_of_shards_is_read_in_the_models_order(tmp_path: Path) -> None:
    """Where a row of q, k and v has its place of its own in the file."""
    path = write_shards(tmp_path / "shards", stored(interleaved(weights()), "bf16"))
    wanted = loaded(path)
    with CheckpointFile(path) as file:
        model = on_meta(file)
        parts = parts_of(model)
        for values in Refill(bare(file), file, rules.TRANSFORMER, parts).read(parts, CPU, lambda: None):
            for name, made in values.items():
                put(model, name, made)
    assert same(resident(model), wanted)


def test_some_parts_cost_their_own_bytes(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    fill = TensorFile.fill

    def counted(self: TensorFile, view: memoryview, offset: int, name: str | None = None) -> None:
        read.append(len(view))
        fill(self, view, offset, name)

    with CheckpointFile(write(stored(weights(), "nvfp4"))) as file:
        refill = Refill(bare(file), file, rules.TRANSFORMER, parts_of(bare(file)))
        names = [name for name in file.entries if name.startswith("blocks.1.") and not name.endswith(SUFFIX)]
        own = sum(file.entries[name].nbytes for name in names)
        monkeypatch.setattr(TensorFile, "fill", counted)
        list(refill.read(["blocks.1"], CPU, lambda: None))
    assert sum(read) == own


def test_a_load_that_keeps_nothing_hashes_all_and_reads_scales_alone(write: Write) -> None:
    path = write(stored(weights(), "nvfp4"))
    found: dict[int, str] = {}
    with CheckpointFile(path) as file:
        on_meta(file, Reading(frozenset({0}), found.__setitem__))
    assert found == {0: _sha256(path)}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_load_that_keeps_nothing_refuses_scales_that_cannot_be(write: Write) -> None:
    spoilt = stored(weights(), "nvfp4")
    spoilt["blocks.0.mlp.fc1.weight_scale_2"] = torch.tensor(float("nan"))
    with CheckpointFile(write(spoilt)) as file, pytest.raises(CheckpointError, match="weight_scale_2 isn't finite"):
        on_meta(file)


def test_who_stops_it_leaves_it_ready_for_the_next(write: Write) -> None:
    def stop() -> None:
        raise JobCancelled("enough")

    with CheckpointFile(write(stored(weights(), "nvfp4"))) as file:
        refill = Refill(bare(file), file, rules.TRANSFORMER, parts_of(bare(file)))
        with pytest.raises(JobCancelled):
            list(refill.read(["blocks.0"], CPU, stop))
        given_up = refill.read(["blocks.0", "blocks.1"], CPU, lambda: None)
        next(given_up)
        given_up.close()
        assert len(list(refill.read(["blocks.2"], CPU, lambda: None))) == 1
