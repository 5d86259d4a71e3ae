"""Smart-resize sizes, and patch rows of pictures off the grid and above the limits."""

import numpy as np
import torch

from h3runtime.conditioning.vision_preprocess import patch_rows
from h3runtime.conditioning.vision_size import patch_grid, smart_resize
from tests.parity.fixture import Fixture, assert_equal


def check(fixture: Fixture) -> None:
    for _, height, width, *resized in fixture["out.resized"].tolist():
        assert list(smart_resize(height, width)) == resized, (height, width)
    for i, case in enumerate(fixture.meta["cases"]):
        height, width = case["H"], case["W"]
        gh, gw = patch_grid(height, width)
        rows = patch_rows(tiled(fixture[f"in.{i}.base_u8"].numpy(), height, width))
        assert [gh * 16, gw * 16] == case["resized"] and len(rows) == case["patches"]
        # Bit for bit, far inside the 2e-6 that the README allows.
        assert_equal(f"{i}.patches", rows[fixture[f"out.{i}.patch_index"]], fixture[f"out.{i}.patches"])
        assert torch.isfinite(rows).all()


def tiled(base: np.ndarray, height: int, width: int) -> np.ndarray:
    y, x = np.arange(height) % base.shape[1], np.arange(width) % base.shape[2]
    return base[:, y[:, None], x]
