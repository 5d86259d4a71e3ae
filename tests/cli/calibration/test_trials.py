"""Clips against the exact ones, with a maker that has no engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from h3runtime.cli.calibration.made import Apart, Sampled
from h3runtime.cli.calibration.outcome import DOUBT, Outcome, Timed
from h3runtime.cli.calibration.trials import EXACT, PAIRS, Trials
from h3runtime.core import Latents
from h3runtime.errors import CheckpointError, DegenerateOutput, EngineDead, H3Error, OutOfMemory
from h3runtime.quality.levels import LEVELS, Choice

EXACTLY = Choice("sdpa", "dequant")
CLOSE = Choice("sdpa", "int8")
FAR = Choice("sdpa", "nvfp4_emulated")
BROKEN = Choice("sdpa", "fp8")
HIGH = LEVELS["high"]
PROMPTS, SEEDS = 6, 2
ALL = PROMPTS * SEEDS


class Maker:
    """A clip is its prompt and seed, with as much noise as its linear makes."""

    def __init__(self, failure: H3Error | None = None) -> None:
        self.asked: list[tuple[str, int, int]] = []
        self._failure = failure or DegenerateOutput("one colour")

    def sampled(self, choice: Choice, prompt: int, seed: int) -> Sampled:
        self.asked.append((choice.linear, prompt, seed))
        if choice == BROKEN:
            raise self._failure
        noise = {EXACTLY: 0.0, CLOSE: 0.01, FAR: 0.1}[choice]
        latents = Latents(torch.tensor([float(prompt), float(seed), noise]), torch.zeros(1))
        return Sampled(latents, 1.0 if choice == EXACTLY else 0.5, 8, 2)

    def apart(self, exact: Latents, made: Latents) -> Apart:
        assert torch.equal(exact.video[:2], made.video[:2])
        return Apart(1 - float(made.video[2]), 0.2)


def trials(folder: Path, told: list[object] | None = None) -> Trials:
    return Trials(folder, PROMPTS, SEEDS, lambda *what: None if told is None else told.append(what))


def ready(folder: Path) -> tuple[Trials, Maker]:
    made, maker = trials(folder), Maker()
    made.make_exact(maker, EXACTLY)
    return made, maker


def proven(made: Trials, maker: Maker, choice: Choice) -> Outcome:
    return made.all(maker, choice, HIGH, "proving")


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
    outcome = proven(made, maker, CLOSE)
    assert outcome.is_complete and outcome.meets(HIGH) and outcome.recorded.ratio == 2.0
    assert outcome.ssim.bound == pytest.approx(0.99) and outcome.audio_db.bound == pytest.approx(0.2)
    assert [clip.skipped_steps for clip in outcome.clips] == [2] * ALL
    # One exact clip more than what counts: the first one of a process takes longer.
    assert len(maker.asked) == ALL + 1 + ALL


def test_the_first_clips_are_of_as_many_prompts(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    some = made.some(maker, CLOSE, PROMPTS, HIGH, "trying")
    assert {clip.prompt for clip in some.clips} == set(range(PROMPTS)) and {clip.seed for clip in some.clips} == {0}
    assert [clip.prompt for clip in some.clips] != sorted(clip.prompt for clip in some.clips)


def test_some_clips_are_made_once_and_count_for_the_proof(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    maker.asked.clear()
    assert len(made.some(maker, CLOSE, 3, HIGH, "trying").clips) == 3
    assert len(made.some(maker, CLOSE, 2, HIGH, "trying").clips) == 2 and len(maker.asked) == 3
    assert proven(made, maker, CLOSE).is_complete and len(maker.asked) == ALL
    assert len(made.some(maker, CLOSE, 3, HIGH, "trying").clips) == 3


def test_a_far_choice_is_given_up_as_soon_as_it_is_doubtful(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    outcome = proven(made, maker, FAR)
    # Clips of 0.9 alike: the fifth would be beyond all hope, the fourth leaves doubt.
    assert len(outcome.clips) == DOUBT and not outcome.meets(HIGH)
    assert len(made.some(maker, FAR, 9, HIGH, "trying").clips) == DOUBT


def test_what_the_engine_refuses_is_nothing_alike(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    outcome = made.all(maker, BROKEN, LEVELS["low"], "proving")
    assert [(clip.ssim, clip.audio_db, clip.forwards) for clip in outcome.clips] == [(0.0, 100.0, 0)]
    assert outcome.is_hopeless(LEVELS["low"])


def test_a_candidate_that_has_no_room_is_left_out(tmp_path: Path) -> None:
    made, _ = ready(tmp_path)
    assert made.some(Maker(OutOfMemory("full")), BROKEN, 3, HIGH, "trying").is_hopeless(HIGH)


def test_a_candidate_that_loses_the_device_ends_the_run_and_is_left_out_of_the_next(tmp_path: Path) -> None:
    made, _ = ready(tmp_path)
    with pytest.raises(EngineDead, match="goes on without fp8 sdpa"):
        made.some(Maker(EngineDead("an illegal memory access")), BROKEN, 3, HIGH, "trying")
    again, maker = ready(tmp_path)
    assert again.some(maker, BROKEN, 3, HIGH, "trying").is_hopeless(HIGH) and maker.asked == []


def test_the_exact_choice_needs_no_clips_of_its_own(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    asked = len(maker.asked)
    outcome = proven(made, maker, EXACTLY)
    assert outcome.meets(HIGH) and outcome.recorded.ratio == 1.0 and len(maker.asked) == asked
    assert made.some(maker, EXACTLY, 3, HIGH, "trying").seconds == 1.0 and len(maker.asked) == asked
    assert made.timed(maker, [outcome], "timing", beside_exact=True) == [Timed(1.0, 1.0, 1.0)]


def test_what_passed_is_timed_in_turn_with_the_exact_clips(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    close, exactly = proven(made, maker, CLOSE), proven(made, maker, EXACTLY)
    maker.asked.clear()
    assert made.timed(maker, [close], "timing", beside_exact=True) == [Timed(1.0, 0.5, 2.0)]
    assert [name for name, *_ in maker.asked] == ["dequant", "int8"] * (PAIRS + 1)
    both = made.timed(maker, [exactly, close], "timing", beside_exact=True)
    assert both == [Timed(1.0, 1.0, 1.0), Timed(1.0, 0.5, 2.0)]
    maker.asked.clear()
    assert made.timed(maker, [close], "timing", beside_exact=False) == [Timed(1.0, 0.5, 2.0)] and maker.asked == []


def test_a_run_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    whole = proven(made, maker, CLOSE)
    lines = (tmp_path / "clips.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "clips.jsonl").write_text("".join(lines[:-2]) + lines[-2][:10])
    told: list[object] = []
    again, other = trials(tmp_path, told), Maker()
    again.make_exact(other, EXACTLY)
    assert other.asked == [] and proven(again, other, CLOSE) == whole
    assert [place for _, *place in other.asked] == [place for _, *place in maker.asked[-2:]]
    assert told == [("proving", ALL - 2, ALL), ("proving", ALL - 1, ALL)]


def test_clips_of_other_settings_are_made_anew(tmp_path: Path) -> None:
    made, maker = ready(tmp_path)
    made.some(maker, CLOSE, 3, HIGH, "trying")
    other = Trials(tmp_path, PROMPTS, SEEDS, lambda *_: None, lambda choice: f"{choice.told} tau 2")
    other.make_exact(maker, EXACTLY)
    maker.asked.clear()
    assert len(other.some(maker, CLOSE, 3, HIGH, "trying").clips) == 3 and len(maker.asked) == 3


def test_exact_clips_are_told_too(tmp_path: Path) -> None:
    told: list[object] = []
    trials(tmp_path, told).make_exact(Maker(), EXACTLY)
    assert told == [(EXACT, 0, ALL), *((EXACT, done, ALL) for done in range(ALL))]


def test_a_record_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clips.jsonl").write_text('{"clip": 1}\n')
    with pytest.raises(CheckpointError, match=r"clips\.jsonl isn't the record of a calibration"):
        trials(tmp_path)
