"""Steps of the joint training of h3-nano as CUDA graphs, against the same steps launched one by one.

Draws are the same bit for bit; sums by atomics are not, so weights are compared by how far they moved.
"""

from __future__ import annotations

import pytest
import torch

from h3runtime.nano.training import joint, tasks
from h3runtime.nano.training.choosing import choose
from h3runtime.nano.training.lectern import Lectern
from h3runtime.nano.training.recording import SETTLING, Recordings
from tests.gpu.conftest import Note
from tests.nano.training.small import small_lectern, small_pupil

pytestmark = pytest.mark.gpu

STEPS = 24
BOUND = 0.1
"""Of the way that the weights went: orthogonal steps make much of the last bits of small gradients."""


@pytest.fixture(scope="module")
def lectern(cuda: torch.device) -> Lectern:
    return small_lectern(cuda)


def trained(lectern: Lectern, cuda: torch.device, recorded: bool) -> tuple[joint.Trainer, torch.Tensor]:
    """After STEPS steps of every task by turns, at one rate; and how far the weights went."""
    trainer = joint.Trainer(small_pupil(cuda), lectern, joint.Recipe(warm=1), print)
    trainer.recordings = Recordings.on(cuda, 3, print, recorded)
    before = trainer.pupil.optimiser.weights.values.clone()
    buckets = [lectern.bucket(0, task, count=8) for task in tasks.TASKS if lectern.has(0, task)]
    for bucket in buckets:  # begun with as many steps as a recording settles on
        known = trainer.steps
        while trainer.steps - known < SETTLING:
            trainer.step(bucket, 0.0)
    for step in range(STEPS):
        trainer.step(buckets[step % len(buckets)], 0.0)
    trainer.wait()
    return trainer, trainer.pupil.optimiser.weights.values - before


def test_recorded_steps_are_those_that_the_host_launches(lectern: Lectern, cuda: torch.device, note: Note) -> None:
    eager, moved = trained(lectern, cuda, recorded=False)
    recorded, again = trained(lectern, cuda, recorded=True)
    assert recorded.recordings.failed is None, recorded.recordings.failed
    assert eager.steps == recorded.steps and eager.seen == recorded.seen
    apart = float((again - moved).norm() / moved.norm())
    note(f"weights {apart:.2e} of their way apart after {eager.steps} steps")
    assert apart < BOUND
    assert torch.allclose(eager.figures, recorded.figures, rtol=0.05)


@pytest.mark.filterwarnings("ignore")  # torch.compile of torch 2.11 warns of its own parts
def test_every_way_runs_and_the_fastest_is_kept(lectern: Lectern, cuda: torch.device, note: Note) -> None:
    told: list[str] = []
    trainer = joint.Trainer(small_pupil(cuda), lectern, joint.Recipe(compiled=True), told.append)
    choose(trainer, lectern.bucket(0, tasks.TASKS[0], count=8))
    note("; ".join(told))
    assert not any("FAILED" in line or "NO CUDA GRAPH" in line for line in told), told
    assert told[-1] != "steps are run eager"
