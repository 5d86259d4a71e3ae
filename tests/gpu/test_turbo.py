"""Updates of the few-step adapter's training as CUDA graphs, against the same updates launched one by one."""

from __future__ import annotations

import pytest
import torch

from h3runtime.nano.training.recording import SETTLING, Recordings
from h3runtime.nano.training.tasks import TASKS
from h3runtime.nano.training.turbo.distilling import TurboRecipe, TurboTrainer
from h3runtime.nano.training.turbo.student import Student
from tests.gpu.conftest import Note
from tests.nano.training.small import small_lectern, small_pupil, spoken

pytestmark = pytest.mark.gpu

STEPS = 24
BOUND = 0.1
"""Of the way that the pairs went, as in the joint training's test."""


def trained(cuda: torch.device, recorded: bool) -> tuple[TurboTrainer, torch.Tensor]:
    pupil, lectern = small_pupil(cuda), small_lectern(cuda)
    teacher = spoken(pupil.dit)
    trainer = TurboTrainer(teacher, Student.beside(teacher, pupil.encoder, 8, 0), lectern, TurboRecipe(warm=1), print)
    trainer.recordings = Recordings.on(cuda, 3, print, recorded)
    before = trainer.pupil.optimiser.weights.values.clone()
    bucket = lectern.bucket(0, TASKS[0], count=8)
    while trainer.steps < SETTLING + STEPS:
        trainer.step(bucket, 0.0)
    trainer.wait()
    return trainer, trainer.pupil.optimiser.weights.values - before


def test_recorded_updates_are_those_that_the_host_launches(cuda: torch.device, note: Note) -> None:
    eager, moved = trained(cuda, recorded=False)
    recorded, again = trained(cuda, recorded=True)
    assert recorded.recordings.failed is None, recorded.recordings.failed
    apart = float((again - moved).norm() / moved.norm())
    note(f"pairs {apart:.2e} of their way apart after {eager.steps} updates")
    assert eager.steps == recorded.steps and apart < BOUND
