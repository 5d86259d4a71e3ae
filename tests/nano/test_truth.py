"""The judge tells a runtime that is wrong from one that is right: one mistake at a time, on the trained model.

Every mistake is a small change of a module of the runtime; the same prompts, seeds and steps go through the engine with
and without it. A mistake that the judge didn't see would be one that no quality test of this project sees.

    python -m tests.nano.test_truth      the shares that `bounds` is filled with
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from h3runtime.backends.fused.base import Producers
from h3runtime.cli import demo
from h3runtime.core import EncodeSettings, GenerateSpec, GuideInput, KeyframeShape, MediaFile, SamplerSettings, Task
from h3runtime.denoiser import carry, denoise
from h3runtime.denoiser.blocks import Mlp
from h3runtime.denoiser.denoise import Estimate
from h3runtime.denoiser.rope import Rope
from h3runtime.engine import sampling
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import DegenerateOutput
from h3runtime.media.probe import read_frames, read_sound
from h3runtime.nano.captions import caption
from h3runtime.nano.judge import ITEMS, Verdict, judge, score, ssim
from h3runtime.nano.world import Scene, draw_scene
from h3runtime.settings import Settings
from tests.nano.bounds import DEMO, FIRST_FRAME, RIGHT, WRONG
from tests.nano.clips import clip, lone

Mistake = Callable[[pytest.MonkeyPatch], None]

FRAMES = 22
SIDE = 128
STEPS = 8
PROMPTS = 5
DEMO_SEED = 440407
BETWEEN = (("yellow", "box", "right"), ("red", "ball", "down"), ("white", "triangle", "left"))
"""What is seen between two keyframes."""
FLOORS = ("blue", "grey", "green")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResidentEngine]:
    """The embedded model, as anybody gets it."""
    settings = Settings(device="cpu", data_dir=tmp_path_factory.mktemp("data"))
    resident = ResidentEngine(settings, threads=1, warm_up=False, partitions=("fl2va",))
    resident.load(lambda _: None)
    yield resident
    resident.close()


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return drawn_scenes()


def drawn_scenes() -> list[Scene]:
    """One actor each, of combinations that were trained."""
    rng = np.random.default_rng(11)
    return [replace(draw_scene(rng, "trained", actors=1), sound=True) for _ in range(PROMPTS)]


@pytest.fixture(scope="module")
def unharmed(engine: ResidentEngine, scenes: list[Scene], tmp_path_factory: pytest.TempPathFactory) -> float:
    """The share that is right without a mistake."""
    return share([prompted(engine, scene, tmp_path_factory.mktemp("clips")) for scene in scenes])


def share(verdicts: Sequence[Verdict], items: Sequence[str] = ITEMS) -> float:
    """Right ones of all items that were judged, in all clips."""
    counts = [count for item, count in score(verdicts).items() if item in items]
    return sum(right * number for right, number in counts) / sum(number for _, number in counts)


def prompted(engine: ResidentEngine, scene: Scene, folder: Path) -> Verdict:
    return generated(engine, scene, request(scene, folder), exact=False)


def request(scene: Scene, folder: Path, **more: object) -> GenerateSpec:
    spec = GenerateSpec(
        job_id="clip",
        task=Task.T2VA,
        prompt=caption(scene, np.random.default_rng(3)),
        width=SIDE,
        height=SIDE,
        frames=FRAMES,
        sampling=SamplerSettings(steps=STEPS, seed=5),
        output=folder / "clip.mkv",
        scratch=folder,
        overwrite=True,
        encode=EncodeSettings(container="mkv", audio_codec="pcm_s16le", loudness="none"),
    )
    return replace(spec, **more)  # type: ignore[arg-type]


def generated(engine: ResidentEngine, scene: Scene, spec: GenerateSpec, *, exact: bool) -> Verdict:
    """What the judge says of the file that the engine wrote; nothing is right of one that it refused to write."""
    try:
        engine.generate(spec, lambda _: None, lambda: False)
    except DegenerateOutput:
        return dict.fromkeys(ITEMS, False)
    return judge(scene, read_frames(spec.output), read_sound(spec.output)[0], exact=exact)


def turned_about(*axes: int) -> Mistake:
    """Rotary positions whose axes t, h, w are taken for others."""

    def make(patch: pytest.MonkeyPatch) -> None:
        right = Rope.forward
        patch.setattr(Rope, "forward", lambda self, ids, dtype: right(self, ids[:, list(axes)], dtype))

    return make


def swapped_gate(patch: pytest.MonkeyPatch) -> None:
    def rows(self: Mlp, x: torch.Tensor, producers: Producers) -> torch.Tensor:
        value, gate = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(producers.swiglu(torch.cat([gate, value], dim=-1)))

    patch.setattr(Mlp, "_rows", rows)


def no_audio_scale(patch: pytest.MonkeyPatch) -> None:
    """The audio stepped on the video's clock as it is."""
    patch.setattr(carry, "audio_scale", lambda _: 1.0)
    patch.setattr(denoise, "audio_scale", lambda _: 1.0)


def next_sigma(patch: pytest.MonkeyPatch) -> None:
    """An estimate that reads its sigmas one place further on than the sampler does.

    Nobody would see one that only tells the network the next sigma: at 8 and at 4 steps all items stay right.
    """
    right = Estimate.ask

    def ask(self: Estimate[Any], x: torch.Tensor, step: int) -> torch.Tensor:
        return right(replace(self, sigmas=torch.cat([self.sigmas[1:], self.sigmas[-1:]])), x, step)

    patch.setattr(Estimate, "ask", ask)


