"""Checkpoints to the accelerator through page-locked buffers: every byte that the CPU gets."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.dequant import dense
from h3runtime.checkpoint import blocks
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.stream import stream
from h3runtime.engine.resident import ResidentEngine

pytestmark = pytest.mark.gpu

COMPONENTS = ("fl2va", "ref2va", "text_encoder", "video_vae", "audio_vae")


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


@pytest.mark.parametrize("block", [None, 1000])
@pytest.mark.parametrize("component", COMPONENTS)
def test_tensors_are_those_of_the_cpu(
    engine: ResidentEngine, monkeypatch: pytest.MonkeyPatch, component: str, block: int | None
) -> None:
    if block is not None:
        monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
    path: Path = engine.paths.transformers.get(component) or getattr(engine.paths, component)
    with CheckpointFile(path) as file:
        names = [n for n, e in file.entries.items() if block is None or e.nbytes <= 1 << 20]
        for name, ours in stream(file, names, engine.device):
            wanted = file.read(name)
            assert ours.is_cuda and (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape)
            assert torch.equal(bits(ours).cpu(), bits(wanted)), name
    assert len(names) > 20


def resident_tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.state_dict().items()
    for name, part in module.named_modules():
        if isinstance(part, BackendLinear):
            yield f"{name}.weight", dense(part.resident, torch.float32)
            if part.resident.bias is not None:
                yield f"{name}.bias", part.resident.bias


def test_loaded_models_are_those_of_the_cpu(engine: ResidentEngine, cpu_engine: ResidentEngine) -> None:
    for partition in ("fl2va", "ref2va"):
        compare(*(dict(resident_tensors(e.models.transformers[partition])) for e in (engine, cpu_engine)))
    compare(*(dict(resident_tensors(e.models.text_encoder)) for e in (engine, cpu_engine)))
    for component in ("video", "audio"):
        pair = (dict(resident_tensors(getattr(e.models.vaes, component))) for e in (engine, cpu_engine))
        compare(*pair)


def compare(ours: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """NVFP4 weights are compared as decoded on each device."""
    assert ours.keys() == wanted.keys() and len(ours) > 20
    for name, tensor in ours.items():
        assert tensor.is_cuda, name
        assert torch.equal(tensor.cpu(), wanted[name]), name
