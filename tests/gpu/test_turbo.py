"""Updates of the few-step adapter's training as CUDA graphs, against the same updates launched one by one."""

from __future__ import annotations

import pytest
import torch

from h3runtime.nano.training.choosing import choose
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


def trainer_on(cuda: torch.device) -> TurboTrainer:
    pupil, lectern = small_pupil(cuda), small_lectern(cuda)
    teacher = spoken(pupil.dit)
    return TurboTrainer(teacher, Student.beside(teacher, pupil.encoder, 8, 0), lectern, TurboRecipe(warm=1), print)


def trained(cuda: torch.device, recorded: bool) -> tuple[TurboTrainer, torch.Tensor]:
    trainer = trainer_on(cuda)
    trainer.recordings = Recordings.on(cuda, 3, print, recorded)
    before = trainer.pupil.optimiser.weights.values.clone()
    bucket = trainer.lectern.bucket(0, TASKS[0], count=8)
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


def test_updates_can_be_recorded_after_others_were_launched(cuda: torch.device, note: Note) -> None:
    """As the command tries them: what a backward pass left on one stream must not be waited for on another."""
    trainer = trainer_on(cuda)
    said: list[str] = []
    trainer.say = said.append
    choose(trainer, trainer.lectern.bucket(0, TASKS[0], count=8))
    note("; ".join(said))
    assert not any("NO CUDA GRAPH" in line or "FAILED" in line for line in said), said
    assert any(line.startswith("recorded:") for line in said)
