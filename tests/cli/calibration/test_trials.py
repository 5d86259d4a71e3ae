"""Clips against the exact ones, with a maker that has no engine."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from h3runtime.cli.calibration.arrays import Sampled, Shown
from h3runtime.cli.calibration.trials import EXACT, PAIRS, TIMED, Timed, Trials
from h3runtime.core import Latents
from h3runtime.errors import CheckpointError, DegenerateOutput
from h3runtime.quality.levels import LEVELS, Choice

EXACTLY = Choice("sdpa", "dequant")
CLOSE = Choice("sdpa", "int8")
FAR = Choice("sdpa", "nvfp4_emulated")
BROKEN = Choice("sdpa", "fp8")


class Maker:
    """A clip is its prompt and seed, with as much noise as its linear makes."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    def sampled(self, choice: Choice, prompt: int, seed: int) -> Sampled:
        self.asked.append((choice.linear, prompt, seed))
        if choice == BROKEN:
            raise DegenerateOutput("one colour")
        noise = {EXACTLY: 0.0, CLOSE: 1.0, FAR: 90.0}[choice]
        latents = Latents(torch.tensor([[float(prompt), float(seed), noise]]), torch.zeros(1))
        return Sampled(latents, 1.0 if choice == EXACTLY else 0.5, 8, 2)

    def shown(self, latents: Latents) -> Shown:
        prompt, seed, noise = (float(x) for x in latents.video[0])
        rng = np.random.default_rng([int(prompt), int(seed)])
        frames = rng.integers(100, 140, (4, 16, 16, 3)) + noise * rng.standard_normal((4, 16, 16, 3))
        return Shown(frames.clip(0, 255).astype(np.uint8), np.full((2, 2048), 0.1, np.float32))


def trials(folder: Path, told: list[object] | None = None) -> Trials:
    return Trials(folder, 3, 2, lambda *what: None if told is None else told.append(what))


def ready(folder: Path) -> tuple[Trials, Maker]:
    made, maker = trials(folder), Maker()
    made.make_exact(maker, EXACTLY)
    return made, maker


@pytest.fixture(autouse=True)
def _plain_latents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of latents have a shape; these have none."""
    kept: dict[Path, Latents] = {}

    def write(path: Path, latents: Latents, _: object) -> None:
        path.touch()
        kept[path] = latents

    monkeypatch.setattr("h3runtime.cli.calibration.trials.write_latents", write)
    monkeypatch.setattr("h3runtime.cli.calibration.trials.read_latents", lambda path: (kept[path], {}))


def test_a_close_choice_keeps_the_promise(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    outcome = made.outcome(maker, CLOSE, math.inf, level=LEVELS["high"])
    assert outcome.is_complete and outcome.meets(LEVELS["high"]) and outcome.recorded.ratio == 2.0
    assert 0.97 < outcome.ssim.worst <= outcome.ssim.bound <= outcome.ssim.mean < 1
    assert outcome.audio_db.mean == 0.0 and [clip.skipped_steps for clip in outcome.clips] == [2] * 6
    # One clip of each more than what counts: the first one of a process takes longer.
    assert len(maker.asked) == 7 + 7


def test_a_far_choice_is_given_up_as_soon_as_nothing_can_save_it(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    outcome = made.outcome(maker, FAR, math.inf, level=LEVELS["high"])
    assert not outcome.meets(LEVELS["high"]) and 0 < len(outcome.clips) < 6
    lost = sum(1 - clip.ssim for clip in outcome.clips)
    assert lost > 6 * 0.03 and lost - (1 - outcome.clips[-1].ssim) <= 6 * 0.03


def test_a_slow_choice_is_given_up_after_a_few_clips(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    outcome = made.outcome(maker, CLOSE, 0.4, level=LEVELS["high"])
    assert len(outcome.clips) == TIMED and not outcome.meets(LEVELS["high"])
    assert made.outcome(maker, CLOSE, 0.45, level=LEVELS["high"]).meets(LEVELS["high"])


def test_what_the_engine_refuses_is_nothing_alike(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    outcome = made.outcome(maker, BROKEN, math.inf, level=LEVELS["low"])
    assert [(clip.ssim, clip.audio_db) for clip in outcome.clips] == [(0.0, 100.0)] and outcome.seconds >= 0


def test_the_exact_choice_needs_no_clips_of_its_own(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    asked = len(maker.asked)
    outcome = made.outcome(maker, EXACTLY, math.inf, level=LEVELS["high"])
    assert outcome.meets(LEVELS["high"]) and outcome.recorded.ratio == 1.0 and len(maker.asked) == asked


def test_what_passed_is_timed_in_turn_with_the_exact_clips(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    close = made.outcome(maker, CLOSE, math.inf, level=LEVELS["high"])
    exactly = made.outcome(maker, EXACTLY, math.inf, level=LEVELS["high"])
    maker.asked.clear()
    assert made.timed(maker, [close], beside_exact=True) == [Timed(1.0, 0.5, 2.0)]
    assert [name for name, *_ in maker.asked] == ["dequant", "int8"] * (PAIRS + 1)
    assert made.timed(maker, [exactly, close], beside_exact=True) == [Timed(1.0, 1.0, 1.0), Timed(1.0, 0.5, 2.0)]
    maker.asked.clear()
    assert made.timed(maker, [close], beside_exact=False) == [Timed(1.0, 0.5, 2.0)] and maker.asked == []


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    whole = made.outcome(maker, CLOSE, math.inf, level=LEVELS["high"])
    lines = (tmp_path / "clips.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "clips.jsonl").write_text("".join(lines[:-2]) + lines[-2][:10])
    told: list[object] = []
    again, other = trials(tmp_path, told), Maker()
    again.make_exact(other, EXACTLY)
    assert other.asked == [] and again.outcome(other, CLOSE, math.inf, level=LEVELS["high"]) == whole
    assert [place for _, *place in other.asked] == [[2, 0], [2, 0], [2, 1]]
    assert told[-1] == ("high: int8 sdpa", 5, 6) and (EXACT, 0, 6) not in told


def test_a_record_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clips.jsonl").write_text('{"clip": 1}\n')
    with pytest.raises(CheckpointError, match=r"clips\.jsonl isn't the record of a calibration"):
        trials(tmp_path)
