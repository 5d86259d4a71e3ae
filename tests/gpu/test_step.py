"""The benchmark of a step on a GPU, at a small size: what only a device has is told, and nothing of it is wrong.

The published sizes are timed by `benchmarks/step.py` itself. Here the host is slower than the device, so that neither
ratios nor overhead say anything.
"""

from __future__ import annotations

import pytest
import torch

from benchmarks import step, step_session
from benchmarks.watched import Beat
from h3runtime.checkpoint.synthetic.layouts import TransformerSizes
from h3runtime.denoiser.block_times import PARTS
from h3runtime.engine.block_profile import Shape, profile
from h3runtime.settings import resolve
from tests.gpu.conftest import Note

pytestmark = pytest.mark.gpu

SMALL = ("--sizes", "small", "--workload", "smoke-320x192-22f", "--peer", "diffusers", "--rounds", "2")


def test_lanes_and_peer(cuda: torch.device, note: Note) -> None:
    asked = step._asked(step._parser().parse_args([*SMALL, "--scaling", "t2va-864x480-141f"]))
    report = step_session.measure(asked, str(cuda), lambda _: None, Beat(None))
    assert not report["faults"] and not report["left_out"]
    rows = {row["name"]: row for row in report["rows"]}
    assert rows.keys() == {"exact", "high", "diffusers"}
    # Two roundings to BF16, and FP8 beside it: as on the CPU.
    assert rows["exact"]["error"] < 0.01 < rows["high"]["error"] < 0.15
    for name in ("exact", "high"):
        row, loop = rows[name], report["loops"][name]
        assert row["producers"] == "triton" and row["peak_bytes"] > 0 and 0 <= row["overhead_percent"] < 100
        assert loop["kernels"] and 0 < loop["busy_ms"] < loop["wall_ms"] and sum(loop["waits"].values()) <= 4
        note(f"{name}: {row['attention']}; host waits in a loop of 2 steps: {loop['waits']}")
    assert [growth["rows"] for growth in report["growth"]] == [17_580, 17_580]


def test_a_block_of_the_published_sizes_that_is_made_up(cuda: torch.device) -> None:
    settings = resolve({"device": str(cuda), "linear": "fp8"}, None)
    report = profile(TransformerSizes(), settings, Shape(192, 192, 39, 100), (24,), 1)
    (found,) = report["blocks"]
    assert found["block"] == 24 and all(found["parts"][part]["ms"] > 0 for part in PARTS)
