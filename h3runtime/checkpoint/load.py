"""A checkpoint file onto a model built on the meta device: everything checked first, then tensor by tensor.

The model says what it needs (its `state_dict` names and shapes), the file what it has; missing, extra, wrong shape,
wrong dtype and formats in the wrong place are one error, raised before any data is read. Then every `nn.Linear` becomes
a `BackendLinear` around its stored weight, an INT8 embedding table an `Int8Embedding`, and every other tensor is
assigned in its stored dtype or the one of the component's rule. What the rule ignores stays in the file. Rows are never
reordered here: q|k|v are contiguous thirds (checkpoint-formats §2.3).

Fed by `engine` with a `CheckpointFile`, a model made by `from_shapes(file.shapes)` and a rule of `rules`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from h3runtime.backends.linear.base import LinearBackend, install
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.embedding import install_embedding
from h3runtime.checkpoint.assemble import faulty_scales
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.formats import FLOAT8, FLOATS, INT8, NVFP4
from h3runtime.checkpoint.groups import Group, assign, groups_of, made_of
from h3runtime.checkpoint.layers import QuantLayer, short
from h3runtime.checkpoint.markers import SUFFIX
from h3runtime.checkpoint.rules import LoadRule
from h3runtime.checkpoint.stream import Reading, stream
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.errors import Offence
from h3runtime.quant.stored import Int8Weight, StoredWeight

OnBytes = Callable[[int, int], None]
"""Called with bytes done and bytes in all, about REPORTS times; the last call has both equal."""
REPORTS = 200
EMBEDDINGS = "*embed_tokens"
"""Tables, which are no linears and have their own storage (checkpoint-formats §5.1)."""
PLAIN_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float8_e4m3fn: "fp8_e4m3fn",
    torch.float8_e5m2: "fp8_e5m2",
}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How a load went. `format` is `storage_format`'s."""

    format: str
    bytes: int
    seconds: float
    synthetic: bool


def load_module(
    module: nn.Module,
    file: CheckpointFile,
    *,
    linear: LinearBackend[Any],
    device: torch.device,
    rule: LoadRule,
    on_bytes: OnBytes | None = None,
    reading: Reading | None = None,
) -> LoadReport:
    """Fill `module` (built on meta) from `file` onto `device`. CheckpointError lists every offender; see `rules`.

    linear: of the layers that the rule says follow the choice. device: on meta all is judged and nothing is kept; what
    comes to stand in the module tells shapes and dtypes, and `refill` puts weights in their place.

    `reading`: what else the bytes are wanted for, as `stream` takes it.
    """
    started = time.perf_counter()
    if offences := list(judge(module, file, rule)):
        raise checkpoint_error(file.path, offences)
    _Loading(module, file, linear, device, rule, on_bytes, reading).run()
    seconds = time.perf_counter() - started
    return LoadReport(storage_format(file), file.data_bytes, seconds, file.synthetic)


def judge(module: nn.Module, file: CheckpointFile, rule: LoadRule) -> Iterator[Offence]:
    """Everything that keeps `file` from filling `module`, in the model's order, then what the file has too much of."""
    wanted = {n: t for n, t in module.state_dict().items() if not rule.ignores(n)}
    for name, tensor in wanted.items():
        yield from _judge_one(name, tensor, file)
    for layer in file.layers.values():
        if f"{layer.name}.weight" in wanted:
            yield from _judge_place(layer, module.get_submodule(layer.name))
    for name in file.shapes:
        if name not in wanted and not rule.ignores(name):
            yield Offence(name, "is unexpected: the model has no such tensor")
    for name in file.entries:
        if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) not in file.layers:
            yield Offence(name, "marks a layer that isn't in the file")


def judge_scales(
    file: CheckpointFile, rule: LoadRule, device: torch.device, reading: Reading | None = None
) -> Iterator[Offence]:
    """Scales with values that can't be, of the whole file, at the price of reading its scales alone, and what `reading`
    wants besides."""
    layers = [layer for layer in file.layers.values() if not rule.ignores(f"{layer.name}.weight")]
    owners = {name: layer for layer in layers for name in layer.sidecars}
    for name, tensor in stream(file, owners, device, reading):
        yield from faulty_scales(owners[name], {name: tensor})


def judge_values(file: CheckpointFile, rule: LoadRule) -> Iterator[Offence]:
    """Tensors of the model with a NaN or an infinity, at the price of reading all that can have one."""
    able = [n for n in file.shapes if file.entries[n].dtype.is_floating_point and not rule.ignores(n)]
    for name, tensor in stream(file, able, torch.device("cpu")):
        if not bool(torch.isfinite(tensor.float() if tensor.dtype in FLOAT8 else tensor).all()):
            yield Offence(name, "isn't finite")


def storage_format(file: CheckpointFile) -> str:
    """How the file's linears are stored: `nvfp4`, `int8_convrot`, ...; several joined by `+`, the one with most bytes
    first. A file without quantised ones is named for its commonest dtype by bytes: `bf16`, `fp16`, `fp32`, ...
    """
    sizes: Counter[str] = Counter()
    for layer in file.layers.values():
        if not fnmatchcase(layer.name, EMBEDDINGS):
            sizes[layer.kind] += sum(file.entries[n].nbytes for n in (f"{layer.name}.weight", *layer.sidecars))
    if sizes:
        awq = any(n.endswith(".pre_quant_scale") for layer in file.layers.values() for n in layer.sidecars)
        return "+".join(f"{kind}_awq" if awq and kind == NVFP4.short else kind for kind, _ in sizes.most_common())
    for entry in file.entries.values():
        sizes[PLAIN_NAMES.get(entry.dtype, short(entry.dtype))] += entry.nbytes
    return sizes.most_common(1)[0][0]


