"""A calibration on an accelerator, with fewer clips than the command takes and a promise that is easily kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from h3runtime.cli.calibration.narrowing import Narrowed
from h3runtime.cli.calibration.prompts import read_prompts
from h3runtime.cli.calibration.running import Asked, Calibration
from h3runtime.cli.calibration.similarity import frame_ssims
from h3runtime.cli.calibration.size import Size
from h3runtime.core import SamplerSettings
from h3runtime.engine.resident import ResidentEngine
from h3runtime.media.similarity import ssim
from h3runtime.quality.levels import Level
from h3runtime.settings import Settings

pytestmark = pytest.mark.gpu


def load(settings: Settings, partition: str) -> ResidentEngine:
    engine = ResidentEngine(settings, warm_up=False, partitions=(partition,))
    engine.load(lambda _: None)
    return engine


def test_a_level_is_measured_on_the_device(tmp_path: Path) -> None:
    (tmp_path / "prompts").write_text("a red ball moves right\na blue box moves up\n")
    prompts = read_prompts(tmp_path / "prompts", 2)
    easy = Level("high", 0.5, 20.0)
    asked = Asked(prompts, (Size(128, 128, 22),), SamplerSettings(steps=8), (easy,), 1)
    settings = Settings(device="cuda", linear="fp8", data_dir=tmp_path)
    (row,) = Calibration(asked, settings, load, lambda: False, lambda _: None).run()
    found = row["evidence"]
    assert found is not None and found["device"] == torch.cuda.get_device_name(0)
    assert found["choice"]["linear"] == "fp8" and 0.9 < found["ssim"]["bound"] < 1 and found["time_ratio"] > 0


def test_reuse_is_searched_on_the_device(tmp_path: Path) -> None:
    """Weights that can be exact: one engine makes all clips, and what passes is timed in turn with exact ones."""
    (tmp_path / "prompts").write_text("a red ball moves right\na blue box moves up\n")
    easy = Level("low", 0.5, 20.0, reuse=("easycache",))
    narrowed = Narrowed(("resident_bf16",), ("sdpa",))
    prompts = read_prompts(tmp_path / "prompts", 2)
    asked = Asked(prompts, (Size(128, 128, 22),), SamplerSettings(steps=8), (easy,), 1, narrowed)
    settings = Settings(device="cuda", data_dir=tmp_path)
    (row,) = Calibration(asked, settings, load, lambda: False, lambda _: None).run()
    found = row["evidence"]
    assert found["choice"]["cache_mode"] == "easycache" and found["skipped_steps"] > 0
    assert found["forwards"] + found["skipped_steps"] == 8 and found["time_ratio"] > 1


@pytest.mark.parametrize("shape", [(64, 96), (384, 640)])
def test_pictures_are_compared_on_the_device_as_defined(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    exact = rng.integers(0, 256, (6, *shape, 3)).astype(np.uint8)
    made = (exact + rng.integers(-20, 21, exact.shape)).clip(0, 255).astype(np.uint8)
    found = frame_ssims(torch.from_numpy(exact).cuda(), torch.from_numpy(made).cuda())
    assert found.tolist() == pytest.approx([ssim(*pair) for pair in zip(exact, made, strict=True)], abs=1e-9)
