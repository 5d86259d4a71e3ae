"""Recorded steps: the same as those that the host launches one by one, bit for bit; and what happens where they can't
be recorded, or where another way is faster."""

from __future__ import annotations

import pytest
import torch

from h3runtime.nano.training import audio_vae, choosing, joint, tasks, video_vae
from h3runtime.nano.training.lectern import Lectern
from h3runtime.nano.training.recording import SETTLING, Recordings
from tests.nano.training.small import small_pupil
from tests.nano.training.tape import TapeRecorder

TASKS = [task for task in tasks.TASKS if task.name in ("text", "picture_64")]


def trained(lectern: Lectern, recorder: TapeRecorder | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights, their mean and the figures after steps of two buckets by turns, each at a rate of its own."""
    pupil = small_pupil()
    trainer = joint.Trainer(pupil, lectern, joint.Recipe(warm=20), print)
    trainer.recordings = Recordings(torch.Generator().manual_seed(4), print, recorder)
    buckets = [lectern.bucket(0, task, count=1) for task in TASKS]
    for turn, bucket in enumerate([*buckets, *buckets, buckets[0]]):
        if recorder or turn >= 2:
            trainer.step(bucket, turn / 5)
        else:  # a recorder settles on steps with the same knobs
            trainer._turn(turn / 5)
            for _ in range(SETTLING):
                trainer._update(bucket)
            trainer.steps += SETTLING
    return pupil.optimiser.weights.values, pupil.mean, trainer.figures


def test_a_recorded_step_is_the_eager_one_bit_for_bit(lectern: Lectern) -> None:
    recorder = TapeRecorder()
    eager, replayed = trained(lectern, None), trained(lectern, recorder)
    assert recorder.recorded == 2
    assert all(torch.equal(a, b) for a, b in zip(eager, replayed, strict=True))


def test_a_step_that_reads_a_value_back_is_run_as_it_is_and_this_is_said() -> None:
    told: list[str] = []
    recordings = Recordings(torch.Generator().manual_seed(1), told.append, TapeRecorder())
    total, drawn = torch.zeros(1), recordings.generator

    def step() -> None:
        total.add_(float(torch.rand(1, generator=recordings.generator)))

    assert [recordings.run("a", step) for _ in range(3)] == [SETTLING, 1, 1]
    assert recordings.failed and "capturing" in recordings.failed and "ALL STEPS RUN EAGERLY" in told[0]
    assert recordings.generator is not drawn and 0 < float(total) < SETTLING + 3


def test_a_number_of_the_host_would_stay_what_it_was() -> None:
    """So that the test above can fail: what the tape catches."""
    recordings = Recordings(torch.Generator(), print, TapeRecorder())
    total, rate = torch.zeros(1), [1.0]

    def step() -> None:
        total.add_(rate[0])

    for rate[0] in (1.0, 10.0):
        recordings.run("a", step)
    assert float(total) == SETTLING * 1.0 + 1.0


def test_the_fastest_way_is_kept_and_a_broken_one_left_out(lectern: Lectern, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    trainer = joint.Trainer(small_pupil(), lectern, joint.Recipe(), told.append)
    bucket = lectern.bucket(0, TASKS[0], count=1)

    def broken(*_: object) -> torch.Tensor:
        raise RuntimeError("no compiler")

    ways = [("eager", lambda: joint.transformer.block_forward, False), ("compiled", lambda: broken, False)]
    monkeypatch.setattr(choosing, "STEPS", 1)
    monkeypatch.setattr(choosing, "ways_for", lambda _: iter(ways))
    choosing.choose(trainer, bucket)
    assert told[-1] == "steps are run eager" and any("compiled: FAILED" in line for line in told)
    assert trainer.through is joint.transformer.block_forward and trainer.steps == SETTLING + 2


def test_one_way_needs_no_choice(lectern: Lectern) -> None:
    trainer = joint.Trainer(small_pupil(), lectern, joint.Recipe(), print)
    choosing.choose(trainer, lectern.bucket(0, TASKS[0], count=1))
    assert trainer.steps == 0 and trainer.recordings.failed == "there is no GPU"


def test_both_vaes_have_steps_that_can_be_recorded() -> None:
    """Losses and gradients: PyTorch's AdamW lets itself be recorded on a GPU alone."""
    tiles = (video_vae.Tile(32, 32, 1, 1.0),)
    choices = video_vae.VideoTraining(tiles=tiles, scenes=8, measured=1, measured_size=32, basis=1)
    video = video_vae.VideoRun(choices, torch.device("cpu"), 0, None)
    audio = audio_vae._Run(audio_vae.AudioTraining(sounds=8, batch=1, length=4), torch.device("cpu"), None, 0, print)

    def video_step() -> None:
        video.vae.zero_grad(set_to_none=True)
        torch.autograd.backward(video._loss(video._views(tiles[0]))[0])
        video.orthogonal.step(video.knobs.orthogonal)

    def audio_step() -> None:
        audio.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(audio._loss())

    for run, step in ((video, video_step), (audio, audio_step)):
        run.recordings = Recordings(torch.Generator().manual_seed(2), print, TapeRecorder())
        assert [run.recordings.run("step", step) for _ in range(2)] == [SETTLING, 1]
        assert run.recordings.failed is None
