"""Which linear backend a server on another machine would load transformers for: the choice of a start, by facts.

Read by `planning`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.nvfp4_options import Nvfp4Options
from h3runtime.backends.linear.select import linear_backends, native_by_facts, spare_linear, why_auto
from h3runtime.backends.select import AUTO
from h3runtime.engine import room
from h3runtime.engine.load import Judged, require_format, why_spared
from h3runtime.engine.memory_budget import Budget
from h3runtime.engine.places import Place
from h3runtime.errors import BackendUnavailable, InvalidRequest, Offence


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


def thinkable(name: str, place: Place, options: Nvfp4Options | None = None) -> tuple[LinearBackend[Any], ...]:
    """What `candidates` may come to, before it is known how anything is stored."""
    backends = linear_backends(options)
    if name != AUTO:
        return tuple(backend for backend in backends if backend.name == name) or backends
    native = native_by_facts(name, place.linear, backends).backend
    return tuple(each for each in (backends[0], spare_linear(name), native) if each is not None)


def candidates(
    name: str, place: Place, formats: Sequence[frozenset[str]], options: Nvfp4Options | None = None
) -> Candidates:
    """InvalidRequest lists the legal names if there is none such; BackendUnavailable tells why it can't run there.

    formats: of each transformer, how the layers that follow the choice are stored. options: of the NVFP4 path.
    """
    backends = linear_backends(options)
    if name == AUTO:
        native = native_by_facts(name, place.linear, backends)
        if native.serves(formats):
            assert native.backend is not None
            return Candidates(native.backend, None, native.why)
        why = "; ".join(filter(None, [why_auto(place.linear), native.why_passed(formats)]))
        return Candidates(backends[0], spare_linear(name), why)
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
