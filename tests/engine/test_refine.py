"""The second pass: what it begins with and ends with, what it leaves alone, what it tells, and how it is stopped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open

from h3runtime.core import STEPS_SUFFIX, GuideInput, Latents, MaskSpan, Progress, SamplerSettings, SourceInput, Task
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.masks import Masks
from h3runtime.engine import refine_passes
from h3runtime.engine.conditions.gathering import conditions_of
from h3runtime.engine.conditions.media_cache import MediaCache
from h3runtime.engine.conditions.media_encoder import MediaEncoder
from h3runtime.engine.diagnosis import sha256_of_latents
from h3runtime.engine.latents_file import latents_path, read_latents
from h3runtime.engine.refine_passes import forwards_of, passes_of
from h3runtime.engine.resident import COMPUTE_DTYPE
from h3runtime.engine.sampling import Conditioned
from h3runtime.errors import CheckpointChanged, JobCancelled, OutOfMemory
from h3runtime.media.intake.clip_frames import clip_frames
from h3runtime.vae.upscaler import upscale
from tests.engine.conditioned import diagnostics_of, generate, image_reference, latents_of, same
from tests.engine.conftest import idle_run
from tests.engine.refining import refined, upscaler_file, with_upscaler


@pytest.fixture(autouse=True)
def shelf(engine, tmp_path):
    with with_upscaler(engine, upscaler_file(tmp_path / "upscaler.safetensors")) as found:
        yield found


def first_of(spec):
    return passes_of(spec)[0]


def test_the_sound_is_the_first_pass_s_bit_for_bit(engine, make_spec) -> None:
    spec = refined(make_spec)
    made, first = latents_of(engine, spec), latents_of(engine, first_of(spec))
    assert torch.equal(made.audio, first.audio)
    assert made.video.shape[-2:] == (6, 6) and first.video.shape[-2:] == (4, 4)


def test_the_second_pass_is_the_documented_one(engine, shelf, make_spec) -> None:
    """The last steps of a longer schedule, from the upscaled latents and noise of the request's own seed."""
    spec = refined(make_spec, seed=11)
    spec = replace(spec, refine=replace(spec.refine, steps=3, denoise=0.5))
    first = latents_of(engine, first_of(spec))
    vae = engine.models.vaes.video
    large = upscale(shelf.take(spec.refine), first.video, vae.latents_mean, vae.latents_std, 1.5)
    conditions = _conditions(engine, spec)
    text = engine.conditioner.condition(conditions.pieces, lambda: False)
    layout = Conditioned.of(passes_of(spec)[1], text, conditions).layout
    frozen = Masks(Latents(large, first.audio), None, torch.zeros(1, 1, 2, first.audio.shape[-1]))
    settings = SamplerSettings(steps=3, seed=11, denoise=0.5)
    wanted = denoise(
        engine.models.transformer_of(spec.task),
        layout,
        text,
        (),
        (),
        settings,
        device=engine.device,
        dtype=COMPUTE_DTYPE,
        attention=engine.attention,
        init=Latents(large, first.audio),
        masks=frozen,
    )
    assert same(latents_of(engine, spec), wanted)


def _conditions(engine, spec):
    return conditions_of(spec, MediaEncoder(engine.models.vaes, engine.device, MediaCache(0), idle_run()))


def test_a_clip_tells_of_both_passes(engine, make_spec) -> None:
    seen: list[Progress] = []
    clip = engine.generate(refined(make_spec), seen.append, lambda: False)
    assert (clip.width, clip.height, clip.forwards) == (96, 96, 3)
    assert clip.refined is not None and clip.refined.forwards == 2
    spent = clip.refined.upscaling_seconds + clip.refined.sampling_seconds
    assert 0 < spent <= clip.timings["sampling"]
    steps = [progress.step for progress in seen if progress.stage == "sampling"]
    assert steps == sorted(steps) and set(steps) == {0, 1, 2, 3}
    assert {progress.steps for progress in seen if progress.stage == "sampling"} == {3}
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0


def test_guides_are_encoded_anew_for_the_larger_canvas(engine, make_spec, media, monkeypatch) -> None:
    sizes: list[tuple[str, int, int]] = []
    for name in ("picture", "clip"):
        right = getattr(MediaEncoder, name)

        def spy(self, medium, width, height, *more, _name=name, _right=right, **named):
            sizes.append((_name, width, height))
            return _right(self, medium, width, height, *more, **named)

        monkeypatch.setattr(MediaEncoder, name, spy)
    clip = media.clip("keyframes[0]", 5)
    guides = (
        GuideInput("first_frame", 0, picture=media.picture("first_frame"), shown=True),
        GuideInput("keyframes[0]", 17, clip=clip, sound=media.sound_of(clip)),
    )
    spec = refined(make_spec, frames=22, task=Task.I2VA, guides=guides)
    found = diagnostics_of(engine, spec)
    assert sizes == [("picture", 64, 64), ("clip", 64, 64), ("picture", 96, 96), ("clip", 96, 96)]
    assert found["rows"]["cond"] == (1 + 2) * 4 and found["refine"]["rows"]["cond"] == (1 + 2) * 9
    assert found["refine"]["rows"]["text"] > found["rows"]["text"], "the encoder is shown the larger picture"


def test_what_a_source_keeps_is_kept_at_the_new_size(engine, make_spec, media) -> None:
    clip = media.clip("source", 5, width=96, height=48)
    mask = np.zeros((64, 64), np.uint8)
    spans = (MaskSpan(0.0, 1.0, 1.0),)
    source = SourceInput(clip, media.sound_of(clip), media.mask(mask), spans)
    spec = refined(make_spec, source=source)
    made, first = latents_of(engine, spec), latents_of(engine, first_of(spec))
    frames = clip_frames(clip, 96, 96, "stretch")
    assert torch.equal(made.video, engine.models.vaes.video.encode_stream(frames, 5))
    assert torch.equal(made.audio, first.audio)


