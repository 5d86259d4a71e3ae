"""How far each step of the rule is from where the teacher's many small steps lead, with and without the pairs.

    mean (u - v)^2 of the video's and of the audio's velocity, at each base, on the teacher's own way (see `landing`)

On new captions: nothing that was learnt from. This is what the training makes small, so it tells adapters apart where a
judge finds all of them right. Fed by `command` and the tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from h3runtime.nano.training.clips import Size
from h3runtime.nano.training.joint import attention
from h3runtime.nano.training.looking import asked
from h3runtime.nano.training.text import encode_batch
from h3runtime.nano.training.turbo.landing import Asked, lesson
from h3runtime.nano.training.turbo.schedule import FORWARDS
from h3runtime.nano.training.turbo.student import Student
from h3runtime.nano.training.turbo.teacher import Teacher

SEED: Final = 90210


@dataclass(frozen=True, slots=True)
class StepError:
    """Of the step that begins at `base`."""

    base: float
    video: float
    audio: float
    adapted_video: float
    adapted_audio: float


@torch.no_grad()
def step_errors(teacher: Teacher, student: Student, size: Size, dtype: torch.dtype, parts: int) -> list[StepError]:
    """Of `size.clips` new captions together. parts: the teacher's steps for one."""
    device = teacher.dit.device
    student.merge()
    batch = asked(student, teacher.vocabulary, size, "any", SEED)
    lots = torch.Generator().manual_seed(SEED)
    audio, video = (torch.randn(rows.shape, generator=lots).to(device) for rows in (batch.audio, batch.video))
    own = torch.zeros(size.clips, dtype=torch.bool, device=device)
    with attention(device), torch.autocast(device.type, dtype, enabled=dtype is not torch.float32):
        hidden = encode_batch(teacher.encoder, batch.text)
        plain, adapted = (Asked.of(dit, hidden, batch) for dit in (teacher.dit, student.dit))
        given = lesson(plain, plain, hidden, (audio, video), own, FORWARDS, parts)
        found = []
        for i in range(FORWARDS):
            part = slice(i * size.clips, (i + 1) * size.clips)
            state, base = (given.states[0][part], given.states[1][part]), given.base[part]
            wanted = given.velocities[0][part], given.velocities[1][part]
            errors = [_error(made, wanted) for made in (plain.at(state, base), adapted.at(state, base))]
            found.append(StepError(float(base[0]), *errors[0], *errors[1]))
    return found


def told(steps: Sequence[StepError]) -> Iterator[str]:
    for step in steps:
        video, audio = f"{step.video:.4f} -> {step.adapted_video:.4f}", f"{step.audio:.5f} -> {step.adapted_audio:.5f}"
        yield f"step from {step.base:.2f}: error of the velocity, video {video}, audio {audio}"


def total(steps: Sequence[StepError], adapted: bool) -> tuple[float, float]:
    """Means over the steps of the video's and of the audio's."""
    video = [step.adapted_video if adapted else step.video for step in steps]
    audio = [step.adapted_audio if adapted else step.audio for step in steps]
    return sum(video) / len(video), sum(audio) / len(audio)


def _error(made: tuple[torch.Tensor, torch.Tensor], wanted: tuple[torch.Tensor, torch.Tensor]) -> tuple[float, float]:
    """Video, audio."""
    return float((made[1] - wanted[1]).square().mean()), float((made[0] - wanted[0]).square().mean())
