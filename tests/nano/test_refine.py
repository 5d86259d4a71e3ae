"""A refined clip of h3-nano: twice the canvas, the same sound, and the judge finds in it what was asked for.

128x128 becomes 256x256 with the settings of a request that names none. Of the first eight prompts of
benchmarks/upscale.py all 74 judged items were right before, 72 were after it, and 71 were of clips made at 256x256 at
once: this model knows smaller canvases better. One item of the few clips here may be lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from h3runtime.api.rules.refine import DENOISE, STEPS
from h3runtime.core import RefinePass
from h3runtime.engine.latents_file import latents_path, read_latents
from h3runtime.engine.resident import ResidentEngine
from h3runtime.media.probe import read_frames, read_sound
from h3runtime.nano.judge import Verdict, judge
from h3runtime.settings import Settings
from h3runtime.vae.upscaler import CHUNK
from tests.nano.test_truth import drawn_scenes, request

LOST = 1
"""Items of the clips below that may be right before and wrong after."""
CHUNK_ERROR = 0.08
"""Relative L2 between latents upscaled in chunks and as a whole: 0.046 to 0.053 measured, of noise that is alike
throughout. Norms that count other latents give other numbers where a clip changes."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResidentEngine]:
    settings = Settings(device="cpu", data_dir=tmp_path_factory.mktemp("data"))
    resident = ResidentEngine(settings, threads=1, warm_up=False, partitions=("fl2va",))
    resident.load(lambda _: None)
    yield resident
    resident.close()


def test_twice_the_canvas_shows_and_sounds_as_before(engine: ResidentEngine, tmp_path) -> None:
    lost = 0
    for scene in drawn_scenes()[:2]:
        plain = replace(request(scene, tmp_path), save_latents=True)
        before, first = made(engine, plain, scene)
        large = replace(plain, width=256, height=256, refine=RefinePass(128, 128, 2.0, STEPS, DENOISE))
        after, second = made(engine, large, scene)
        assert torch.equal(first.audio, second.audio) and second.video.shape[-2:] == (16, 16)
        lost += sum(value is True and after[item] is False for item, value in before.items())
    assert lost <= LOST


def made(engine: ResidentEngine, spec, scene) -> tuple[Verdict, object]:
    engine.generate(spec, lambda _: None, lambda: False)
    frames, sound = read_frames(spec.output), read_sound(spec.output)[0]
    return judge(scene, frames, sound), read_latents(latents_path(spec.output))[0]


@torch.no_grad()
def test_chunks_are_nearly_the_whole(engine: ResidentEngine) -> None:
    """The trained upscaler's norms count each chunk by itself, which is part of the published arithmetic."""
    model = engine.upscaler.take(RefinePass(128, 128, 2.0, STEPS, DENOISE))
    latents = torch.randn(1, 24, CHUNK + 6, 8, 8, generator=torch.Generator().manual_seed(0))
    chunked, whole = model(latents, (16, 16), 2.0), model._together(latents, (16, 16), 2.0)
    assert 0 < float((chunked - whole).norm() / whole.norm()) <= CHUNK_ERROR
