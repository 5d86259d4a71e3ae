"""Requests through the real engine: what comes out is what was promised, again and again the same."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from h3runtime.core import SAMPLES_PER_LATENT, GenerateSpec, GuideInput, MediaFile, Progress, Task
from h3runtime.engine.latents_file import latents_path, read_latents
from h3runtime.engine.resident import ResidentEngine
from h3runtime.engine.sampling import Sampler
from h3runtime.errors import BackendUnavailable, EngineDead, JobCancelled, OutputExists
from h3runtime.media.probe import probe_clip, read_frames, read_sound
from h3runtime.media.sound import samples_for
from h3runtime.packing.geometry import audio_latents

FRAMES = 22
AAC_FRAME = 1024
"""Samples an AAC packet stands for: 32 ms at 32 kHz."""

MakeSpec = Callable[..., GenerateSpec]
Picture = Callable[[int], MediaFile]


def first_guide(picture: MediaFile) -> GuideInput:
    return GuideInput("first_frame", 0, picture=picture, fit="stretch", shown=True)


def last_guide(picture: MediaFile) -> GuideInput:
    return GuideInput("last_frame", FRAMES - 1, picture=picture, shown=True)


def generate(engine: ResidentEngine, spec: GenerateSpec):
    return engine.generate(spec, lambda _: None, lambda: False)


def sound_of(spec: GenerateSpec):
    samples, rate = read_sound(spec.output)
    assert rate == 32_000
    return samples


def latents_of(engine: ResidentEngine, spec: GenerateSpec):
    generate(engine, replace(spec, save_latents=True))
    return read_latents(latents_path(spec.output))[0]


def test_the_clip_is_what_was_promised(engine: ResidentEngine, make_spec: MakeSpec) -> None:
    spec = make_spec(frames=39, width=128, height=96)
    clip = generate(engine, spec)
    facts = probe_clip(spec.output)
    assert (facts.frames, facts.width, facts.height, facts.rate) == (39, 128, 96, 24)
    assert facts.sound is not None and (facts.sound.rate, facts.sound.channels) == (32_000, 2)
    assert clip.samples == min(SAMPLES_PER_LATENT * audio_latents(39), samples_for(39))
    assert abs(sound_of(spec).shape[-1] - clip.samples) <= AAC_FRAME
    assert clip.bytes == spec.output.stat().st_size


@pytest.mark.parametrize("frames", [5, 22, 56, 73])
def test_every_length_has_its_frames(engine: ResidentEngine, make_spec: MakeSpec, frames: int) -> None:
    spec = make_spec(frames=frames, width=64, height=64, steps=1)
    clip = generate(engine, spec)
    assert clip.frames == len(read_frames(spec.output)) == frames
    assert clip.samples == min(SAMPLES_PER_LATENT * audio_latents(frames), samples_for(frames))


def test_a_lost_device_asks_for_a_new_process(
    engine: ResidentEngine, make_spec: MakeSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_: object, **__: object) -> None:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure\nSearch for ... in /usr/local")

    monkeypatch.setattr(Sampler, "sample", lose)
    with pytest.raises(EngineDead) as caught:
        generate(engine, make_spec())
    assert caught.value.message == "the device failed: CUDA error: unspecified launch failure"
    assert caught.value.stage == "conditioning"


def test_a_seed_repeats_bit_for_bit(engine: ResidentEngine, make_spec: MakeSpec) -> None:
    first, second = make_spec("first"), make_spec("second")
    generate(engine, first), generate(engine, second)
    assert np.array_equal(read_frames(first.output), read_frames(second.output))
    assert np.array_equal(sound_of(first), sound_of(second))


def test_another_seed_differs(engine: ResidentEngine, make_spec: MakeSpec) -> None:
    first, second = make_spec("first", seed=1), make_spec("second", seed=2)
    generate(engine, first), generate(engine, second)
    assert not np.array_equal(read_frames(first.output), read_frames(second.output))
    assert not np.array_equal(sound_of(first), sound_of(second))


def test_a_seed_does_not_depend_on_what_ran_before(engine: ResidentEngine, make_spec: MakeSpec) -> None:
    alone = latents_of(engine, make_spec("alone"))
    generate(engine, make_spec("between", width=64, seed=9, prompt="something else"))
    again = latents_of(engine, make_spec("again"))
    assert alone.video.equal(again.video) and alone.audio.equal(again.audio)


def test_the_prompt_is_heard(engine: ResidentEngine, make_spec: MakeSpec) -> None:
    one, other = latents_of(engine, make_spec("one")), latents_of(engine, make_spec("other", prompt="a green cube"))
    distance = float((one.video - other.video).norm() / one.video.norm())
    assert distance > 1e-3


@pytest.mark.parametrize("task", [Task.I2VA, Task.L2VA, Task.FL2VA])
def test_pictures_condition_the_clip(engine: ResidentEngine, make_spec: MakeSpec, picture: Picture, task: Task) -> None:
    def with_pictures(name: str, number: int) -> GenerateSpec:
        first, last = first_guide(picture(number)), last_guide(picture(number + 100))
        guides = {Task.I2VA: (first,), Task.L2VA: (last,), Task.FL2VA: (first, last)}[task]
        return make_spec(name, task=task, guides=guides)

    one, other = latents_of(engine, with_pictures("one", 1)), latents_of(engine, with_pictures("other", 2))
    assert not one.video.equal(other.video)
    same = latents_of(engine, with_pictures("same", 1))
    assert one.video.equal(same.video) and one.audio.equal(same.audio)


def test_progress_never_falls_and_ends_at_one(engine: ResidentEngine, make_spec: MakeSpec) -> None:
    seen: list[Progress] = []
    engine.generate(make_spec(), seen.append, lambda: False)
    fractions = [p.fraction for p in seen]
    assert fractions == sorted(fractions) and fractions[-1] == 1
    assert [p.stage for p in seen if p.stage != ""][-1] == "done"
    assert {"conditioning", "sampling", "audio_decode", "video_decode", "mux"} <= {p.stage for p in seen}


@pytest.mark.parametrize("stage", ["conditioning", "sampling", "audio_decode", "video_decode", "mux"])
def test_a_stop_leaves_nothing(engine: ResidentEngine, make_spec: MakeSpec, stage: str) -> None:
    spec, reached = make_spec(), []

    def notice(progress: Progress) -> None:
        if progress.stage == stage:
            reached.append(stage)

    with pytest.raises(JobCancelled):
        engine.generate(spec, notice, lambda: bool(reached))
    assert [p.name for p in spec.scratch.iterdir()] == []


def test_a_request_takes_another_linear_from_the_same_weights(engine: ResidentEngine, make_spec: MakeSpec) -> None:
    """What is decoded once serves as what is decoded at every call, bit for bit; what was never encoded doesn't."""
    names, found = ("resident_bf16", "dequant", "fp32", None), {}
    for name in names:
        clip = generate(engine, make_spec(f"with {name}", linear=name, diagnostics=True))
        assert clip.linear == (name or "resident_bf16") and clip.diagnostics is not None
        assert clip.diagnostics["linear"]["backend"] == clip.linear
        found[name] = clip.diagnostics["latents_sha256"]
    assert found[None] == found["resident_bf16"] == found["dequant"] != found["fp32"]
    assert set(engine.facts().linear.available) == {"resident_bf16", "dequant", "fp32"}
    with pytest.raises(BackendUnavailable, match="loaded for resident_bf16; a server started with linear fp8 has it"):
        generate(engine, make_spec("other", linear="fp8"))


