"""Which linear backend a server on another machine would load transformers for: the choice of a start, by facts.

Read by `planning`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.nvfp4 import Nvfp4Linear
from h3runtime.backends.linear.select import linear_backends, spare_linear, why_auto
from h3runtime.backends.select import AUTO
from h3runtime.engine import room
from h3runtime.engine.load import Judged, require_format, why_spared
from h3runtime.engine.memory_budget import Budget
from h3runtime.engine.places import Place
from h3runtime.errors import BackendUnavailable, InvalidRequest, Offence

NATIVE = (10, 0)
"""Compute capability from which `auto` multiplies what is stored as NVFP4 in it."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """linear: what is loaded for. spare: what takes its place where memory is short of what it keeps."""

    linear: LinearBackend[Any]
    spare: LinearBackend[Any] | None
    why: str

    @property
    def all(self) -> tuple[LinearBackend[Any], ...]:
        return (self.linear,) if self.spare is None else (self.linear, self.spare)

    def settled(
        self, judged: Sequence[Judged], residency: str, compute_dtype: torch.dtype, budget: Budget
    ) -> tuple[LinearBackend[Any], str]:
        """Once the headers are known; as a loader decides it."""
        require_format(self.linear, judged)
        if self.spare is None:
            return self.linear, self.why
        short = why_spared(self.linear, judged, residency, compute_dtype, budget)
        return (self.linear, self.why) if short is None else (self.spare, room.why_decoding(short))


def thinkable(name: str) -> tuple[LinearBackend[Any], ...]:
    """What `candidates` may come to, before it is known how anything is stored."""
    backends = linear_backends()
    if name != AUTO:
        return tuple(backend for backend in backends if backend.name == name) or backends
    spare = spare_linear(name)
    return (backends[0], *([] if spare is None else [spare]), Nvfp4Linear())


def candidates(name: str, place: Place, *, stored_nvfp4: bool) -> Candidates:
    """InvalidRequest lists the legal names if there is none such; BackendUnavailable tells why it can't run there.

    stored_nvfp4: whether the transformers' layers are NVFP4.
    """
    backends = linear_backends()
    if name == AUTO:
        native = place.linear.capability is not None and place.linear.capability >= NATIVE
        if native and stored_nvfp4 and _why_not(Nvfp4Linear(), place) is None:
            return Candidates(Nvfp4Linear(), None, "auto: weights stored as NVFP4 are multiplied as such on SM 10.0 on")
        return Candidates(backends[0], spare_linear(name), why_auto(place.linear))
    found = next((backend for backend in backends if backend.name == name), None)
    if found is None:
        legal = ", ".join([AUTO, *(backend.name for backend in backends)])
        raise InvalidRequest(
            f"linear: there is no backend {name!r}", [Offence("linear", f"no backend {name!r}", legal)]
        )
    if (why_not := _why_not(found, place)) is not None:
        raise BackendUnavailable(f"linear: {name} can't run there: {why_not}", [Offence("linear", why_not)])
    return Candidates(found, None, "asked for by name")


def _why_not(backend: LinearBackend[Any], place: Place) -> str | None:
    """By recorded facts where the backend decides from these alone."""
    by_facts: Any = getattr(backend, "why_not", None)
    found: str | None = backend.why_unavailable(place.device) if by_facts is None else by_facts(place.linear)
    return found
