"""One checkpoint looked at as closely as loading does, without loading it: what it is, and what it would cost here.

Headers, markers, index and `config.json` are judged against the model that they would fill, and the values of scales;
no weight is read but the few rows that tell the order of q, k and v, unless the files are to be hashed. Asked by the
command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from h3runtime.backends.attention.options import AttentionOptions
from h3runtime.backends.attention.select import Attentions
from h3runtime.backends.linear.base import LinearBackend
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.nvfp4_options import Nvfp4Options
from h3runtime.backends.linear.select import choose_linear, linear_backends, native_linear, spare_linear
from h3runtime.checkpoint.families import Component, component_of
from h3runtime.checkpoint.file import CheckpointFile, common_prefix
from h3runtime.checkpoint.hashing import remembered, sha256_of
from h3runtime.checkpoint.load import judge, judge_scales
from h3runtime.checkpoint.renaming import our_names
from h3runtime.checkpoint.report import FileReport, describe, describe_other
from h3runtime.checkpoint.sources import open_source
from h3runtime.checkpoint.tensor_file import TensorFile, checkpoint_error
from h3runtime.checkpoint.verify import Verification
from h3runtime.engine.components import Part, part_of
from h3runtime.engine.device import choose_device
from h3runtime.engine.gates import why_no_gates
from h3runtime.engine.memory_budget import current_budget
from h3runtime.engine.resident import COMPUTE_DTYPE
from h3runtime.engine.room import LONGEST_ROWS, Weights, resident_bytes, why_decoding, why_short, working_bytes
from h3runtime.settings import Settings, default_cache_dir

OnBytes = Callable[[int, int], None]
"""Told how many bytes of how many have been hashed."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What would compute with `format` here, and why. format: None where it doesn't matter."""

    format: str | None
    name: str
    grade: str
    why: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What would run where. resident_bytes: of the weights as they are kept. free_bytes: of the device, now,
    less what the system keeps.

    fits: whether there is room for the weights; a clip needs more.
    """

    device: str
    name: str
    why: str
    linear: tuple[Backend, ...]
    attention: Backend | None
    resident_bytes: int
    free_bytes: int

    @property
    def fits(self) -> bool:
        return self.resident_bytes <= self.free_bytes


@dataclass(frozen=True, slots=True)
class Inspection:
    """sha256: as `/ready` has it, None if it wasn't asked for; digests: by file. dimensions: of the model, JSON-ready.

    machine: None for what can't be loaded.
    """

    report: FileReport
    sha256: str | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    dimensions: Mapping[str, Any] = field(default_factory=dict)
    machine: Machine | None = None


def inspect(path: Path, settings: Settings, *, hashed: bool, on_bytes: OnBytes) -> Inspection:
    """CheckpointError for what is broken or nothing we know, listing everything that is wrong with it. What is sound,
    known and can't be loaded is described as far as its names tell."""
    component = _component(path)
    if component is None:
        return _other(path, settings, hashed, on_bytes)
    part = part_of(component, path, settings, COMPUTE_DTYPE)
    with part.open() as file:
        module = _judged(part, file)
        config: Any = module.config
        found = Inspection(
            describe(file, component),
            dimensions=_plain(asdict(config)),
            machine=_machine(module, file, part, settings),
        )
        return _with_hashes(found, file.parts, settings, on_bytes) if hashed else found


def _component(path: Path) -> Component | None:
    source = open_source(path)
    source.close()
    prefix = common_prefix(source.entries)
    return component_of(our_names({name.removeprefix(prefix): entry for name, entry in source.entries.items()}))


def _judged(part: Part, file: CheckpointFile) -> nn.Module:
    """The model on the meta device that the file fills without fault."""
    module = part.on_meta(file)
    offences = list(judge(module, file, part.rule)) or list(judge_scales(file, part.rule, torch.device("cpu")))
    if offences:
        raise checkpoint_error(part.path, offences)
    return module


def _other(path: Path, settings: Settings, hashed: bool, on_bytes: OnBytes) -> Inspection:
    source = open_source(path)
    try:
        found = Inspection(describe_other(source))
        return _with_hashes(found, source.parts, settings, on_bytes) if hashed else found
    finally:
        source.close()


def _with_hashes(found: Inspection, parts: Sequence[TensorFile], settings: Settings, on_bytes: OnBytes) -> Inspection:
    """Digests that are remembered are believed, or not, as for loading (`H3_VERIFY`); all must be those that are named
    beside the files."""
    cache_dir = default_cache_dir()
    verification = Verification(parts, full=settings.verify == "full", cache_dir=cache_dir)
    verification.judge()
    wanted = sorted(verification.unknown)
    digests = {n: d for n, part in enumerate(parts) if (d := remembered(part.identity, cache_dir)) and n not in wanted}
    in_all = sum(parts[number].size for number in wanted)
    before = 0
    for number in wanted:
        digests[number] = sha256_of(parts[number].path, on_bytes=_shifted(on_bytes, before, in_all))
        verification.found(number, digests[number])
        before += parts[number].size
    verified = verification.finish()
    return replace(
        found,
        report=replace(found.report, warnings=(*found.report.warnings, *verified.warnings)),
        sha256=verified.sha256,
        digests={part.path.name: digests[number] for number, part in enumerate(parts)},
    )


def _shifted(on_bytes: OnBytes, before: int, in_all: int) -> Callable[[int], None]:
    return lambda done: on_bytes(before + done, in_all)


def _machine(module: nn.Module, file: CheckpointFile, part: Part, settings: Settings) -> Machine:
    place = choose_device(settings.device)
    linear, why = _linear(module, file, part, settings, place.device)
    kinds = dict.fromkeys([*(layer.kind for layer in file.layers.values()), "plain"])
    attention = None
    if part.component == "transformer":
        attentions = Attentions(place.device, AttentionOptions.of(settings))
        config: Any = module.config
        attentions.fit({config.head_dim}, why_no_gates([module]))
        chosen, reason = attentions.resolve(settings.attention)
        attention = Backend(None, chosen.name, chosen.grade, reason)
    return Machine(
        device=str(place.device),
        name=place.name,
        why=place.why,
        linear=tuple(Backend(kind, linear.name, linear.grade, why) for kind in kinds),
        attention=attention,
        resident_bytes=resident_bytes(module, file, part.rule, linear),
        free_bytes=current_budget(place.device, settings.system_reserve_bytes).loadable or 0,
    )


def _linear(
    module: nn.Module, file: CheckpointFile, part: Part, settings: Settings, device: torch.device
) -> tuple[LinearBackend[Any], str]:
    """Which backend that file would be loaded for, were there nothing beside it."""
    if part.component != "transformer":
        return DequantLinear(), "the choice of a backend is the transformers' own"
    linears = linear_backends(Nvfp4Options.of(settings))
    linear, why = choose_linear(settings.linear, device, linears)
    native = native_linear(settings.linear, device, linears)
    if native.backend is not None and native.serves([part.rule.formats(file)]):
        return native.backend, native.why
    if (spare := spare_linear(settings.linear)) is None:
        return linear, why
    config: Any = module.config
    budget = current_budget(device, settings.system_reserve_bytes)
    weights = Weights("", part.path.name, resident_bytes(module, file, part.rule, linear))
    short = why_short([weights], working_bytes(config, torch.bfloat16, LONGEST_ROWS), budget)
    return (linear, why) if short is None else (spare, why_decoding(short))


def _plain(value: Any) -> Any:
    """As JSON has it: dtypes and devices by their names."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
