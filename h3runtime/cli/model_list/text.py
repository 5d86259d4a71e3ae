"""The files of a machine as aligned lines for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from h3runtime.checkpoint.published_files import PublishedFile
from h3runtime.engine.machines import Machine
from h3runtime.engine.model_files import Checked
from h3runtime.engine.planning import Plan
from h3runtime.settings import GIB, variable

NAME = 52


def text(machine: Machine, files: Sequence[PublishedFile], found: Sequence[Checked] | None, planned: Plan) -> str:
    lines = [f"{machine.name}: {machine.title}: {machine.files.why}", ""]
    for index, file in enumerate(files):
        lines += _file(file)
        if found is not None:
            lines += _found(found[index])
    total = sum(file.bytes for file in files)
    lines += ["", f"{'all':<{NAME}} {total:>17,} bytes  {total / GIB:.2f} GiB", _verdict(planned)]
    if found is not None:
        right = sum(each.is_right for each in found)
        lines.append(f"{right} of {len(found)} files are there and right")
    return "\n".join(lines)


def _file(file: PublishedFile) -> Iterator[str]:
    yield f"{file.name:<{NAME}} {file.bytes:>17,} bytes  {file.repository}: {file.path}"
    yield f"    SHA-256 {file.sha256 or 'not known'}"


def _found(checked: Checked) -> Iterator[str]:
    if checked.is_right:
        how = "size, layout" if checked.file.role != "tokenizer" else "size"
        how += " and SHA-256" if checked.sha256 is not None and checked.file.sha256 is not None else ""
        yield f"    right by {how}: {checked.path}"
    for fault in checked.faults:
        yield f"    WRONG: {fault}"
    for note in checked.notes:
        yield f"    {note}"


def _verdict(planned: Plan) -> str:
    weights = sum(line.bytes for line in planned.shown.weights)
    if not planned.chosen:
        # The one that takes least of those that can be had there.
        tried = [each for each in planned.residencies if each.sampling < weights] or planned.residencies[:1]
        return f"plan: they don't fit, {variable('residency')}={tried[0].name}: {tried[0].why_not}"
    loadable = planned.budget.loadable or 0
    told = f"plan: {weights / GIB:.2f} GiB resident of {loadable / GIB:.2f} GiB that can be used, with "
    return told + f"{variable('residency')}={planned.chosen} ({planned.shown.sampling / GIB:.2f} GiB while sampling)"
