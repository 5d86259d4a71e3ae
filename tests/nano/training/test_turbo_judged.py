"""The few-step adapter through the runtime: its folder, its loader, a request's `loras`, the engine, the judge.

    python -m tests.nano.training.test_turbo_judged [FOLDER] [--prompts 24] [--size 128x128x22] [--task t2va]

prints, for the adapter in FOLDER, or the package's own, what the judge says of the same prompts and noise in 20
forwards, in 4 without it and in 4 with it, and how far the clips are from those of 20; half of the prompts are of
combinations that were never trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from benchmarks.quality_plan import Size, size_of
from benchmarks.quality_prompts import SPLITS, Prompt, draw_prompt, ends_of
from h3runtime.api.request import read_body
from h3runtime.api.rules import Verdict, judge_loras
from h3runtime.checkpoint.embedded.packaged import ADAPTERS, FOLDER
from h3runtime.core import SAMPLE_RATE, AdapterUse, EncodeSettings, GenerateSpec, SamplerSettings, Task
from h3runtime.engine.resident import ResidentEngine
from h3runtime.media.log_mel import LogMelDistance
from h3runtime.media.probe import read_frames, read_sound
from h3runtime.nano.judge import ITEMS, judge, score, ssim
from h3runtime.nano.judge import Verdict as Judged
from h3runtime.nano.training.turbo.adapter import FILE, write_adapter
from h3runtime.nano.training.turbo.schedule import FORWARDS, NAME
from h3runtime.nano.training.turbo.student import Student
from h3runtime.nano.training.turbo.teacher import read_teacher
from h3runtime.settings import Settings
from tests.nano.test_truth import guide

AS_TRAINED = {"prompt": "x", "steps": FORWARDS, "sampler": "euler", "scheduler": "simple"}
KEYFRAMES = {"i2va": ("first",), "l2va": ("last",), "fl2va": ("first", "last"), "t2va": ()}
MANY = 20
NEARLY = 4
"""Every so many frames one is compared."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResidentEngine]:
    """The embedded model, with a folder of an adapter whose pairs do a little."""
    folder = tmp_path_factory.mktemp("adapters")
    teacher = read_teacher(FOLDER, torch.device("cpu"))
    student = Student.beside(teacher.dit, teacher.encoder, 2, 0)
    for name, value in student.named():
        value.data += 0.02 * ("ups" in name)
    write_adapter(student.pairs, folder / FILE)
    resident = engine_with(folder, tmp_path_factory.mktemp("data"))
    yield resident
    resident.close()


def engine_with(folder: Path, data: Path) -> ResidentEngine:
    settings = Settings(device="cpu", data_dir=data, lora_dir=folder)
    resident = ResidentEngine(settings, threads=1, warm_up=False, partitions=("fl2va",))
    resident.load(lambda _: None)
    return resident


def uses(engine: ResidentEngine, **fields: Any) -> tuple[tuple[AdapterUse, ...], Mapping[str, str]]:
    """What a request for the adapter comes to, and what is wrong with it."""
    read = read_body({**AS_TRAINED, "loras": [{"name": NAME}], **fields})
    verdict = Verdict(read)
    found = judge_loras(read.body, Task.T2VA, engine.facts(), verdict)
    return found, {offence.field: offence.message for offence in verdict.offences}


def test_all_its_layers_match_and_nothing_is_guessed(engine: ResidentEngine) -> None:
    (facts,) = engine.facts().adapters
    assert (facts.name, facts.layout, facts.rank, facts.ranks, facts.alpha) == (NAME, "comfyui_turbo", 2, (2, 6), 2.0)
    assert {(fit.matched, fit.total, fit.unmatched, fit.skipped) for fit in facts.fits.values()} == {(28, 28, (), ())}
    (use,), wrong = uses(engine)
    assert not wrong and (use.scale, use.matched, use.total) == (1.0, 28, 28)


def test_requests_for_anything_else_are_refused_by_field(engine: ResidentEngine) -> None:
    _, wrong = uses(engine, steps=5, sampler="res_multistep", scheduler="beta", shift=6, audio_shift=4)
    assert set(wrong) == {"steps", "sampler", "scheduler", "shift", "audio_shift"}
    assert all(NAME in message for message in wrong.values())


