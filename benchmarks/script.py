"""What the scripts of one question share: flags that take counts and names, and the head of every report.

Touches no device but to ask a GPU for its size. Used by `attention`, `gemm`, `elementwise`, `vae` and `request`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import torch

from benchmarks.machine import this_machine, this_runtime


def positive(text: str) -> int:
    """A flag's count. ValueError for less than 1."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def names(text: str) -> tuple[str, ...]:
    """A flag's list, separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def measured_here(device_name: str, device: torch.device) -> dict[str, Any]:
    """When, with which checkout and on what machine. device_name: as it names itself, or `cpu`."""
    on_gpu = device.type == "cuda"
    size = torch.cuda.get_device_properties(device).total_memory if on_gpu else None
    cuda = torch.version.cuda if on_gpu else None
    machine = this_machine(device_name, size, torch.get_num_threads(), str(torch.__version__), cuda)
    return {
        "recorded_at": datetime.now(UTC).isoformat(),
        "runtime": this_runtime().model_dump(),
        "machine": machine.model_dump(),
    }
