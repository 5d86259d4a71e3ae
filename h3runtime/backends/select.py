"""Choosing one backend of a family: by name, or by `auto`, which becomes a concrete name and the reason for it.

A backend asked for by name that can't run is an error that says why, never another one in its place. Fed with a
family's candidates, best first, by `attention.select` and `linear.select`; the result is shown by `/ready`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

import torch

from h3runtime.core import BackendChoice
from h3runtime.errors import BackendUnavailable, InvalidRequest, Offence

AUTO = "auto"
NONE_FAILED: Final[Mapping[str, str]] = MappingProxyType({})


class Candidate(Protocol):
    """What every backend has, of whatever family."""

    name: str
    grade: str

    def why_unavailable(self, device: torch.device) -> str | None: ...


CandidateT = TypeVar("CandidateT", bound=Candidate)


def choose(
    family: str,
    candidates: Sequence[CandidateT],
    name: str,
    device: torch.device,
    failed: Mapping[str, str] = NONE_FAILED,
) -> tuple[CandidateT, str]:
    """The backend called `name`, or for `auto` the first that can run and isn't experimental; and why. failed: names of
    those that this machine runs wrongly, and what was found.

    InvalidRequest lists the legal names if there is none such; BackendUnavailable tells why it can't run on `device`.
    """
    if name == AUTO:
        return _best(family, candidates, device, failed)
    found = next((c for c in candidates if c.name == name), None)
    legal = ", ".join([AUTO, *(c.name for c in candidates)])
    if found is None:
        raise InvalidRequest(
            f"{family}: there is no backend {name!r}", [Offence(family, f"no backend {name!r}", legal)]
        )
    why_not = failed.get(name) or found.why_unavailable(device)
    if why_not is not None:
        raise BackendUnavailable(f"{family}: {name} can't run here: {why_not}", [Offence(family, why_not, legal)])
    return found, "asked for by name"


def _best(
    family: str, candidates: Sequence[CandidateT], device: torch.device, failed: Mapping[str, str]
) -> tuple[CandidateT, str]:
    passed: list[str] = []
    for candidate in candidates:
        why_not = failed.get(candidate.name) or candidate.why_unavailable(device)
        if why_not is None and candidate.grade != "experimental":
            reason = f"auto: the best {family} backend that can run on {device.type}"
            return candidate, reason + (f" ({'; '.join(passed)})" if passed else "")
        passed.append(f"{candidate.name}: {why_not or 'experimental'}")
    raise BackendUnavailable(f"{family}: no backend can run on {device.type}: {'; '.join(passed)}")


def listing(
    candidates: Sequence[Candidate],
    chosen: str,
    why: str,
    device: torch.device,
    failed: Mapping[str, str] = NONE_FAILED,
) -> BackendChoice:
    """The family as `/ready` shows it."""
    found = {c.name: failed.get(c.name) or c.why_unavailable(device) for c in candidates}
    unavailable = {name: reason for name, reason in found.items() if reason is not None}
    return BackendChoice(
        default=chosen,
        why=why,
        available=tuple(c.name for c in candidates if c.name not in unavailable),
        grades={c.name: c.grade for c in candidates},
        unavailable=unavailable,
        notes=notes_of(candidates),
    )


def notes_of(candidates: Iterable[Candidate]) -> dict[str, str]:
    """By name, what a backend says of itself in its `note`, where it has one."""
    return {c.name: note for c in candidates if (note := getattr(c, "note", ""))}
