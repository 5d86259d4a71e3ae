"""Sets that are holes in their files: what a load sees of one, at sizes that a CPU has in a moment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import made_set
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.stream import Reading
from h3runtime.checkpoint.stream import stream as stored_stream
from h3runtime.checkpoint.synthetic import synthesis
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.checkpoint.synthetic.published import SetFormat

SIZES = TransformerSizes(hidden=512, layers=1, refiner_layers=1, heads=8, ffn=1024, text_dim=256)
CPU = torch.device("cpu")
QKV, NORM = "blocks.0.attn.qkv_proj", "blocks.0.norm1.weight"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transformer alone, and still wide enough to have holes."""
    whole = synthesis.plan
    monkeypatch.setattr(synthesis, "FULL", replace(synthesis.TINY, transformer=SIZES))
    monkeypatch.setattr(made_set, "plan", lambda order: whole(order)[: len(order.partitions)])
    monkeypatch.setattr(made_set, "SHARED_PATHS", ("tokenizer_path",))


def opened(folder: Path, kind: SetFormat) -> CheckpointFile:
    return CheckpointFile(made_set.holes(folder / kind, kind)["model_path"])


@pytest.mark.parametrize("kind", ["nvfp4", "int8_convrot", "fp8_scaled", "bf16"])
def test_a_hole_takes_no_disk_and_is_read_as_values_of_its_spread(tmp_path: Path, kind: SetFormat) -> None:
    with opened(tmp_path, kind) as file:
        assert file.synthetic and file.path.stat().st_blocks * 512 < file.size
        names = [name for name in file.entries if name.startswith((QKV, NORM))]
        read = dict(made_set.stream(file, names, CPU))
        stored = dict(stored_stream(file, names, CPU))
        assert torch.equal(read[NORM], stored[NORM])
        assert not stored[f"{QKV}.weight"].view(torch.uint8).any() and read[f"{QKV}.weight"].view(torch.uint8).any()
        for name, tensor in read.items():
            entry = file.entries[name]
            assert (tensor.dtype, tuple(tensor.shape)) == (entry.dtype, entry.shape)
            assert torch.isfinite(tensor.float()).all()


def test_values_have_the_spread_of_their_recipe_and_both_signs(tmp_path: Path) -> None:
    with opened(tmp_path, "bf16") as file:
        ((_, weight),) = made_set.stream(file, [f"{QKV}.weight"], CPU)
    rows = weight.float().view(3, -1)
    wanted = torch.tensor([1.0, 0.8, 0.55]) / SIZES.hidden**0.5
    assert torch.allclose(rows.std(1), wanted, rtol=0.05)
    assert rows.mean().abs() < 0.01 * rows.std()


def test_a_load_is_told_where_it_is_and_a_digest_of_every_file(tmp_path: Path) -> None:
    seen: list[int] = []
    digests: dict[int, str] = {}
    with opened(tmp_path, "nvfp4") as file:
        reading = Reading(frozenset({0}), digests.__setitem__, seen.append)
        list(made_set.stream(file, list(file.entries), CPU, reading))
        assert seen == sorted(seen) and seen[-1] == file.size and len(digests[0]) == 64


def test_tensors_of_no_file_are_those_of_its_plan() -> None:
    (file,) = made_set.plan(synthesis.Order("bf16", full_size=True))
    values = made_set.values(file, CPU)
    assert {name: (t.dtype, tuple(t.shape)) for name, t in values.items()} == file.layout()