SOUND = ("pitch", "rhythm", "pan", "timbre")
MISTAKES: dict[str, tuple[Mistake, Sequence[str]]] = {
    "h and w swapped": (turned_about(0, 2, 1), ITEMS),
    "t and h swapped": (turned_about(1, 0, 2), ITEMS),
    "gate and value swapped": (swapped_gate, ITEMS),
    "no audio scale": (no_audio_scale, SOUND),
    "the next sigma": (next_sigma, ITEMS),
}
"""With the items that it spoils."""


def test_anyone_sees_what_the_demo_was_asked_for(engine: ResidentEngine, tmp_path: Path) -> None:
    verdict = demo_verdict(engine, tmp_path)
    assert {item: verdict[item] for item in DEMO} == dict.fromkeys(DEMO, True)


def demo_verdict(engine: ResidentEngine, folder: Path) -> Verdict:
    """Of its default prompt and seed, at its own size: a red ball bouncing on a blue floor."""
    scene = Scene((lone("red", "ball", "bounce"),), "blue")
    asked = request(scene, folder, prompt=demo.PROMPT, width=demo.WIDTH, height=demo.HEIGHT, frames=demo.FRAMES)
    return generated(engine, scene, replace(asked, sampling=SamplerSettings(demo.STEPS, seed=DEMO_SEED)), exact=False)


def test_the_runtime_as_it_is_makes_what_it_is_asked_for(unharmed: float) -> None:
    assert unharmed >= RIGHT


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_seen(
    mistake: str, engine: ResidentEngine, scenes: list[Scene], unharmed: float, tmp_path: Path, monkeypatch
) -> None:
    assert unharmed >= RIGHT
    make, items = MISTAKES[mistake]
    make(monkeypatch)
    assert share([prompted(engine, scene, tmp_path) for scene in scenes], items) <= WRONG


def test_a_swapped_keyframe_is_seen(engine: ResidentEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the clip begins with; the caption alone tells which way things go, and is believed."""
    scenes = between_scenes()
    assert all(begins_with_the_first(engine, scene, tmp_path) for scene in scenes)
    swap_keyframes(monkeypatch)
    assert not any(begins_with_the_first(engine, scene, tmp_path) for scene in scenes)


def test_a_clip_begins_with_the_picture_that_it_is_given(engine: ResidentEngine, tmp_path: Path) -> None:
    assert np.mean([first_frame(engine, scene, tmp_path) for scene in between_scenes()]) >= FIRST_FRAME


def first_frame(engine: ResidentEngine, scene: Scene, folder: Path) -> float:
    """SSIM of a clip's first frame with the scene's, from which it was made."""
    given = clip(scene, SIDE, SIDE, FRAMES)[1][0]
    spec = request(scene, folder, task=Task.I2VA, guides=(guide(given, "first_frame", 0, folder),))
    generated(engine, scene, spec, exact=False)
    return ssim(given, read_frames(spec.output)[0])


def between_scenes() -> list[Scene]:
    return [Scene((lone(*actor),), floor) for actor, floor in zip(BETWEEN, FLOORS, strict=True)]


def swap_keyframes(patch: pytest.MonkeyPatch) -> None:
    right = sampling.pack

    def pack(*target, **more):
        *grid, keyframes, references = target
        return right(*grid, exchanged(keyframes), references, **more)

    patch.setattr(sampling, "pack", pack)


def exchanged(keyframes: Sequence[KeyframeShape]) -> tuple[KeyframeShape, ...]:
    first, last = keyframes
    return replace(first, frame=last.frame), replace(last, frame=first.frame)


def begins_with_the_first(engine: ResidentEngine, scene: Scene, folder: Path) -> bool:
    """Of a clip from the scene's first frame to its last one: whether its first frame is the first picture's."""
    first, last = between(engine, scene, folder)
    return first > last


def between(engine: ResidentEngine, scene: Scene, folder: Path) -> tuple[float, float]:
    """SSIM of such a clip's first frame with both pictures."""
    frames = clip(scene, SIDE, SIDE, FRAMES)[1]
    ends = (("first_frame", 0), ("last_frame", FRAMES - 1))
    guides = tuple(guide(frames[at], field, at, folder) for field, at in ends)
    spec = request(scene, folder, task=Task.FL2VA, guides=guides)
    generated(engine, scene, spec, exact=True)
    made = read_frames(spec.output)[0]
    return ssim(frames[0], made), ssim(frames[-1], made)


def guide(pixels: NDArray[np.uint8], field: str, at: int, folder: Path) -> GuideInput:
    path = folder / f"{field}.png"
    Image.fromarray(pixels).save(path)
    return GuideInput(field, at, picture=MediaFile(path, field), shown=True)


def main() -> None:
    """Print what was measured, for `bounds`."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        resident = ResidentEngine(Settings(device="cpu", data_dir=folder), threads=1, warm_up=False)
        resident.load(lambda _: None)
        clips = drawn_scenes()
        print(f"as it is: {share([prompted(resident, scene, folder) for scene in clips]):.3f}")
        for name, (mistake, items) in MISTAKES.items():
            with patch.context() as harm:
                mistake(harm)
                print(f"{name}: {share([prompted(resident, scene, folder) for scene in clips], items):.3f}")
        print(f"demo: {demo_verdict(resident, folder)}")
        print(f"first frames: {[round(first_frame(resident, scene, folder), 3) for scene in between_scenes()]}")
        print(f"first frames between two: {[between(resident, scene, folder) for scene in between_scenes()]}")
        swap_keyframes(patch)
        print(f"exchanged: {[between(resident, scene, folder) for scene in between_scenes()]}")


if __name__ == "__main__":
    main()
