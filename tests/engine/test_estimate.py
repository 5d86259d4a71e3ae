"""An estimate beside what the run it is about really has, and what it leaves alone."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from h3runtime.checkpoint.synthetic import layouts
from h3runtime.core import GuideInput, MediaFile, SamplerSettings, SoundInput, SourceInput, Task
from h3runtime.denoiser.config import DitConfig
from h3runtime.engine import estimating
from h3runtime.engine.memory_budget import capacity_bytes, held_bytes
from h3runtime.engine.memory_formulas import Shot
from h3runtime.engine.work import forward_work, video_decode_work
from h3runtime.errors import BadMedia, InvalidRequest
from h3runtime.vae.tiling import Tiling
from h3runtime.vae.video_config import VideoVaeConfig
from tests.engine.conditioned import clip_reference, diagnostics_of, generate, image_reference, voice_reference


def text(make_spec, _):
    return make_spec(prompt="ein Ball, <d>[German] hallo</d> — 你好 " * 20, steps=1)


def shown(make_spec, media):
    pictures = [media.picture(name, seed) for seed, name in enumerate(("first_frame", "last_frame"))]
    guides = tuple(
        GuideInput(picture.field, at, picture=picture, shown=True)
        for at, picture in zip((0, 21), pictures, strict=True)
    )
    return replace(make_spec(steps=1), task=Task.FL2VA, guides=guides)


def heard(make_spec, media):
    clip = media.clip("keyframes[0]", 5)
    guides = (
        GuideInput("keyframes[0]", 0, clip=clip, sound=media.sound_of(clip)),
        GuideInput("keyframes[1]", 7, sound=media.voice("keyframes[1]")),
    )
    return replace(make_spec(width=64, height=64, steps=1), guides=guides)


def masked(make_spec, media):
    clip = media.clip("source", 5)
    return replace(make_spec(width=64, height=64, frames=5, steps=1), source=SourceInput(clip, media.sound_of(clip)))


def referred(make_spec, media):
    cut = voice_reference(media, 3)
    cut = replace(cut, sound=SoundInput(cut.sound.file, 0.4, 0.77))
    references = (clip_reference(media, 0, 39), image_reference(media, 1), voice_reference(media, 2), cut)
    guide = GuideInput("keyframes[0]", 20, picture=media.picture("keyframes[0]", 3), shown=True)
    return replace(make_spec(steps=1), task=Task.REF2VA, references=references, guides=(guide,))


@pytest.mark.parametrize("make", [text, shown, heard, masked, referred])
def test_rows_and_memory_are_the_run_s_own(engine, make_spec, media, make) -> None:
    spec = make(make_spec, media)
    estimate, found = engine.estimate(spec), diagnostics_of(engine, spec)
    assert {**estimate.rows, "total": sum(estimate.rows.values())} == found["rows"]
    assert estimate.memory == found["memory_estimate"] and estimate.memory["total_bytes"] == estimate.peak_bytes
    assert estimate.forwards == len(found["step_seconds"])
    assert estimate.fits and not estimate.would_fit


def test_forwards_are_those_that_run(engine, make_spec) -> None:
    estimate = engine.estimate(make_spec(steps=200))
    assert 138 < estimate.forwards < 200
    assert engine.estimate(make_spec(steps=200, scheduler="simple")).forwards == 200


def test_work_is_told_by_stage_and_grows_with_what_is_asked(engine, make_spec) -> None:
    one, two = (engine.estimate(replace(make_spec(), n=n)).work.stages for n in (1, 2))
    assert list(one) == ["conditioning", "sampling", "audio_decode", "video_decode", "mux"]
    assert all(value > 0 for value in one.values())
    assert two == {stage: value * (1 if stage == "conditioning" else 2) for stage, value in one.items()}


def test_work_at_the_published_sizes_is_that_of_the_design() -> None:
    dit = DitConfig.from_shapes(layouts.transformer_shapes(layouts.TransformerSizes()))
    assert forward_work(dit, 37_810) == pytest.approx(1.457e15 + 2.049e15, rel=1e-3)
    vae = VideoVaeConfig.from_shapes(layouts.video_vae_shapes(layouts.VideoVaeSizes()))
    assert video_decode_work(vae.decoder, Tiling(), Shot(124, 1344, 768)) == pytest.approx(1.70e15 + 0.19e15, rel=1e-2)


def test_the_warm_up_is_a_first_history(engine) -> None:
    warmed = engine.facts().warm_up
    assert len(warmed) == 3 and all(work.seconds.keys() == work.stages.keys() for work in warmed)
    # What a clip costs at least can't be told from one size (jobs/history.py).
    for stage in ("sampling", "video_decode", "mux"):
        assert len({work.stages[stage] for work in warmed}) == 2
    assert all(seconds > 0 for work in warmed for seconds in work.seconds.values())


def test_what_requests_leave_behind_counts_for_the_next(engine, make_spec) -> None:
    kept = torch.ones(1 << 24)
    generate(engine, make_spec(width=64, height=64, frames=5, steps=1))
    before = engine.estimate(make_spec()).peak_bytes
    del kept
    generate(engine, make_spec(width=64, height=64, frames=5, steps=1))
    assert before - engine.estimate(make_spec()).peak_bytes == pytest.approx(1 << 26, rel=0.3)


class Small(TorchDispatchMode):
    """Lets pass what a table of sigmas takes, and nothing of a request's size."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        made = operation(*args, **(kwargs or {}))
        assert not isinstance(made, torch.Tensor) or (made.numel() <= 1001 and made.device.type == "cpu"), operation
        return made


