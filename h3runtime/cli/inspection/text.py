"""An inspection as aligned lines for a person."""

from __future__ import annotations

from collections.abc import Iterator

from h3runtime.checkpoint.report import FileReport, Group, Scale
from h3runtime.core import AdapterContract
from h3runtime.engine.inspection import Inspection, Machine

UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
LABEL = 12
SHOWN_FILES = 4


def text(found: Inspection) -> str:
    return "\n".join(f"{label:<{LABEL}} {told}".rstrip() for label, told in _lines(found))


def _lines(found: Inspection) -> Iterator[tuple[str, str]]:
    report = found.report
    yield "file", f"{report.file}  {_bytes(report.bytes)}, {report.tensors} tensors"
    what = report.title.partition(" ")[2] if report.reason is None else report.title
    yield "what", f"{report.family}: {what}{_whose(report)}"
    if report.reason is not None:
        yield "loads", f"no: {report.reason}"
    if report.partition_hint is not None:
        yield "partition", f"{report.partition_hint}, by the file's name alone; its tensors can't tell"
    yield "layout", report.layout + (f", every name begins with {report.prefix}" if report.prefix else "")
    yield "format", report.format
    yield from _transformer(report)
    yield from _formats(report)
    yield from _lora(report)
    yield "dtypes", ", ".join(f"{name} {t.tensors} ({_bytes(t.bytes)})" for name, t in report.dtypes.items())
    if found.dimensions:
        plain = {name: v for name, v in found.dimensions.items() if not isinstance(v, dict | list) and v is not None}
        yield "dimensions", ", ".join(f"{name} {value}" for name, value in plain.items())
    yield from _hashes(found)
    if found.machine is not None:
        yield from _machine(found.machine)
    for warning in report.warnings:
        yield "warning", warning


def _whose(report: FileReport) -> str:
    if report.synthetic:
        return " (made up, not trained)"
    return f" ({report.model}, a trained miniature)" if report.model is not None else ""


def _transformer(report: FileReport) -> Iterator[tuple[str, str]]:
    if report.adaln is not None:
        form = report.adaln.form
        yield "adaln", f"{form}, grid {report.adaln.grid}, rank {report.adaln.rank}" if form == "pruned" else form
    if report.qkv is not None:
        yield "qkv", f"{report.qkv.order} ({report.qkv.how}: {report.qkv.why})"
    if report.head_bank is not None and report.head_bank > 1:
        yield "heads", f"a bank of {report.head_bank}"
    if report.gate_compress:
        yield "gates", "to_gate_compress, which dense attention doesn't read"


def _formats(report: FileReport) -> Iterator[tuple[str, str]]:
    width = max((len(group.layers) for group in report.formats), default=0)
    for index, group in enumerate(report.formats):
        yield "layers" if index == 0 else "", f"{group.layers:<{width}}  {_group(group)}"


def _group(group: Group) -> str:
    told = f"{group.format} x {group.count}"
    told += f", groups of {group.convrot_groupsize} rotated" if group.convrot_groupsize else ""
    told += ", full precision" if group.full_precision else ""
    return told + "".join(f"; {_scale(scale)}" for scale in group.scales)


def _scale(scale: Scale) -> str:
    shape = "x".join(map(str, scale.shape))
    return f"{scale.name} {scale.dtype} {scale.layout.replace('_', ' ')}" + (f" {shape}" if shape else "")


def _lora(report: FileReport) -> Iterator[tuple[str, str]]:
    lora = report.lora
    if lora is None:
        return
    alpha = f"alpha {', '.join(f'{a:g}' for a in lora.alphas)} on {lora.with_alpha}" if lora.with_alpha else "no alpha"
    told = f"{lora.pairs} layers, {lora.naming} names, ranks {', '.join(map(str, lora.ranks))}, {alpha}"
    yield "lora", told if not lora.layout else f"{lora.layout}: {told}"
    if lora.contract is not None:
        steps = " or ".join(map(str, lora.contract.steps))
        yield "", f"{lora.contract.name}, by {lora.contract.told_by}: {steps} forwards, {_shifts(lora.contract)}"
    for target in lora.targets:
        told = f"x {target.count}, rank {', '.join(map(str, target.ranks))}, {target.inputs} -> {target.outputs}"
        yield "", f"{target.layers}  {told}"
    if lora.others:
        yield "", "besides: " + ", ".join(f"{kind} x {count}" for kind, count in lora.others.items())


def _shifts(contract: AdapterContract) -> str:
    video, audio = (" or ".join(f"{s:g}" for s in shifts) for shifts in (contract.shift, contract.audio_shift))
    return f"shifts {video} and {audio}"


def _hashes(found: Inspection) -> Iterator[tuple[str, str]]:
    if found.sha256 is not None:
        yield "sha256", found.sha256
    parts = found.report.parts if len(found.report.parts) > 1 else ()
    for part in parts[:SHOWN_FILES]:
        yield "", f"{part.name}  {_bytes(part.bytes)}  {found.digests.get(part.name, '')}"
    if len(parts) > SHOWN_FILES:
        yield "", f"and {len(parts) - SHOWN_FILES} files more"


def _machine(machine: Machine) -> Iterator[tuple[str, str]]:
    yield "device", f"{machine.device}: {machine.name} ({machine.why})"
    for index, backend in enumerate(machine.linear):
        yield "linear" if index == 0 else "", f"{backend.format}: {backend.name} ({backend.why})"
    if machine.attention is not None:
        yield "attention", f"{machine.attention.name} ({machine.attention.why})"
    room = "fits" if machine.fits else "doesn't fit"
    yield "resident", f"{_bytes(machine.resident_bytes)}, {room} into {_bytes(machine.free_bytes)} that are free"


def _bytes(count: int) -> str:
    unit, size = next(((unit, size) for unit, size in UNITS if count >= size), ("B", 1))
    return f"{count / size:.2f} {unit}" if size > 1 else f"{count} B"
