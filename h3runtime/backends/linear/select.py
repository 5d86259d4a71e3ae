"""The linear backends and the choice among them. Read by `engine`, which loads every component with the one chosen."""

from __future__ import annotations

from typing import Any

import torch

from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.select import choose, listing
from h3runtime.core import BackendChoice


def linear_backends() -> tuple[LinearBackend[Any], ...]:
    """All there are, the one that `auto` prefers first."""
    return (DequantLinear(),)


def choose_linear(name: str, device: torch.device) -> tuple[LinearBackend[Any], str]:
    """The backend called `name` (or `auto`) and why; InvalidRequest or BackendUnavailable, see `backends.select`."""
    return choose("linear", linear_backends(), name, device)


def linear_choice(chosen: LinearBackend[Any], why: str, device: torch.device) -> BackendChoice:
    """What `/ready` shows once `chosen` is the server's default."""
    return listing(linear_backends(), chosen.name, why, device)
