"""What an engine runs before it says ready: one step of each listed shape on each loaded transformer, written to a
folder that goes away. Ref2VA's runs without references: its weights and their kernels are what is to be met.

So kernels that are compiled at their first call are compiled then, and where steps are recorded as CUDA graphs, that is
measured for each shape (`denoiser.recordings`), apart from the time that the clip is told to have taken.

The folder lies below the data folder, the one place that a service may count on to be writable.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from h3runtime.core import GenerateSpec, SamplerSettings, Task
from h3runtime.denoiser.recordings import Recordings
from h3runtime.engine.sampling import STAGE


@dataclass(slots=True)
class Measured:
    """seconds: that a clip's sampling took longer because its steps were measured."""

    seconds: float = 0.0

    def taken_from(self, timings: Mapping[str, float]) -> dict[str, float]:
        """Of each stage, what it takes unmeasured."""
        return {stage: took - (self.seconds if stage == STAGE else 0.0) for stage, took in timings.items()}


@contextmanager
def timed_apart(recordings: Recordings) -> Iterator[Measured]:
    """Within, one clip is made, whose steps are measured where they may be recorded."""
    found, before = Measured(), recordings.measuring_seconds
    with recordings.measuring():
        yield found
    found.seconds = recordings.measuring_seconds - before


@contextmanager
def warm_up_specs(
    shapes: Sequence[tuple[int, int, int]], partitions: Collection[str], data_dir: Path
) -> Iterator[list[GenerateSpec]]:
    """(width, height, frames) -> specs for each partition, whose outputs vanish with the context."""
    if not shapes:
        yield []
        return
    parent = data_dir / "tmp"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="warm-up-", dir=parent) as folder:
        tasks = [task for task in (Task.T2VA, Task.REF2VA) if task.runs_on in partitions]
        runs = [(shape, task) for task in tasks for shape in shapes]
        yield [_spec(shape, task, index, Path(folder)) for index, (shape, task) in enumerate(runs)]


def _spec(shape: tuple[int, int, int], task: Task, index: int, folder: Path) -> GenerateSpec:
    width, height, frames = shape
    return GenerateSpec(
        job_id=f"warm-up-{index}",
        task=task,
        prompt="warm-up",
        width=width,
        height=height,
        frames=frames,
        sampling=SamplerSettings(steps=1),
        output=folder / f"{index}.mp4",
        scratch=folder,
    )
