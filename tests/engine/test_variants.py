"""Several clips of one request: the same as each by itself, conditioned once, and published together or not at all."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.core import STEPS_SUFFIX, Progress, TailRequest, variant_path
from h3runtime.engine import resident, variants
from h3runtime.engine.latents_file import latents_path, read_latents
from h3runtime.errors import EncoderFailed, JobCancelled, OutputExists
from tests.engine.conditioned import same

SEED = 2**64 - 3


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def spec(make_spec, tmp_path):
    """Three tiny clips, with the folders that a service has."""
    for name in ("outputs", "scratch", "tails"):
        (tmp_path / name).mkdir()
    return replace(
        make_spec(width=64, height=64, frames=5, steps=1, seed=SEED),
        n=3,
        output=tmp_path / "outputs" / "cat.mp4",
        scratch=tmp_path / "scratch",
    )


@pytest.fixture
def encodes(engine, monkeypatch) -> list[None]:
    """One entry for each time that the text encoder runs; nothing is remembered."""
    found: list[None] = []
    encode = TextEncoder.encode
    monkeypatch.setattr(TextEncoder, "encode", lambda *given: (found.append(None), encode(*given))[1])
    monkeypatch.setattr(engine.conditioner.cache, "max_bytes", 0)
    engine.conditioner.cache.clear()
    return found


def test_each_is_the_request_of_its_own_seed(engine, spec, encodes, tmp_path) -> None:
    tail = TailRequest(tmp_path / "tails" / "cat.mkv", 5)
    asked = replace(spec, save_latents=True, diagnostics=True, diagnostic_latents=True, tail=tail)
    seen: list[Progress] = []
    first = engine.generate(asked, seen.append, lambda: False)
    clips = (first, *first.variants)
    assert len(encodes) == 1
    assert [clip.seed for clip in clips] == [SEED, SEED + 1, SEED + 2]
    assert [clip.output for clip in clips] == [variant_path(spec.output, i, 3) for i in range(3)]
    files = [f"cat-{i}.mp4{end}" for i in range(3) for end in ("", ".latents.safetensors")]
    assert names(spec.output.parent) == sorted([*files, f"cat-0.mp4{STEPS_SUFFIX}"])
    assert names(tmp_path / "tails") == ["cat.mkv"] and names(spec.scratch) == []
    assert first.diagnostics is not None and first.diagnostics["step_latents"] == f"cat-0.mp4{STEPS_SUFFIX}"
    assert all(clip.diagnostics is None and not clip.timings and not clip.memory for clip in first.variants)
    alone = replace(spec, n=1, output=spec.scratch / "one.mp4", overwrite=True, save_latents=True)
    for index, clip in enumerate(clips):
        one = engine.generate(
            replace(alone, sampling=replace(spec.sampling, seed=SEED + index)), lambda _: None, lambda: False
        )
        assert one.sha256 == clip.sha256
        assert clip.latents_output == latents_path(clip.output)
        assert same(read_latents(clip.latents_output)[0], read_latents(latents_path(alone.output))[0])


def test_progress_covers_all_of_them(engine, spec) -> None:
    seen: list[Progress] = []
    clip = engine.generate(spec, seen.append, lambda: False)
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions) and fractions[-1] == 1.0
    stages = [stage for stage, _ in itertools.groupby(progress.stage for progress in seen)]
    assert stages == ["conditioning", *["sampling", "audio_decode", "video_decode", "mux"] * 3, "done"]
    assert max(p.fraction for p in seen[: len(seen) // 3]) < 0.5
    assert all(progress.step <= progress.steps for progress in seen)
    assert clip.timings["total"] >= sum(seconds for stage, seconds in clip.timings.items() if stage != "total")


def test_one_that_fails_leaves_nothing(engine, spec, monkeypatch) -> None:
    write, calls = resident.write_clip, itertools.count()

    def failing(*given):
        if next(calls) == 2:
            raise EncoderFailed("no")
        return write(*given)

    monkeypatch.setattr(resident, "write_clip", failing)
    with pytest.raises(EncoderFailed):
        engine.generate(replace(spec, save_latents=True), lambda _: None, lambda: False)
    assert names(spec.output.parent) == names(spec.scratch) == []


def test_a_stop_between_two_of_them_leaves_nothing(engine, spec) -> None:
    seen: list[Progress] = []
    with pytest.raises(JobCancelled):
        engine.generate(spec, seen.append, lambda: [p.stage for p in seen].count("mux") >= 3)
    assert names(spec.output.parent) == names(spec.scratch) == []


def test_a_name_that_is_taken_is_told_before_any_work(engine, spec) -> None:
    variant_path(spec.output, 2, 3).write_bytes(b"mine")
    seen: list[Progress] = []
    with pytest.raises(OutputExists, match=r"cat-2\.mp4"):
        engine.generate(spec, seen.append, lambda: False)
    assert seen == [] and names(spec.output.parent) == ["cat-2.mp4"]
    clip = engine.generate(replace(spec, overwrite=True), lambda _: None, lambda: False)
    assert clip.variants[1].output.read_bytes() != b"mine"


def test_a_name_that_is_taken_meanwhile_takes_the_others_back(engine, spec, monkeypatch) -> None:
    deliver, last = variants.deliver, variant_path(spec.output, 2, 3)

    def rival(made, final, *, overwrite):
        if final == last:
            last.write_bytes(b"mine")
        return deliver(made, final, overwrite=overwrite)

    monkeypatch.setattr(variants, "deliver", rival)
    with pytest.raises(OutputExists):
        engine.generate(spec, lambda _: None, lambda: False)
    assert names(spec.output.parent) == ["cat-2.mp4"] and last.read_bytes() == b"mine"
    assert names(spec.scratch) == []