def test_nothing_of_the_request_s_size_is_made(engine, make_spec) -> None:
    with Small():
        large = engine.estimate(make_spec(width=1344, height=768, frames=362, steps=12))
    assert large.rows["video"] == 107 * 42 * 24


def test_another_thread_may_ask_while_a_clip_is_made(engine, make_spec) -> None:
    spec = make_spec(steps=3, overwrite=True)
    alone, before = engine.estimate(spec), generate(engine, spec).sha256
    asked: list[object] = []

    def ask() -> None:
        asked.extend(engine.estimate(replace(spec, prompt=f"{spec.prompt} {index}")) for index in range(50))

    thread = threading.Thread(target=ask)
    thread.start()
    after = generate(engine, spec).sha256
    thread.join()
    assert after == before and len(asked) == 50 and engine.estimate(spec).rows == alone.rows


def test_a_sound_that_is_gone_is_told(engine, make_spec, media, tmp_path) -> None:
    gone = replace(
        voice_reference(media, 0), sound=SoundInput(MediaFile(tmp_path / "gone.wav", "references[0].source"))
    )
    spec = replace(make_spec(), task=Task.REF2VA, references=(image_reference(media, 1), gone))
    with pytest.raises(BadMedia, match=r"references\[0\]\.source"):
        engine.estimate(spec)


def test_what_would_fit_is_told_and_does(engine, make_spec, monkeypatch) -> None:
    long = make_spec(width=64, height=64, frames=362)
    room = engine.estimate(replace(long, frames=124)).peak_bytes
    monkeypatch.setattr(estimating, "capacity_bytes", lambda *_: room)
    assert engine.estimate(long).would_fit == "frames 124 at 64x64"
    assert engine.estimate(replace(long, frames=124)).fits
    wide = make_spec(width=1344, height=768, frames=39)
    room = engine.estimate(replace(wide, width=960, height=544)).peak_bytes
    assert engine.estimate(wide).would_fit.endswith("960x544 at 39 frames")
    monkeypatch.setattr(estimating, "capacity_bytes", lambda *_: 1000)
    told = engine.estimate(wide)
    assert not told.fits and told.would_fit == "no length at this size, and no size at this length"


def test_capacity_is_what_is_held_and_what_is_free() -> None:
    cpu = torch.device("cpu")
    assert held_bytes(cpu) < capacity_bytes(cpu)


def test_an_illegal_schedule_is_refused(engine, make_spec) -> None:
    with pytest.raises(InvalidRequest, match="steps"):
        engine.estimate(replace(make_spec(), sampling=SamplerSettings(steps=0)))
