"""A seed means the same noise on every device, and the same clip every time on one."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from h3runtime.core import Keyframe, KeyframeShape, Latents, SamplerSettings, TextFeatures
from h3runtime.denoiser.conditions import condition_rows
from h3runtime.denoiser.denoise import begin
from h3runtime.engine.resident import ResidentEngine
from h3runtime.packing.layout import pack
from tests.gpu.conftest import Note
from tests.gpu.requests import MAKERS, reseeded, run, same_bits

pytestmark = pytest.mark.gpu

T, HEIGHT, WIDTH, SOUNDS, TEXT_ROWS = 7, 6, 10, 37, 5
SETTINGS = SamplerSettings(steps=3, seed=440407, denoise=0.7)


def layout():
    shapes = [KeyframeShape(frame=0, latent_frames=1), KeyframeShape(frame=21, latent_frames=1)]
    return pack(T, HEIGHT, WIDTH, SOUNDS, np.ones(TEXT_ROWS, dtype=np.int64), shapes)


def keyframes(device: torch.device) -> list[Keyframe]:
    generator = torch.Generator().manual_seed(1)
    latents = [torch.randn(1, 24, 1, HEIGHT, WIDTH, generator=generator) for _ in range(2)]
    return [Keyframe(0, latents[0].to(device)), Keyframe(21, latents[1].to(device))]


def first_state(engine: ResidentEngine, init: Latents) -> torch.Tensor:
    """What the sampler starts from: the noise, mixed with an initial latent."""
    network = engine.models.transformers["fl2va"]
    text = torch.randn(1, TEXT_ROWS, network.config.text_dim, generator=torch.Generator().manual_seed(2))
    _, x = begin(
        network,
        layout(),
        TextFeatures(text, np.ones(TEXT_ROWS, dtype=np.int64)),
        keyframes(engine.device),
        (),
        SETTINGS,
        device=engine.device,
        dtype=torch.bfloat16,
        init=init,
    )
    return x


def test_a_run_starts_from_the_same_bits(engine: ResidentEngine, cpu_engine: ResidentEngine) -> None:
    generator = torch.Generator().manual_seed(3)
    video = torch.randn(1, 24, T, HEIGHT, WIDTH, generator=generator)
    audio = torch.randn(1, 32, 2, SOUNDS, generator=generator)
    ours, theirs = (first_state(e, Latents(video, audio)) for e in (engine, cpu_engine))
    assert ours.is_cuda
    assert torch.equal(ours.cpu(), theirs)


def test_condition_rows_are_noised_with_the_same_bits(cuda: torch.device) -> None:
    on_gpu, on_cpu = (list(condition_rows(layout(), keyframes(d), (), 440407)) for d in (cuda, torch.device("cpu")))
    assert len(on_gpu) == 2
    for (_, rows), (_, wanted) in zip(on_gpu, on_cpu, strict=True):
        assert rows.is_cuda
        assert torch.equal(rows.cpu(), wanted)


@pytest.mark.parametrize("task", MAKERS)
def test_a_seed_repeats_bit_for_bit(engine: ResidentEngine, tmp_path: Path, note: Note, task: str) -> None:
    spec = MAKERS[task](tmp_path)
    first, second = run(engine, spec), run(engine, spec)
    assert same_bits(first.latents, second.latents)
    assert first.clip.sha256 == second.clip.sha256
    other = run(engine, reseeded(spec, 8))
    assert not same_bits(first.latents, other.latents)
    assert first.clip.sha256 != other.clip.sha256
    digest = hashlib.sha256(first.latents.video.numpy().tobytes() + first.latents.audio.numpy().tobytes())
    note(f"latents {digest.hexdigest()[:16]}")
