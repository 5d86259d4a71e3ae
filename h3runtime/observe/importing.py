"""Imports without garbage collection: what they make stays, and a collector would look through it again and again.

Importing PyTorch and the engine makes some 500,000 objects. With collections in between it takes a tenth longer, and
every full collection afterwards, one of them as the process ends, looks at all of them. Fed by the command line and by
the engine's process around their heavy imports.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

MANY: Final = 20_000
"""Objects. A second import of what is there makes none; the command line makes some 100,000, PyTorch 200,000."""


@contextmanager
def uncollected() -> Iterator[None]:
    """Inside, nothing is collected; what is there by the end is never looked at again.

    Except for what small imports leave: a program that imports the command line many times, as tests do, would keep
    whatever lies about each time.
    """
    collects = gc.isenabled()
    before = len(gc.get_objects())
    gc.disable()
    try:
        yield
    finally:
        if len(gc.get_objects()) - before > MANY:
            gc.freeze()
        if collects:
            gc.enable()
