"""The matrix kernels of the machine that recorded the bf16 runs: 512-bit vectors, no AMX tiles, torch 2.13.

AMX sums in another order, and both libraries choose their kernels once, at first use; so what compares bits runs in a
process of its own.
"""

import os
import subprocess
import sys

import torch

from tests.parity.fixture import REPOSITORY

KERNELS = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "MKL_ENABLE_INSTRUCTIONS": "AVX512"}


def is_at_hand() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX512" and torch.__version__.startswith("2.13.")


def run(module: str) -> None:
    """`python -m module` held to those kernels; it must exit with 0."""
    done = subprocess.run(
        [sys.executable, "-m", module],
        cwd=REPOSITORY,
        env=os.environ | KERNELS,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
