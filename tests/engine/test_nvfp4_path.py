"""The NVFP4 switches through whole engines on the CPU, with the emulated product and the tiny set: the same clip with
each, what `/ready` and diagnostics tell of them, and which has nothing to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from h3runtime.backends.linear import nvfp4, select
from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.facts import LinearFacts
from h3runtime.backends.linear.nvfp4 import Nvfp4Linear
from h3runtime.backends.linear.nvfp4_base import Nvfp4LinearBase
from h3runtime.backends.linear.switching import switched
from h3runtime.core import GenerateSpec
from h3runtime.engine import load, nvfp4_path, resident
from h3runtime.engine.nvfp4_path import idle, told_packer
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import BackendUnavailable
from h3runtime.settings import Settings
from tests.engine.conditioned import diagnostics_of, generate, latents_of, same
from tests.tiny_set import tiny_paths

BLOCKS, STEPS = 3, 2
BOTH = {"nvfp4_modulate_fusion": True, "nvfp4_swiglu_fusion": True}


def started(folder: Path, **changes: Any) -> ResidentEngine:
    settings = {"linear": "nvfp4_emulated", "self_test": "off", **tiny_paths(), **changes}
    made = ResidentEngine(Settings(device="cpu", data_dir=folder, **settings), threads=1, warm_up=False)
    made.load(lambda _: None)
    return made


@contextmanager
def engine_of(folder: Path, **changes: Any) -> Iterator[ResidentEngine]:
    made = started(folder, **changes)
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResidentEngine]:
    with engine_of(tmp_path_factory.mktemp("plain")) as made:
        yield made


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResidentEngine]:
    """With the self-test, which asks producers that pack for their bytes."""
    with engine_of(tmp_path_factory.mktemp("fused"), self_test="on", **BOTH) as made:
        yield made


def with_scales(engine: ResidentEngine, value: float | None) -> None:
    """Every NVFP4 layer as if its file had such an `input_scale`."""
    for network in engine.models.transformers.values():
        for _, layer in switched(network):
            given = None if value is None else torch.tensor([value])
            layer.resident = replace(layer.resident, input_scale=given)


@pytest.mark.parametrize("scale", [None, 2e-3], ids=["dynamic", "static"])
def test_a_clip_is_the_same_with_the_switches(
    plain: ResidentEngine, fused: ResidentEngine, make_spec: Callable[..., GenerateSpec], scale: float | None
) -> None:
    spec, made = make_spec(steps=STEPS), []
    for engine in (plain, fused):
        with_scales(engine, scale)
        made.append(latents_of(engine, spec))
        with_scales(engine, None)
    assert same(*made)
    if scale is not None:
        assert not same(made[0], latents_of(plain, spec))


def test_diagnostics_count_who_packed(plain: ResidentEngine, fused: ResidentEngine, make_spec: Any) -> None:
    spec, calls = make_spec(steps=STEPS), BLOCKS * STEPS
    told = diagnostics_of(plain, spec)
    assert told["linear"]["activations"] == {"packed": {"definition": 4 * calls}, "came_packed": 0}
    assert told["fused"] == {"family": "cpu", "packed": {}}
    told = diagnostics_of(fused, spec)
    assert told["linear"]["activations"] == {"packed": {"definition": calls}, "came_packed": 3 * calls}
    packed = dict.fromkeys(("attn.qkv_proj", "mlp.fc1", "mlp.fc2"), BLOCKS)
    assert told["fused"] == {"family": "cpu", "packed": packed}
    other = diagnostics_of(fused, replace(spec, linear="dequant"))
    assert "activations" not in other["linear"] and other["fused"]["packed"] == {}
    generate(fused, spec)


def test_ready_tells_who_packs(plain: ResidentEngine, fused: ResidentEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain.facts().linear.why == "asked for by name; packs by definition"
    facts = fused.facts()
    assert facts.fused is not None
    assert facts.fused.notes == {"cpu": "hands NVFP4 on where it made what is gated or modulated"}
    assert not [warning for warning in facts.warnings if "NVFP4" in warning]
    asked = [told.asked for told in facts.self_test.checks if told.kernel == "cpu"]
    assert any("in NVFP4" in one for one in asked) and not facts.self_test.failed
    monkeypatch.setattr(nvfp4_path, "why_no_packer", lambda *_: None)
    assert told_packer(Nvfp4Linear("vortex"), torch.device("cpu")) == "packs by vortex"
    assert told_packer(DequantLinear(), torch.device("cpu")) == ""


def test_switches_with_nothing_to_do_are_told(tmp_path: Path) -> None:
    asked = {"linear": "dequant", "nvfp4_scale_backend": "vortex", **BOTH}
    with engine_of(tmp_path, **asked) as engine:
        found = [warning for warning in engine.facts().warnings if "nothing to do" in warning]
        why = "nothing to do: the linear backend is dequant, which packs nothing"
        assert found == [
            f"H3_NVFP4_MODULATE_FUSION is on and has {why}",
            f"H3_NVFP4_SWIGLU_FUSION is on and has {why}",
            f"H3_NVFP4_SCALE_BACKEND=vortex has {why}",
        ]
        # A request may give them something to do.
        network = next(iter(engine.models.transformers.values()))
        for _, layer in switched(network):
            layer.backend = engine.linears[-1]
        assert idle([network], engine.producers, "vortex") == ()
        for block in network.blocks:
            block.mlp.fc2.resident = replace(block.mlp.fc2.resident, full_precision=True)
        (told,) = idle([network], engine.producers, "vortex")
        assert told.startswith("H3_NVFP4_SWIGLU_FUSION is on and has nothing to do: no layer that could read it")
        assert "its marker asks for full precision" in told


GB10 = LinearFacts("cuda", (12, 1), (13, 2), "0.2.40", True, cublaslt=130400)


def test_auto_s_own_packer_is_looked_for_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The set's headers say that it is NVFP4: then `nvfp4` is what multiplies, and it can't pack."""
    for module in (select, nvfp4):
        monkeypatch.setattr(module, "linear_facts", lambda _: GB10)
    told = "H3_NVFP4_SCALE_BACKEND=vortex: nvcc isn't here"
    monkeypatch.setattr(Nvfp4LinearBase, "why_unpacked", lambda *_: told)
    monkeypatch.setattr(load, "load_module", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(BackendUnavailable) as raised:
        started(tmp_path, linear="auto", nvfp4_scale_backend="vortex")
    assert [offence.field for offence in raised.value.offences] == ["H3_NVFP4_SCALE_BACKEND"]
    assert told in raised.value.message


def test_a_fusion_that_can_t_be_had_stops_an_engine_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h3runtime.backends.fused.triton.TritonProducers.why_unavailable", lambda *_: None)
    with pytest.raises(BackendUnavailable, match="H3_NVFP4_SWIGLU_FUSION=true"):
        ResidentEngine(Settings(device="cpu", data_dir=tmp_path, fused="triton", nvfp4_swiglu_fusion=True))
    assert resident.Nvfp4Options.of(Settings(nvfp4_swiglu_fusion=True)).swiglu_fusion


def test_all_layers_of_the_tiny_set_are_nvfp4(plain: ResidentEngine) -> None:
    """What these tests stand on."""
    network = next(iter(plain.models.transformers.values()))
    layers = [layer for _, layer in switched(network)]
    assert len(layers) == 4 * BLOCKS and all(isinstance(layer, BackendLinear) for layer in layers)
    assert {layer.resident.format for layer in layers} == {"nvfp4"}
