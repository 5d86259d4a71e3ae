"""A plan as aligned lines for a person."""

from __future__ import annotations

from collections.abc import Iterator

from h3runtime.engine.planning import Job, Line, Plan, Residency
from h3runtime.settings import GIB, variable

LABEL, NAME = 12, 36
KINDS = {"integrated": "shared by CPU and GPU", "discrete": "the card's own", "cpu": "the host's"}


def text(found: Plan) -> str:
    return "\n".join(f"{label:<{LABEL}} {told}".rstrip() for label, told in _lines(found))


def _lines(found: Plan) -> Iterator[tuple[str, str]]:
    place, shown = found.place, found.shown
    yield "device", f"{place.name}: {place.title}, {place.architecture}"
    yield from _memory(found)
    yield "linear", f"{shown.linear.name} ({shown.linear.why})"
    yield "attention", f"{found.attention.name} ({found.attention.why})"
    yield "", ""
    yield from _resident(found)
    yield "", ""
    for label, each in zip(["residency"] + [""] * len(found.residencies), found.residencies, strict=False):
        yield label, f"{each.name:<14} {_use(each)}"
    yield "", ""
    yield from _clips(shown)
    yield "", ""
    yield "verdict", _verdict(found)


def _memory(found: Plan) -> Iterator[tuple[str, str]]:
    place, budget = found.place, found.budget
    if budget.loadable is None:
        yield "memory", "unknown"
        return
    taken = place.memory.total - place.memory.free
    yield "memory", f"{_gib(place.memory.total)}, {KINDS[budget.kind]}  [{place.sources['total']}]"
    told = place.sources.get("taken") or place.sources["free"]
    yield "free", f"{_gib(place.memory.free)}: {_gib(taken)} are taken  [{told}]"
    for group in place.memory.groups:
        yield "limit", f"{_gib(group.limit)} of a control group, {_gib(group.room)} of it left"
    yield "reserve", f"{_gib(budget.reserve)} that the system keeps  [{variable('system_reserve_bytes')}]"
    yield "loadable", f"{_gib(budget.loadable)}, with what a driver and the host's side take left out"


def _resident(found: Plan) -> Iterator[tuple[str, str]]:
    yield "resident", f"{'':<{NAME}} {'bytes':>17} {'as allocated':>17} {'GiB':>9}"
    weights = found.shown.weights
    everything = Line("all weights", sum(line.bytes for line in weights), sum(line.allocated for line in weights))
    for line in (*weights, everything):
        figures = f"{line.bytes:>17,} {line.allocated:>17,} {line.bytes / GIB:>9.3f}"
        yield "", f"{line.name:<{NAME}} {figures}  {line.file}"
    for line in found.fixed:
        yield "", f"{line.name:<{NAME}} {line.bytes:>17,} {'':>17} {line.bytes / GIB:>9.3f}"


def _use(found: Residency) -> str:
    if found.why_not:
        return f"no: {found.why_not}"
    told = f"fits: {_gib(found.conditioning)} of weights while a prompt is read, {_gib(found.sampling)} while sampling"
    return told + (f", {_gib(found.host)} page-locked on the host" if found.host else "")


def _clips(found: Residency) -> Iterator[tuple[str, str]]:
    if not found.jobs:
        yield "clips", "none"
        return
    yield "clips", f"{'':<{NAME}} {'rows':>9} {'GiB at once':>12}   longest that fits"
    for job in found.jobs:
        yield "", _clip(job)


def _clip(job: Job) -> str:
    name = f"{job.width}x{job.height}, {job.frames} frames"
    verdict = "" if job.fits else " too much"
    longest = "none" if job.longest is None else f"{job.longest} frames, {_gib(job.longest_peak_bytes or 0)}"
    return f"{name:<{NAME}} {job.rows:>9,} {job.peak_bytes / GIB:>12.2f}{verdict}   {longest}"


def _verdict(found: Plan) -> str:
    if not found.chosen:
        return "a server refuses to start with these files there"
    short = [job for job in found.shown.jobs if not job.fits]
    told = f"{variable('residency')}={found.chosen}"
    return told + (f"; {len(short)} of {len(found.shown.jobs)} clips are too large" if short else "; every clip fits")


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