def test_an_existing_output_is_kept(engine: ResidentEngine, make_spec: MakeSpec) -> None:
    spec = make_spec()
    spec.output.write_text("mine")
    with pytest.raises(OutputExists):
        generate(engine, spec)
    assert spec.output.read_text() == "mine"
    generate(engine, replace(spec, overwrite=True))
    assert len(read_frames(spec.output)) == spec.frames


def test_diagnostics_tell_of_the_run(engine: ResidentEngine, make_spec: MakeSpec, picture: Picture) -> None:
    spec = make_spec(task=Task.I2VA, guides=(first_guide(picture(1)),), diagnostics=True, steps=3)
    found = generate(engine, spec).diagnostics
    assert found is not None
    assert len(found["step_seconds"]) == 3
    (given,) = found["inputs"]
    assert given["saw"]["width"] == 120
    assert given["got"] == {"width": 96, "height": 64, "frames": 1, "latents": 1, "frame": 0}
    assert generate(engine, replace(spec, diagnostics=False, overwrite=True)).diagnostics is None


def test_timings_cover_the_stages(engine: ResidentEngine, make_spec: MakeSpec) -> None:
    timings = dict(generate(engine, make_spec()).timings)
    total = timings.pop("total")
    assert set(timings) == {"conditioning", "sampling", "audio_decode", "video_decode", "mux"}
    assert 0 < sum(timings.values()) <= total


def test_the_result_is_alive(engine: ResidentEngine, make_spec: MakeSpec) -> None:
    """Made-up weights or not: moving texture, audible sound, and no finding but that noise begins at once."""
    spec = make_spec(width=320, height=192, frames=39, steps=6)
    clip = generate(engine, spec)
    findings = [text for check in clip.checks.values() for _, text in check.findings]
    assert all(text.startswith("the first 100 ms") for text in findings)
    frames = read_frames(spec.output).astype(np.float32)
    assert frames.std() > 8
    assert np.abs(np.diff(frames, axis=0)).mean() > 0.5
    sound = sound_of(spec)
    assert 0.01 < sound.std() < 0.5


def test_step_latents_lie_beside_the_clip(engine: ResidentEngine, make_spec: MakeSpec) -> None:
    spec = make_spec(steps=3, diagnostics=True, diagnostic_latents=True)
    found = generate(engine, spec).diagnostics
    assert found is not None
    saved = load_file(spec.output.with_name(found["step_latents"]))
    assert {f"step{i}.{kind}" for i in range(3) for kind in ("x", "denoised")} == set(saved)
    final = latents_of(engine, replace(spec, diagnostics=False, diagnostic_latents=False, overwrite=True))
    assert saved["step2.denoised"][: final.video.numel()].allclose(final.video.flatten(), atol=1e-5)


def test_a_job_that_fails_leaves_no_latents(engine: ResidentEngine, make_spec: MakeSpec) -> None:
    spec, seen = make_spec(save_latents=True, diagnostics=True, diagnostic_latents=True), []
    outputs = spec.output.parent / "outputs"
    outputs.mkdir()
    spec = replace(spec, output=outputs / "clip.mp4")
    with pytest.raises(JobCancelled):
        engine.generate(spec, lambda p: seen.append(p.stage), lambda: "video_decode" in seen)
    assert list(outputs.iterdir()) == []
