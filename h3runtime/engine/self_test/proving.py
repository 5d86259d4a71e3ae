"""Asking what nobody knows the answer to yet, one check after the other, and remembering what passed.

What failed is logged as an error; what becomes of it is the `verdict`'s. A check that takes the device down ends this
process, and the next one knows not to ask it. Fed by `resident` with the checks of `enabled`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

import torch

from h3runtime.core import KernelCheck, SelfTest
from h3runtime.engine.self_test.check import Check, DeviceLost, ask
from h3runtime.engine.self_test.record import Record

log = logging.getLogger("h3runtime.self_test")

OnCheck = Callable[[int, int], None]


def prove(
    checks: Iterable[Check], record: Record, device: torch.device, on_check: OnCheck = lambda _done, _of: None
) -> SelfTest:
    """Ask every one that `record` knows nothing of. on_check: how many are behind, of how many.

    What the library raised, if a check took the device down: the next process knows.
    """
    began = time.monotonic()
    listed, made = list(checks), list[KernelCheck]()
    for index, check in enumerate(listed):
        on_check(index, len(listed))
        made.append(record.known(check) or _asked(check, record, device))
    if any(not each.cached and each.passed for each in made):
        record.write()
    return SelfTest(tuple(made), time.monotonic() - began, kept=record.told)


def _asked(check: Check, record: Record, device: torch.device) -> KernelCheck:
    try:
        made = ask(check, device)
    except DeviceLost as lost:
        record.lost(check, lost.told)
        log.error("self-test: %s took the device down: %s", check.name, lost.told)
        assert lost.__cause__ is not None
        raise lost.__cause__ from None
    if made.passed:
        record.passed(check, made)
    else:
        log.error("self-test: %s failed: %s", check.name, made.reason)
    return made
