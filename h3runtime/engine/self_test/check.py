"""One known answer: what is asked of which kernel, how far from right it may be, and asking it.

A kernel that raises, gives something that is no number or is further off than it says is told why. One that takes the
device down can't be gone on after: `DeviceLost` carries what it was, for the next process to know.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from h3runtime.core import KernelCheck
from h3runtime.engine.faults import job_error_of
from h3runtime.errors import EngineDead


@dataclass(frozen=True, slots=True)
class Check:
    """family, kernel, asked, tolerance: see `core.KernelCheck`. measure: the error, NaN if anything was none."""

    family: str
    kernel: str
    asked: str
    tolerance: float
    measure: Callable[[], float]

    @property
    def name(self) -> str:
        return f"{self.family} {self.kernel}: {self.asked}"


class DeviceLost(Exception):
    """A check took the device down; its cause is the library's own exception."""

    def __init__(self, check: Check, told: str) -> None:
        super().__init__(f"{check.name}: {told}")
        self.check, self.told = check, told


def ask(check: Check, device: torch.device) -> KernelCheck:
    """`DeviceLost` if the device is of no more use."""
    began = time.monotonic()
    error, reason = None, ""
    try:
        error = check.measure()
    except Exception as fault:
        found = job_error_of(fault, device)
        if isinstance(found, EngineDead):
            raise DeviceLost(check, first_line(fault)) from fault
        reason = f"{type(fault).__name__}: {first_line(fault)}" if found is None else found.message
    else:
        reason = _why_wrong(error, check.tolerance)
        error = error if math.isfinite(error) else None
    return KernelCheck(
        check.family, check.kernel, check.asked, error, check.tolerance, time.monotonic() - began, reason
    )


def _why_wrong(error: float, tolerance: float) -> str:
    if error <= tolerance:
        return ""
    if not math.isfinite(error):
        return "it gives what is no number"
    return f"it is off by {error:.3g}, at most {tolerance:g} is right"


def worst_row(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """[n, ...] each -> the largest relative L2 error of any of the n rows: one that is wrong isn't lost among many that
    are right. NaN if anything of either is no number."""
    got, wanted = got.double().flatten(1), wanted.to(got.device).double().flatten(1)
    size = wanted.norm(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
    return float(((got - wanted).norm(dim=1) / size).max())


def first_line(fault: Exception) -> str:
    return str(fault).strip().partition("\n")[0][:200] or "no message"
