"""What a library's exception means: memory is full, the device is lost, or neither and so a bug.

Does: turn PyTorch's and Python's own exceptions into `JobError`s with stage and step, and give memory back after one.
Does not: log, retry, or touch errors of ours. Fed by `resident` and `decode` with whatever leaves a run; what it
returns goes to the supervisor, which starts a new process after `EngineDead` only.

PyTorch tells the same fact in several classes: full device memory is `OutOfMemoryError` from its own allocator, an
`AcceleratorError` from the driver's, and a plain `RuntimeError` from cuBLAS, cuDNN and the allocator of the CPU.
"""

from __future__ import annotations

import errno
import gc
import re

import torch

from h3runtime.engine.heap import trim
from h3runtime.errors import EngineDead, JobError, OutOfMemory

HOST_FULL = (
    r"DefaultCPUAllocator: (can't allocate memory|not enough memory)",
    r"^could not (create|execute) a primitive$",
    r"^can't start new thread$",
)
"""What a `RuntimeError` says of the host: c10's allocator (c10/core/impl/alloc_cpu.cpp), oneDNN without room for its
code or its scratch, Python."""
DEVICE_FULL = (r"CUDA out of memory", r"CUDA error: out of memory", r"_STATUS_ALLOC_FAILED")
"""PyTorch's allocator, the driver's, and those inside cuBLAS and cuDNN."""


def job_error_of(
    error: Exception, device: torch.device, stage: str | None = None, step: int | None = None
) -> JobError | None:
    """The job's end that `error` stands for; None if it is one of ours already, or a bug on a device that works.

    `EngineDead` means that this process is of no more use: CUDA repeats such an error at every later call.
    """
    no_room = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if no_room or isinstance(error, MemoryError) or _says(error, HOST_FULL):
        return OutOfMemory("the host's memory is full", stage=stage, step=step)
    if isinstance(error, torch.OutOfMemoryError) or _says(error, DEVICE_FULL):
        return OutOfMemory("the device's memory is full", stage=stage, step=step)
    if isinstance(error, torch.AcceleratorError) or (isinstance(error, RuntimeError) and is_lost(device)):
        return EngineDead(f"the device failed: {_first_line(error)}", stage=stage, step=step)
    return None


def is_lost(device: torch.device) -> bool:
    """Whether CUDA still answers. A library may have met the sticky error first and told it in words of its own."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False


def give_back(device: torch.device) -> None:
    """Let go of all memory that nothing uses, so that the next job has it. EngineDead if the device can't.

    Not to be called while an exception is being handled: it holds the tensors of every frame it passed.
    """
    gc.collect()
    trim()
    if device.type != "cuda":
        return
    try:
        torch.cuda.empty_cache()
    except RuntimeError as error:
        raise EngineDead(f"the device failed: {_first_line(error)}") from error


def _says(error: Exception, patterns: tuple[str, ...]) -> bool:
    return isinstance(error, RuntimeError) and any(re.search(pattern, str(error)) for pattern in patterns)


def _first_line(error: Exception) -> str:
    """What follows it in PyTorch's text is advice, and paths of the machine."""
    return str(error).partition("\n")[0]