def test_it_changes_the_clip_in_four_forwards(engine: ResidentEngine, tmp_path: Path) -> None:
    prompt = draw_prompt("t2va", "trained", 0)
    few = SamplerSettings(FORWARDS, seed=5, sampler="euler", scheduler="simple")
    small = Size(64, 64, 5)
    plain, _ = made(engine, asked(prompt, small, few, tmp_path))
    spec = replace(asked(prompt, small, few, tmp_path), loras=uses(engine)[0], diagnostics=True)
    clip = engine.generate(spec, lambda _: None, lambda: False)
    assert clip.forwards == FORWARDS and not np.array_equal(read_frames(spec.output), plain)


def asked(prompt: Prompt, size: Size, sampling: SamplerSettings, folder: Path) -> GenerateSpec:
    ends = ends_of(prompt, size)
    wanted = KEYFRAMES[prompt.task]
    at = {"first": (ends.first, 0), "last": (ends.last, size.frames - 1)}
    guides = tuple(guide(at[end][0], f"{end}_frame", at[end][1], folder) for end in wanted)
    return GenerateSpec(
        job_id="clip",
        task=Task(prompt.task),
        prompt=prompt.caption,
        width=size.width,
        height=size.height,
        frames=size.frames,
        guides=guides,
        sampling=sampling,
        output=folder / "clip.mkv",
        scratch=folder,
        overwrite=True,
        encode=EncodeSettings(container="mkv", audio_codec="pcm_s16le", loudness="none"),
    )


def made(engine: ResidentEngine, spec: GenerateSpec) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    engine.generate(spec, lambda _: None, lambda: False)
    return read_frames(spec.output), read_sound(spec.output)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description="Judge the adapter of a folder.")
    parser.add_argument("folder", type=Path, nargs="?", default=ADAPTERS)
    parser.add_argument("--prompts", type=int, default=24, help="Of each split.")
    parser.add_argument("--size", type=size_of, default=size_of("128x128x22"))
    parser.add_argument("--task", choices=tuple(KEYFRAMES), default="t2va")
    given = parser.parse_args()
    ways = {f"{MANY} forwards": MANY, f"{FORWARDS} without": FORWARDS, f"{FORWARDS} with": FORWARDS}
    verdicts: dict[str, list[Judged]] = {way: [] for way in ways}
    near: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    with TemporaryDirectory() as name:
        scratch = Path(name)
        engine = engine_with(given.folder, scratch)
        loras, wrong = uses(engine)
        assert not wrong, wrong
        for prompt in (draw_prompt(given.task, split, i) for i in range(given.prompts) for split in SPLITS):
            many: tuple[NDArray[np.uint8], NDArray[np.float32]] | None = None
            for way, steps in ways.items():
                sampling = SamplerSettings(steps, seed=prompt.noise, sampler="euler", scheduler="simple")
                spec = asked(prompt, given.size, sampling, scratch)
                clip = made(engine, replace(spec, loras=loras) if way.endswith("with") else spec)
                many = many or clip
                verdicts[way].append(judge(prompt.scene, *clip))
                near[way].append(apart(many, clip))
    print("| way | " + " | ".join(("clips", "all", *ITEMS, "SSIM", "log-mel dB")) + " |")
    for way, found in verdicts.items():
        print(line(way, found, near[way]))


def apart(
    many: tuple[NDArray[np.uint8], NDArray[np.float32]], clip: tuple[NDArray[np.uint8], NDArray[np.float32]]
) -> tuple[float, float]:
    """SSIM and distance of the sound in dB."""
    sounds = LogMelDistance(SAMPLE_RATE)
    sounds.feed(many[1], clip[1])
    pairs = zip(many[0][::NEARLY], clip[0][::NEARLY], strict=True)
    return float(np.mean([ssim(*pair) for pair in pairs])), float(sounds.finish() or 0.0)


def line(way: str, found: list[Judged], near: list[tuple[float, float]]) -> str:
    items = score(found)
    whole = np.mean([all(value is not False for value in verdict.values()) for verdict in found])
    shares = [f"{100 * items[item][0]:.1f}" if items[item][1] else "-" for item in ITEMS]
    seen, heard = np.mean(near, axis=0)
    return f"| {way} | {len(found)} | {100 * whole:.1f} | " + " | ".join(shares) + f" | {seen:.4f} | {heard:.2f} |"


if __name__ == "__main__":
    main()
