"""The files of a machine as one JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from h3runtime.checkpoint.published_files import PublishedFile
from h3runtime.engine.machines import Machine
from h3runtime.engine.model_files import Checked
from h3runtime.engine.planning import Plan


def document(
    machine: Machine, files: Sequence[PublishedFile], found: Sequence[Checked] | None, planned: Plan
) -> dict[str, Any]:
    """`found` of a file, and `complete`, are null where no folder was looked at."""
    checked = dict(zip(files, found, strict=True)) if found is not None else {}
    return {
        "device": machine.name,
        "title": machine.title,
        "why": machine.files.why,
        "files": [_file(file, checked.get(file)) for file in files],
        "bytes": sum(file.bytes for file in files),
        "complete": None if found is None else all(each.is_right for each in found),
        "plan": {
            "residency": planned.chosen or None,
            "weights_bytes": sum(line.bytes for line in planned.shown.weights),
            "loadable_bytes": planned.budget.loadable,
            "why_not": {each.name: each.why_not for each in planned.residencies if each.why_not},
        },
    }


def _file(file: PublishedFile, checked: Checked | None) -> dict[str, Any]:
    return {
        "name": file.name,
        "role": file.role,
        "format": file.format,
        "repository": file.repository,
        "path": file.path,
        "bytes": file.bytes,
        "sha256": file.sha256,
        "sha256_source": file.source if file.sha256 is not None else None,
        "found": None if checked is None else _found(checked),
    }


def _found(checked: Checked) -> dict[str, Any]:
    return {
        "path": None if checked.path is None else str(checked.path),
        "right": checked.is_right,
        "sha256": checked.sha256,
        "faults": list(checked.faults),
        "notes": list(checked.notes),
    }
