"""A plan as one JSON object: bytes as integers, nothing rounded."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from h3runtime.engine.planning import Line, Plan, Residency


def document(found: Plan) -> dict[str, Any]:
    """`components`, `linear` and `weights_bytes` are those of `residency`, the chosen one, or of `all` without one.
    resident_bytes: of tensors; allocated_bytes: with the rounding of PyTorch's allocator."""
    place, budget, shown = found.place, found.budget, found.shown
    return {
        "device": place.name,
        "title": place.title,
        "architecture": place.architecture,
        "memory": {
            "kind": budget.kind,
            "total_bytes": budget.total,
            "free_bytes": place.memory.free,
            "limits": [{"bytes": group.limit, "left_bytes": group.room} for group in place.memory.groups],
            "reserve_bytes": budget.reserve,
            "loadable_bytes": budget.loadable,
            "sources": dict(place.sources),
        },
        "residency": found.chosen or None,
        "linear": asdict(shown.linear),
        "attention": asdict(found.attention),
        "components": [_line(line) for line in shown.weights],
        "weights_bytes": sum(line.bytes for line in shown.weights),
        "allocated_bytes": sum(line.allocated for line in shown.weights),
        "other": [{"name": line.name, "bytes": line.bytes} for line in found.fixed],
        "residencies": {each.name: _residency(each) for each in found.residencies},
    }


def _line(line: Line) -> dict[str, Any]:
    return {
        "name": line.name,
        "file": line.file,
        "file_bytes": line.file_bytes,
        "format": line.format or None,
        "resident_bytes": line.bytes,
        "allocated_bytes": line.allocated,
    }


def _residency(found: Residency) -> dict[str, Any]:
    return {
        "usable": not found.why_not,
        "why_not": found.why_not or None,
        "linear": found.linear.name,
        "weights_bytes": {
            "conditioning": found.conditioning,
            "sampling": found.sampling,
            "decode": found.decode,
            "host": found.host,
        },
        "clips": [{**asdict(job), "memory": dict(job.memory)} for job in found.jobs],
    }
