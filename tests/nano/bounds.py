"""What h3-nano is held to by the tests: numbers that were measured, and how to measure them again.

    python -m tests.nano.test_truth            # shares of the runtime as it is, and with each mistake in it
    python benchmarks/quality.py OUT ...       # tables of many prompts; the README has the commands and the results

Of so few clips as a test can make a share is rough, so each bound stands halfway between what was measured and what
would be a fault. Another set of masters gets other numbers here, and nowhere else.
"""

from __future__ import annotations

from typing import Final

RIGHT: Final = 0.85
"""Least share of all judged items that the runtime as it is gets right, of `test_truth`'s prompts."""
WRONG: Final = 0.70
"""Greatest share with a mistake in it."""
POSITION_KEPT: Final = True
"""Whether a clip between two keyframes is where they say; exchanged keyframes must then be seen."""
DEMO: Final = ("colour", "shape", "floor", "count")
"""Items that the judge finds right in the demo's clip: a red ball, alone on a blue floor."""
FIRST_FRAME: Final = 0.9
"""Least SSIM of a clip's first frame with the picture that it begins with."""
