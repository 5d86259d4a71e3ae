"""The real engine on the tiny set, loaded once for all tests that run it in this process."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from h3runtime.core import GenerateSpec, MediaFile, SamplerSettings, Task
from h3runtime.engine.resident import ResidentEngine
from h3runtime.settings import Settings
from tests.tiny_set import tiny_paths

MakeSpec = Callable[..., GenerateSpec]


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ResidentEngine]:
    resident = ResidentEngine(
        Settings(device="cpu", data_dir=tmp_path_factory.mktemp("data"), **tiny_paths()), threads=1
    )
    resident.load(lambda _: None)
    yield resident
    resident.close()


@pytest.fixture
def make_spec(tmp_path: Path) -> MakeSpec:
    """A tiny request; keyword arguments of `GenerateSpec` and `SamplerSettings` override."""

    def make(name: str = "clip", **changes: object) -> GenerateSpec:
        sampling = {
            field: changes.pop(field) for field in ("steps", "seed", "sampler", "scheduler") if field in changes
        }
        spec = GenerateSpec(
            job_id=name,
            task=Task.T2VA,
            prompt="a red ball bouncing on a blue floor",
            width=96,
            height=64,
            frames=22,
            sampling=replace(SamplerSettings(steps=2, seed=7), **sampling),
            output=tmp_path / f"{name}.mp4",
            scratch=tmp_path,
        )
        return replace(spec, **changes)

    return make


@pytest.fixture
def picture(tmp_path: Path) -> Callable[[int], MediaFile]:
    """A picture of its own for each number, 120x80."""

    def make(number: int) -> MediaFile:
        pixels = np.random.default_rng(number).integers(0, 255, (10, 15, 3), dtype=np.uint8)
        path = tmp_path / f"picture-{number}.png"
        Image.fromarray(pixels).resize((120, 80), Image.Resampling.BICUBIC).save(path)
        return MediaFile(path, "first_frame")

    return make