def _judge_one(name: str, tensor: torch.Tensor, file: CheckpointFile) -> Iterator[Offence]:
    entry = file.entries.get(name)
    if entry is None:
        yield Offence(name, "is missing")
        return
    layer = file.layers.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
    if layer is not None:
        yield from _judge_fit(layer, tuple(tensor.shape), file)
        return
    if entry.shape != tuple(tensor.shape):
        yield Offence(name, f"has shape {list(entry.shape)}", str(list(tensor.shape)))
    legal = _plain_dtypes(name, tensor)
    if entry.dtype not in legal:
        yield Offence(name, f"has dtype {short(entry.dtype)}", ", ".join(map(short, legal)))


def _judge_fit(layer: QuantLayer, wanted: tuple[int, ...], file: CheckpointFile) -> Iterator[Offence]:
    if not layer.fits(wanted):
        found = f"has shape {list(layer.shape)} ({layer.marker.label})"
        yield Offence(f"{layer.name}.weight", found, str(list(wanted)))
        return
    scale = file.entries.get(f"{layer.name}.pre_quant_scale")
    legal = (wanted[1], layer.format.padded(wanted)[1])
    if scale is not None and scale.name in layer.sidecars and scale.shape[0] not in legal:
        yield Offence(scale.name, f"has shape {list(scale.shape)}", str([wanted[1]]))


def _plain_dtypes(name: str, tensor: torch.Tensor) -> tuple[torch.dtype, ...]:
    """An FP8 matrix with neither marker nor scale is a plain number to cast (checkpoint-formats §2.6)."""
    if not tensor.is_floating_point():
        return (tensor.dtype,)
    return FLOATS + FLOAT8 if name.endswith(".weight") and tensor.ndim == 2 else FLOATS


def _judge_place(layer: QuantLayer, target: nn.Module) -> Iterator[Offence]:
    """Every linear may be stored in any format, an embedding table as INT8 only."""
    table = isinstance(target, nn.Embedding) and layer.format is INT8
    if not isinstance(target, nn.Linear) and not table:
        legal = f"plain, {INT8.name}" if isinstance(target, nn.Embedding) else "plain"
        yield Offence(layer.name, f"is stored as {layer.marker.label}, which isn't supported there", legal)


class _Loading:
    """One load in progress; the judgement has been passed."""

    def __init__(
        self,
        module: nn.Module,
        file: CheckpointFile,
        linear: LinearBackend[Any],
        device: torch.device,
        rule: LoadRule,
        on_bytes: OnBytes | None,
        reading: Reading | None,
    ) -> None:
        self.module, self.file, self.linear, self.device, self.rule = module, file, linear, device, rule
        self.on_bytes, self.reading = on_bytes, reading
        self.total = file.data_bytes
        self.done = self.reported = 0

    def run(self) -> None:
        groups = {name: group for group in groups_of(self.module, self.file, self.rule) for name in group.names}
        waiting: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in self._read(groups):
            group = groups[name]
            held = waiting.setdefault(group.name, {})
            held[name] = tensor
            self.done += tensor.nbytes
            if len(held) == len(group.names):
                self._place(group, waiting.pop(group.name))
            self._report()
        for name in self.module.state_dict():
            if self.rule.ignores(name):
                self._leave_empty(name)
        if self.on_bytes is not None:
            self.on_bytes(self.total, self.total)

    def _read(self, names: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """On meta nothing is kept, and so nothing read but what is judged or hashed."""
        if self.device.type != "meta":
            yield from stream(self.file, names, self.device, self.reading)
            return
        if offences := list(judge_scales(self.file, self.rule, torch.device("cpu"), self.reading)):
            raise checkpoint_error(self.file.path, offences)
        for name in names:
            entry = self.file.entries[name]
            yield name, torch.empty(entry.shape, dtype=entry.dtype, device=self.device)

    def _place(self, group: Group, tensors: dict[str, torch.Tensor]) -> None:
        layer = self.file.layers.get(group.name)
        if layer is not None and self.device.type != "meta" and any(faulty_scales(layer, tensors)):
            raise checkpoint_error(self.file.path, judge_scales(self.file, self.rule, self.device))
        made = made_of(group, tensors, self.file, self.rule)
        if isinstance(made, torch.Tensor):
            assign(self.module, group.name, made)
        elif isinstance(group.target, nn.Embedding):
            assert isinstance(made, Int8Weight)
            install_embedding(self.module, group.name, made)
        else:
            self._install(group.name, made)

    def _install(self, name: str, stored: StoredWeight) -> None:
        switched = self.rule.switches(name)
        backend = self.linear if switched else DequantLinear()
        install(self.module, name, backend, stored, self.device, switched=switched)

    def _leave_empty(self, name: str) -> None:
        """A place in the model for what nothing reads: no memory for it, and no promise on meta left behind."""
        parent, _, leaf = name.rpartition(".")
        setattr(self.module.get_submodule(parent), leaf, None)

    def _report(self) -> None:
        """Tell of progress where there is some: files of small tensors would otherwise tell of little else."""
        if self.on_bytes is not None and (self.done - self.reported) * REPORTS >= self.total:
            self.reported = self.done
            self.on_bytes(self.done, self.total)
