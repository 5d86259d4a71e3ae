"""A calibration on an accelerator, with fewer clips than the command takes and a promise that is easily kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from h3runtime.cli.calibration.prompts import read_prompts
from h3runtime.cli.calibration.running import Asked, Calibration
from h3runtime.cli.calibration.size import Size
from h3runtime.core import SamplerSettings
from h3runtime.engine.resident import ResidentEngine
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
    (row,) = Calibration(asked, settings, load, lambda: False, lambda *_: None).run()
    found = row["evidence"]
    assert found is not None and found["device"] == torch.cuda.get_device_name(0)
    assert found["choice"]["linear"] == "fp8" and 0.9 < found["ssim"]["bound"] < 1 and found["time_ratio"] > 0