def test_references_keep_their_size_and_several_clips_their_seeds(engine, make_spec, media) -> None:
    references = (image_reference(media, 0),)
    spec = refined(make_spec, task=Task.REF2VA, references=references, seed=5)
    assert forwards_of(spec) == (1, 2)
    both = generate(engine, replace(spec, n=2, save_latents=True))
    second = latents_of(engine, replace(spec, sampling=replace(spec.sampling, seed=6)))
    assert same(read_latents(latents_path(both.variants[0].output))[0], second)
    assert both.variants[0].refined is not None


def test_diagnostics_tell_the_passes_apart(engine, make_spec) -> None:
    spec = replace(refined(make_spec), save_latents=True, diagnostic_latents=True)
    found = diagnostics_of(engine, spec)
    assert len(found["step_seconds"]) == 1 and len(found["refine"]["step_seconds"]) == 2
    assert (found["rows"]["video"], found["refine"]["rows"]["video"]) == (2 * 4, 2 * 9)
    assert found["refine"]["first_sha256"] == sha256_of_latents(latents_of(engine, first_of(spec)))
    with safe_open(spec.output.with_name(spec.output.name + STEPS_SUFFIX), "pt") as file:
        names = set(file.keys())
    assert {"step0.x", "refine.step0.x", "refine.step1.denoised"} <= names


def test_a_plan_ends_with_what_runs_the_second_pass(make_spec) -> None:
    spec = replace(refined(make_spec, steps=3), attention_plan=("a", "a", "b"), attention=None)
    first, second = passes_of(spec)
    assert first.attention_plan == ("a", "a", "b") and (first.width, first.height) == (64, 64)
    assert (second.attention, second.attention_plan, second.refine) == ("b", (), None)
    assert (second.sampling.steps, second.sampling.denoise, second.sampling.seed) == (3, 0.3, 7)


class StopIn:
    """Says stop at the first look after `step` of the sampling."""

    def __init__(self, step: int) -> None:
        self.step, self.there = step, False

    def on_progress(self, progress: Progress) -> None:
        self.there = progress.stage == "sampling" and progress.step == self.step

    def __call__(self) -> bool:
        return self.there


@pytest.mark.parametrize("step", [1, 2])
def test_a_stop_is_seen_while_it_upscales_and_in_the_second_pass(engine, shelf, make_spec, tmp_path, step) -> None:
    stop = StopIn(step)
    with pytest.raises(JobCancelled) as caught:
        engine.generate(refined(make_spec), stop.on_progress, stop)
    assert caught.value.stage == "sampling" and caught.value.step == step
    assert not list(tmp_path.glob("*.mp4"))
    assert not any(layer._forward_pre_hooks for layer in shelf.take(refined(make_spec).refine).modules())


def test_a_full_memory_gives_the_upscaler_s_back_and_the_next_clip_has_it_again(
    engine, shelf, make_spec, monkeypatch
) -> None:
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0")

    with monkeypatch.context() as patch, pytest.raises(OutOfMemory):
        patch.setattr("h3runtime.vae.upscaler.LatentUpscaler.forward", full)
        generate(engine, refined(make_spec))
    assert shelf.bytes == 0
    assert generate(engine, refined(make_spec)).forwards > 0
    assert shelf.bytes > 0


def test_another_upscaler_than_the_admitted_one_fails_before_the_first_pass(engine, make_spec) -> None:
    spec = refined(make_spec)
    seen: list[Progress] = []
    with pytest.raises(CheckpointChanged) as caught:
        engine.generate(replace(spec, refine=replace(spec.refine, upscaler="ab" * 32)), seen.append, lambda: False)
    assert caught.value.stage == "conditioning" and "sampling" not in {progress.stage for progress in seen}


def test_an_estimate_is_what_the_run_has(engine, shelf, make_spec, media) -> None:
    guides = (GuideInput("first_frame", 0, picture=media.picture("first_frame"), shown=True),)
    spec = refined(make_spec, task=Task.I2VA, guides=guides)
    told, found = engine.estimate(spec), diagnostics_of(engine, spec)
    assert told.forwards == 3
    assert {"total": sum(told.rows.values()), **told.rows} == found["refine"]["rows"]
    assert told.memory["sampling_bytes"] == found["memory_estimate"]["sampling_bytes"]
    assert told.memory["upscaler_bytes"] == shelf.facts.bytes == shelf.bytes
    alone = engine.estimate(replace(spec, refine=None))
    first = engine.estimate(first_of(spec))
    assert told.memory["decode_bytes"] == alone.memory["decode_bytes"] > first.memory["decode_bytes"]
    assert told.work.stages["sampling"] > first.work.stages["sampling"] + alone.work.stages["sampling"] * 1.5
    assert told.work.stages["video_decode"] == alone.work.stages["video_decode"]
    assert told.work.stages["conditioning"] > first.work.stages["conditioning"]


def test_what_would_fit_is_told_as_requests_name_it(make_spec) -> None:
    spec = refined(make_spec, scale=2.0)
    smaller = refine_passes.on_canvas(spec, refine_passes.asked_canvas(spec)._replace(width=96))
    assert (smaller.width, smaller.height) == (192, 128)
    assert (smaller.refine.width, smaller.refine.height) == (96, 64)
