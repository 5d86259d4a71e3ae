"""What takes the place of a kernel that failed: the next one that `auto` takes, or nothing, and then no engine starts.

A backend asked for by name is never replaced. Fed by `resident` with what its self-test found; gives it what to run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.select import linear_backends
from h3runtime.backends.linear.switching import LoadedLinears
from h3runtime.backends.select import AUTO
from h3runtime.core import SelfTest
from h3runtime.engine.self_test import encoder, linear
from h3runtime.errors import BackendUnavailable, Offence

log = logging.getLogger("h3runtime.self_test")


def failed_of(found: SelfTest, family: str) -> Mapping[str, str]:
    """Why, by name."""
    return {kernel: reason for (of, kernel), reason in found.failed.items() if of == family}


def warnings_of(found: SelfTest) -> tuple[str, ...]:
    """For people: what was disabled."""
    return tuple(f"{family}: {kernel} is disabled: it {why}" for (family, kernel), why in found.failed.items())


def require_encoder(found: SelfTest) -> None:
    """BackendUnavailable: what the text encoder runs is PyTorch's own, and nothing can take its place."""
    for reason in failed_of(found, encoder.FAMILY).values():
        raise BackendUnavailable(f"{encoder.FAMILY}: PyTorch's own kernels {reason}", [Offence(encoder.FAMILY, reason)])


def next_linear(
    loaded: LoadedLinears, why: str, asked: str, failed: Mapping[str, str]
) -> tuple[LinearBackend[Any], str]:
    """What multiplies from now on, and why: the chosen one if it passed, else the next exact one that reads the weights
    as they are. why: the chosen one was chosen. asked: `H3_LINEAR`. BackendUnavailable if there is none."""
    chosen = loaded.chosen.name
    if chosen not in failed:
        return loaded.chosen, why
    reason = failed[chosen]
    able = {name for name in loaded.choice().available if name not in failed}
    if asked != AUTO:
        raise _unavailable(f"{linear.FAMILY}: {chosen} can't run here: {reason}", reason, able)
    found = next((b for b in linear_backends() if b.name in able and b.grade == "reference"), None)
    if found is None:
        raise _unavailable(f"{linear.FAMILY}: no backend can run here: {chosen}: {reason}", reason, able)
    log.error("self-test: %s multiplies in place of %s, which %s", found.name, chosen, reason)
    return found, f"auto: the next exact one that reads the loaded weights, since {chosen} {reason}"


def _unavailable(message: str, reason: str, able: set[str]) -> BackendUnavailable:
    return BackendUnavailable(message, [Offence(linear.FAMILY, reason, ", ".join([AUTO, *sorted(able)]))])
