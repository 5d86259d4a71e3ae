"""Forwards recorded as CUDA graphs: the run without them bit for bit, kept, judged and let go of as asked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from h3runtime.backends.attention.counting import Counted, Tally
from h3runtime.backends.attention.cudnn_sdpa import CudnnSdpaAttention
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.fused.definition import TorchProducers
from h3runtime.backends.fused.triton import TritonProducers
from h3runtime.backends.linear.base import BackendLinear, install
from h3runtime.backends.linear.fp8 import Fp8Linear
from h3runtime.core import Latents, SamplerSettings
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.recordings import Recordings
from h3runtime.engine.resident import ResidentEngine
from tests.denoiser import tiny
from tests.denoiser.test_denoise import text
from tests.gpu import requests
from tests.gpu.conftest import Note
from tests.gpu.waits import forbid_waits, waits_allowed_again
from tests.parity.dit_case import build

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
LAYOUT = tiny.layout()
CONFIG = replace(tiny.CONFIG, hidden=64, head_dim=64, ffn=96, layers=3)
GIB = 2**30


def model(*, codes: bool = False) -> Dit:
    made = build({name: tensor.to(CUDA) for name, tensor in tiny.weights(CONFIG).items()}, torch.bfloat16, CONFIG)
    for name, module in list(made.named_modules()):
        if codes and isinstance(module, BackendLinear) and name.startswith("blocks.") and "adaln" not in name:
            install(made, name, Fp8Linear(), module.resident, CUDA)
    return made


def run(network: Any, asked: SamplerSettings, attention: Any = None, on_step: Any = None) -> Latents:
    keyframes, references = tiny.conditions(LAYOUT, CONFIG)
    named = {"device": CUDA, "dtype": torch.bfloat16, "attention": attention, "on_step": on_step}
    return denoise(network, LAYOUT, text(), keyframes, references, asked, **named)


def same(a: Latents, b: Latents) -> bool:
    return torch.equal(a.video, b.video) and torch.equal(a.audio, b.audio)


@pytest.mark.parametrize("codes", [False, True], ids=["bf16", "fp8"])
@pytest.mark.parametrize("family", [TorchProducers, TritonProducers])
@pytest.mark.parametrize("backend", [SdpaAttention, CudnnSdpaAttention])
def test_a_recorded_run_is_the_run_bit_for_bit(family: Any, backend: Any, codes: bool) -> None:
    dit, tally = model(codes=codes), Tally()
    dit.producers = family()
    attention = Counted(backend(), tally)
    store = Recordings("on", GIB, CUDA)
    for seed in (3, 4):
        asked = SamplerSettings(5, seed=seed)
        wanted = run(dit, asked, attention)
        plain = tally.look()
        assert same(run(store.of_run(dit, tally, 5), asked, attention), wanted)
        assert (
            tally.dispatches[attention.name] == 2 * plain.dispatches[attention.name] * (1 if seed == 3 else 0) or seed
        )
    assert store.told()["fault"] == ""
    assert store.replays == 10 and store.told()["recordings"] >= 1 and 0 < store.bytes < GIB


def test_calls_of_attention_are_counted_as_if_they_were_made() -> None:
    dit, plain, recorded = model(), Tally(), Tally()
    run(dit, SamplerSettings(4), Counted(SdpaAttention(), plain))
    run(Recordings("on", GIB, CUDA).of_run(dit, recorded, 4), SamplerSettings(4), Counted(SdpaAttention(), recorded))
    assert recorded.dispatches == plain.dispatches


def test_no_replayed_step_waits_for_the_device() -> None:
    dit, seen = model(), []
    network = Recordings("on", GIB, CUDA).of_run(dit, Tally(), 6)
    run(network, SamplerSettings(6))

    def on_step(step: Any) -> None:
        seen.append(step.index)
        forbid_waits()

    with waits_allowed_again():
        run(network, SamplerSettings(6), on_step=on_step)
    assert seen == list(range(6))


def test_what_is_measured_is_told_and_kept_if_it_helps(note: Note) -> None:
    dit, store = model(), Recordings("auto", GIB, CUDA)
    dit.producers = TritonProducers()
    assert store.of_run(dit, Tally(), 4) is dit, "nothing is known to help"
    with store.measuring():
        run(store.of_run(dit, Tally(), 1), SamplerSettings(1))
    (judged,) = store.judged.values()
    note(f"{judged}")
    assert judged.recorded_ms > 0 and judged.recording_ms > 0
    assert (judged.why == "") == (judged.recorded_ms <= 0.97 * judged.eager_ms) == bool(store.bytes)
    if not judged.why:
        wanted = run(dit, SamplerSettings(6))
        assert same(run(store.of_run(dit, Tally(), 6), SamplerSettings(6)), wanted) and store.replays > 0


def test_above_the_limit_none_is_kept_and_a_limit_holds_for_all_together() -> None:
    dit, none = model(), Recordings("on", 1000, CUDA)
    wanted = run(dit, SamplerSettings(2))
    assert same(run(none.of_run(dit, Tally(), 2), SamplerSettings(2)), wanted)
    assert none.replays == none.bytes == 0
    assert all("of at most 1000" in judged.why for judged in none.judged.values())


def test_memory_is_given_back_and_other_weights_need_other_recordings() -> None:
    dit, store = model(), Recordings("on", GIB, CUDA)
    run(store.of_run(dit, Tally(), 3), SamplerSettings(3))
    assert store.bytes
    linear = dit.blocks[0].mlp.fc1
    linear.resident = replace(linear.resident, weight=linear.resident.weight.clone().mul_(0.5))
    wanted = run(dit, SamplerSettings(3))
    network = store.of_run(dit, Tally(), 3)
    assert store.bytes == 0
    assert same(run(network, SamplerSettings(3)), wanted)
    store.clear()
    assert store.bytes == 0 and store.told()["recordings"] == 0
    assert same(run(store.of_run(dit, Tally(), 3), SamplerSettings(3)), wanted)


@pytest.mark.parametrize("task", ["t2va", "fl2va", "masked"])
def test_an_engine_s_clip_is_the_same_with_recorded_steps_and_without(
    engine: ResidentEngine, tmp_path: Path, note: Note, task: str
) -> None:
    store, found = engine.recordings, []
    before = store.mode
    try:
        for mode in ("off", "on", "on"):
            store.mode = mode
            found.append(requests.run(engine, requests.MAKERS[task](tmp_path, diagnostics=True)))
    finally:
        store.mode = before
    plain, *recorded = found
    assert all(requests.same_bits(plain.latents, other.latents) for other in recorded)
    told = recorded[-1].clip.diagnostics
    assert told is not None and told["cuda_graphs"]["fault"] == ""
    assert told["attention"] == plain.clip.diagnostics["attention"]
    note(
        f"{told['cuda_graphs']['replays']} replays, step seconds {plain.clip.diagnostics['step_seconds']} without, "
        f"{told['step_seconds']} with recordings"
    )
