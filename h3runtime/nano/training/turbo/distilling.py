"""The training of the few-step adapter: every step of the rule learns to land where the teacher's many steps land.

    loss = mean (u - v)^2 of the video rows + the same of the audio rows, over all N states of a lesson

The joint training's loop runs it: for a given time, on shelves and tasks by its course, steps recorded on a GPU, pieces
now and then. A lesson costs N k forwards of the teacher, an update about three of the student for each of N states;
where that is dear (`repeats` above 1, for CPUs) lessons are kept a while and learnt from again. In bf16 under autocast
on a CPU too, where it takes half the time; the pairs themselves are fp32. Fed by `command`.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import torch
from torch.nn import functional as F

from h3runtime.denoiser.dit import Dit
from h3runtime.nano.training.clips import Size
from h3runtime.nano.training.curriculum import Sizes
from h3runtime.nano.training.joint import Recipe, Say, Trainer, attention
from h3runtime.nano.training.lectern import Batch, Bucket, Lectern
from h3runtime.nano.training.optimiser import clipped
from h3runtime.nano.training.text import encode_batch
from h3runtime.nano.training.turbo.landing import Asked, Lesson, lesson, repeated
from h3runtime.nano.training.turbo.schedule import FORWARDS
from h3runtime.nano.training.turbo.student import Student

SIZES = Sizes(
    (Size(128, 128, 22, 2048), Size(192, 192, 39, 512), Size(320, 192, 39, 256), Size(640, 384, 124, 16)),
    (0.5, 0.27, 0.2, 0.03),
)
KEPT = 64
"""Lessons that are kept, where they are learnt from more than once."""


@dataclass(frozen=True, slots=True)
class TurboRecipe(Recipe):
    """rows: packed rows of a lesson's sequences, each of which has N states. parts: the teacher's steps for one of the
    student's. own: share of sequences that go on from the student's own step; home: whether these are led back to the
    teacher's way (see `landing`). repeats: updates from a lesson."""

    rows: int = 9216
    rate: float = 1e-3
    warm: int = 50
    cool: float = 0.6
    ema: float = 0.995
    every: float = 30.0
    sizes: Sizes = field(default_factory=lambda: SIZES)
    parts: int = 5
    own: float = 1.0
    home: bool = True
    repeats: int = 1


class TurboTrainer(Trainer):
    """teacher: the frozen DiT, the student's own without its pairs."""

    pupil: Student
    recipe: TurboRecipe

    def __init__(self, teacher: Dit, student: Student, lectern: Lectern, recipe: TurboRecipe, say: Say) -> None:
        super().__init__(student, lectern, recipe, say)
        self.teacher, self.dtype = teacher, torch.bfloat16
        self._lots = random.Random(recipe.seed)
        self._kept: deque[Lesson] = deque(maxlen=KEPT)

    def _update(self, bucket: Bucket) -> None:
        student, weights = self.pupil, self.pupil.optimiser.weights
        weights.forget()
        student.merge()
        with attention(self.device), self._autocast():
            video, audio = self.loss(self._next(bucket))
            torch.autograd.backward(video + self.recipe.audio_weight * audio)
        student.release()
        gradient = weights.gradient()
        norm = clipped(gradient, self.recipe.clip)
        student.optimiser.step(gradient, self.knobs.rate)
        with torch.no_grad():
            student.mean.lerp_(weights.values, self.knobs.average)
            self.figures.lerp_(torch.stack([video.detach(), audio.detach(), norm]), self.knobs.figures)

    def loss(self, given: Lesson) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean squared error of the video's and of the audio's velocity; `merge` comes before."""
        count = len(given.base) // len(given.hidden)
        asked = Asked.of(self.pupil.dit, given.hidden, given.batch, self.through)
        batch, text = repeated(given.batch, count), asked.text.repeat(count, 1, 1)
        u_audio, u_video = Asked(self.pupil.dit, text, batch, self.through).at(given.states, given.base)
        return F.mse_loss(u_video, given.velocities[1]), F.mse_loss(u_audio, given.velocities[0])

    def fresh(self, batch: Batch) -> Lesson:
        """A lesson on a batch, from noise by lot."""
        generator = self.recordings.generator
        draw = partial(torch.randn, generator=generator, device=self.device)
        noise = draw(batch.audio.shape), draw(batch.video.shape)
        own = torch.rand(len(batch.video), generator=generator, device=self.device) < self.recipe.own
        with torch.no_grad():
            hidden = encode_batch(self.pupil.encoder, batch.text)
            asked = [Asked.of(dit, hidden, batch, self.through) for dit in (self.teacher, self.pupil.dit)]
        recipe = self.recipe
        return lesson(asked[0], asked[1], hidden, noise, own, FORWARDS, recipe.parts, home=recipe.home)

    def _next(self, bucket: Bucket) -> Lesson:
        """A fresh one, or one of those that are kept."""
        if self.recipe.repeats == 1:
            return self.fresh(self.lectern.draw(bucket, self.recordings.generator))
        if self.steps % self.recipe.repeats == 0 or not self._kept:
            self._kept.append(self.fresh(self.lectern.draw(bucket, self.recordings.generator)))
        return self._lots.choice(self._kept)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype is not torch.float32)
