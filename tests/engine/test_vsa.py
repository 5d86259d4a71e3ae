"""`vsa` from a checkpoint's file to a job's diagnostics, and why a server without it refuses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import BackendUnavailable
from h3runtime.settings import Settings
from tests.engine.conditioned import diagnostics_of, generate
from tests.tiny_set import tiny_paths


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny transformer with `to_gate_compress` in every block, as FastH3 has it (checkpoint-formats §2.4)."""
    plain = tiny_paths()["model_path"]
    with safe_open(plain, "pt") as file:
        weights, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    source, hidden = torch.Generator().manual_seed(0), weights["blocks.0.norm1.weight"].shape[0]
    inner = weights["blocks.0.attn.qkv_proj.weight"].shape[0] // 3
    for name in [name for name in weights if name.startswith("blocks.") and name.endswith("attn.out_proj.weight")]:
        gate = torch.randn(inner, hidden, generator=source) / hidden**0.5
        weights[name.replace("out_proj", "to_gate_compress")] = gate.bfloat16()
    path = tmp_path_factory.mktemp("gated") / "minimax_h3_fl2va_gated.safetensors"
    save_file(weights, path, metadata)
    return path


@contextmanager
def loaded(folder: Path, attention: str, model: Path | None = None) -> Iterator[ResidentEngine]:
    paths = tiny_paths() | ({} if model is None else {"model_path": model})
    settings = Settings(device="cpu", data_dir=folder, attention=attention, **paths)
    with closing(ResidentEngine(settings, threads=1, warm_up=False, partitions=("fl2va",))) as engine:
        engine.load(lambda _: None)
        yield engine


def test_a_checkpoint_that_has_the_layer_runs_it(tmp_path: Path, gated: Path, make_spec) -> None:
    with loaded(tmp_path, "vsa", gated) as engine:
        choice, spec = engine.facts().attention, make_spec()
        assert choice.default == "vsa" and choice.grades["vsa"] == "experimental"
        found = diagnostics_of(engine, spec)["attention"]
        blocks = len(engine.models.transformer_of(spec.task).blocks)
        assert found["dispatches"]["vsa"] == blocks * spec.sampling.steps
        assert found["fallbacks"] == [] and found["kept_share"] == {"vsa": 0.5}
        dense = generate(engine, replace(spec, attention="sdpa"))
        mixed = generate(engine, replace(spec, attention_plan=("sdpa", "vsa")))
        sparse = generate(engine, spec)
    assert mixed.attention == "sdpa 0, vsa 1"
    assert len({clip.sha256 for clip in (dense, mixed, sparse)}) == 3


def test_a_server_that_left_the_layer_in_the_file_says_so(tmp_path: Path, gated: Path, make_spec) -> None:
    with loaded(tmp_path, "auto", gated) as engine:
        told = engine.facts().attention.unavailable["vsa"]
        assert "left in the file" in told and "H3_ATTENTION=vsa" in told
        with pytest.raises(BackendUnavailable, match="H3_ATTENTION=vsa"):
            engine.generate(make_spec(attention="vsa"), lambda _: None, lambda: False)


def test_a_checkpoint_without_it_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(BackendUnavailable, match="wasn't trained for video sparse attention") as caught,
        loaded(tmp_path, "vsa"),
    ):
        pass
    assert caught.value.offences[0].field == "attention"
