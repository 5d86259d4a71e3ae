"""PyTorch's own watch for calls that make the host wait for the device."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def forbid_waits() -> None:
    """From now on such a call is an error, as far as PyTorch knows of it."""
    _set("error")


@contextmanager
def waits_allowed_again() -> Iterator[None]:
    """At the end, whatever was forbidden meanwhile."""
    try:
        yield
    finally:
        _set("default")


def _set(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
        torch.cuda.set_sync_debug_mode(mode)
