"""What an engine runs before it says ready: one step of each listed shape, written to a folder that goes away.

The folder lies below the data folder, the one place that a service may count on to be writable.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from h3runtime.core import GenerateSpec, SamplerSettings, Task


@contextmanager
def warm_up_specs(shapes: Sequence[tuple[int, int, int]], data_dir: Path) -> Iterator[list[GenerateSpec]]:
    """(width, height, frames) -> specs whose outputs vanish with the context."""
    if not shapes:
        yield []
        return
    parent = data_dir / "tmp"
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="warm-up-", dir=parent) as folder:
        yield [_spec(shape, index, Path(folder)) for index, shape in enumerate(shapes)]


def _spec(shape: tuple[int, int, int], index: int, folder: Path) -> GenerateSpec:
    width, height, frames = shape
    return GenerateSpec(
        job_id=f"warm-up-{index}",
        task=Task.T2VA,
        prompt="warm-up",
        width=width,
        height=height,
        frames=frames,
        sampling=SamplerSettings(steps=1),
        output=folder / f"{index}.mp4",
        scratch=folder,
    )
