"""What h3-nano is held to by the tests: numbers that were measured, and how to measure them again.

    python -m tests.nano.test_truth            # shares of the runtime as it is, and with each mistake in it
    python benchmarks/quality.py OUT ...       # tables of many prompts; the README has the commands and the results

Of so few clips as a test can make a share is rough, so each bound stands halfway between what was measured and what
would be a fault. Another set of masters gets other numbers here, and nowhere else.
"""

from __future__ import annotations

from typing import Final

RIGHT: Final = 0.93
"""Least share of all judged items that the runtime as it is gets right, of `test_truth`'s prompts: 1.000 measured."""
WRONG: Final = 0.80
"""Greatest share with a mistake in it: 0.28 to 0.68 measured."""
DEMO: Final = ("colour", "shape", "direction", "count", "floor", "pitch", "rhythm", "pan", "sync", "presence", "timbre")
"""Items that the judge finds right in the demo's clip: a red ball, alone, that bounces on a blue floor and is heard."""
FIRST_FRAME: Final = 0.95
"""Least SSIM of a clip's first frame with the picture that it begins with: 0.977 to 0.987 measured."""
