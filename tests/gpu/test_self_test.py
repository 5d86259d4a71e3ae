"""The self-test on an accelerator: what runs here passes it, at H3's sizes too, and what is made wrong does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from h3runtime.backends.attention.base import Kernel
from h3runtime.backends.attention.probe import why_its_call_fails
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.fused.select import choose_producers
from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.facts import linear_facts
from h3runtime.backends.linear.fp8 import Fp8Linear
from h3runtime.backends.linear.int8 import Int8Linear
from h3runtime.backends.linear.nvfp4_options import Nvfp4Options
from h3runtime.backends.linear.nvfp4_packing import ScaleBackend, why_no_packer
from h3runtime.backends.linear.resident import ResidentBf16Linear
from h3runtime.backends.linear.switching import switched
from h3runtime.backends.vit.select import choose_steps
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes, transformer_shapes
from h3runtime.core import KernelCheck
from h3runtime.denoiser.config import DitConfig
from h3runtime.engine.device import free_bytes
from h3runtime.engine.made_network import made_network, made_weights
from h3runtime.engine.resident import ResidentEngine
from h3runtime.engine.self_test.attention import AROUND, Around, Shape, attention_checks
from h3runtime.engine.self_test.check import Check, ask
from h3runtime.engine.self_test.fused import fused_checks
from h3runtime.engine.self_test.linear import linear_checks
from h3runtime.engine.self_test.packing import packing_checks
from h3runtime.engine.self_test.video import video_checks
from h3runtime.settings import Settings
from tests.gpu.conftest import Note

pytestmark = pytest.mark.gpu
H3 = Shape(3 * 7168, 128)


def all_of(checks: object, device: torch.device, note: Note) -> list[KernelCheck]:
    made = []
    for check in checks:  # type: ignore[attr-defined]
        assert isinstance(check, Check)
        made.append(ask(check, device))
        told = f"error {made[-1].error}, at most {check.tolerance:g}, {made[-1].seconds:.3f} s {made[-1].reason}"
        note(f"{check.name}: {told}")
    torch.cuda.empty_cache()
    return made


def test_attention_passes_at_h3s_size(cuda: torch.device, note: Note) -> None:
    """All that can run here, experimental ones too; the first check of each holds what its first call compiles."""
    found = Attentions(cuda)
    found.fit({128}, "no gates")
    around = Around(H3, cuda)
    able = [backend for backend in found.backends if found.why_unavailable(backend) is None]
    made = []
    for backend in able:
        if (why := why_its_call_fails(backend, cuda, 128)) is not None:
            note(f"{backend.name} is no backend of this machine: {why}")
            continue
        made += all_of(attention_checks(backend, H3, around, cuda, free_bytes=free_bytes(cuda)), cuda, note)
    assert {check.kernel for check in made} >= {"sdpa", "cudnn_sdpa"}
    assert len(made) >= 2 * (len(AROUND) + 1)
    assert not [f"{check.kernel}: {check.asked}: {check.reason}" for check in made if not check.passed]


class Spoilt(Kernel):
    """PyTorch's own, made wrong."""

    name = "spoilt"
    tolerance = 0.02

    def __init__(self, spoil: Callable[[torch.Tensor], None]) -> None:
        self._spoil = spoil

    def why_unavailable(self, device: object) -> str | None:  # noqa: ARG002
        return None

    def call(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = SdpaAttention().call(q, k, v).clone()
        self._spoil(out)
        return out


def past_65536(out: torch.Tensor) -> None:
    out[:, 65_536:] = out[:, : max(out.shape[1] - 65_536, 0)]


def one_nan(out: torch.Tensor) -> None:
    if out.shape[1] >= 65_536:
        out[:, 40_001, 0, 3] = float("nan")


def scaled(out: torch.Tensor) -> None:
    out *= 1.05


@pytest.mark.parametrize(("spoil", "wrong"), [(past_65536, 1), (one_nan, 2), (scaled, 3)])
def test_attention_that_is_wrong_does_not_pass(
    cuda: torch.device, note: Note, spoil: Callable[[torch.Tensor], None], wrong: int
) -> None:
    made = all_of(attention_checks(Spoilt(spoil), H3, Around(H3, cuda), cuda), cuda, note)
    assert [check.passed for check in made] == [True] * (3 - wrong) + [False] * wrong


def test_producers_and_video_steps_pass_at_h3s_size(cuda: torch.device, note: Note) -> None:
    producers, _ = choose_producers("auto", cuda)
    steps, _ = choose_steps("auto", cuda)
    assert (producers.name, steps.name) == ("triton", "triton")
    made = all_of(fused_checks(producers, h3_config(), cuda), cuda, note)
    assert len(made) == 2 and all(check.passed for check in made)
    with closing(ResidentEngine(Settings(device=str(cuda)), warm_up=False)) as engine:
        engine.load(lambda _: None)
        vae = engine.models.vaes.video.config
    made = all_of(video_checks(steps, vae.decoder, vae.encoder, torch.float16, cuda), cuda, note)
    assert len(made) == 2 and all(check.passed for check in made)


def h3_config() -> DitConfig:
    return DitConfig.from_shapes(transformer_shapes(TransformerSizes()))


@pytest.mark.parametrize("backend", [ResidentBf16Linear(), Fp8Linear(), Int8Linear()], ids=lambda each: each.name)
def test_products_pass_at_h3s_size(cuda: torch.device, note: Note, backend: LinearBackend[Any]) -> None:
    sizes = TransformerSizes()
    weights = made_weights(sizes, cuda, blocks={0})
    network = made_network(sizes, weights, linear=backend, device=cuda, dtype=torch.bfloat16)
    (made,) = all_of(linear_checks(backend, switched(network), cuda), cuda, note)
    assert made.asked.startswith("blocks.0.attn.out_proj [5376, 7168]") and made.passed


@pytest.mark.parametrize("by", ["kitchen", "vortex", "vortex_native"])
@pytest.mark.parametrize("width", [5376, 7168, 14_336])
def test_packers_pass_at_h3s_widths(cuda: torch.device, note: Note, by: ScaleBackend, width: int) -> None:
    facts = linear_facts(cuda)
    if (why := why_no_packer(by, facts)) is not None:
        pytest.fail(why)
    made = all_of(packing_checks(by, width, facts, cuda), cuda, note)
    assert made and all(check.passed and check.error == 0 for check in made)


def test_producers_that_pack_pass_at_h3s_size(cuda: torch.device, note: Note) -> None:
    options = Nvfp4Options(modulate_fusion=True, swiglu_fusion=True)
    producers, _ = choose_producers("auto", cuda, options=options)
    made = all_of(fused_checks(producers, h3_config(), cuda), cuda, note)
    (packed,) = [check for check in made if check.family == "nvfp4_producers"]
    assert packed.passed and packed.error == 0


@pytest.mark.parametrize("linear", ["auto", "fp8", "int8"])
def test_an_engine_passes_and_asks_nothing_again(
    cuda: torch.device, note: Note, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linear: str
) -> None:
    monkeypatch.setattr("h3runtime.engine.resident.default_cache_dir", lambda: tmp_path / "cache")
    settings = Settings(device=str(cuda), data_dir=tmp_path / "data", linear=linear)
    for start in ("first", "second"):
        began = time.monotonic()
        with closing(ResidentEngine(settings, warm_up=False)) as engine:
            engine.load(lambda _: None)
            took, found = time.monotonic() - began, engine.facts().self_test
        assert found is not None and found.checks and not found.failed
        note(f"{linear}, {start} start: {took:.2f} s, of which the self-test {found.seconds:.3f}")
        for check in found.checks:
            if start == "first":
                told = f"error {check.error}, at most {check.tolerance:g}, {check.seconds:.3f} s"
                note(f"{check.family} {check.kernel}: {check.asked}: {told}")
        assert all(check.cached == (start == "second") for check in found.checks)
    assert found.seconds < 0.5
