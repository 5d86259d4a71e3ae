"""A checkpoint file onto a model built on the meta device: everything checked first, then tensor by tensor.

The model says what it needs (its `state_dict` names and shapes), the file what it has; missing, extra, wrong shape,
wrong dtype and formats in the wrong place are one error, raised before any data is read. Then every `nn.Linear` becomes
a `BackendLinear` around its stored weight, an INT8 embedding table an `Int8Embedding`, and every other tensor is
assigned in its stored dtype or the one of the component's rule. Rows are never reordered: q|k|v are contiguous thirds
in these files (checkpoint-formats §2.3).

Fed by `engine` with a `CheckpointFile`, a model made by `from_shapes(file.shapes)` and a rule of `rules`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from h3runtime.backends.linear.base import LinearBackend, install
from h3runtime.backends.linear.embedding import install_embedding
from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.file import CheckpointFile, checkpoint_error
from h3runtime.checkpoint.layers import FLOAT8, FLOATS, NVFP4, QuantLayer, short
from h3runtime.checkpoint.markers import SUFFIX
from h3runtime.checkpoint.rules import LoadRule
from h3runtime.checkpoint.stream import stream
from h3runtime.errors import Offence
from h3runtime.quant.stored import Int8Weight, Nvfp4Weight, PlainWeight, StoredWeight

OnBytes = Callable[[int, int], None]
"""Called with bytes done and bytes in all, about REPORTS times; the last call has both equal."""
REPORTS = 200


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How a load went. `format` sums up the storage: `nvfp4`, else the dtype most bytes are in, as `bf16`."""

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
) -> LoadReport:
    """Fill `module` (built on meta) from `file` onto `device`. CheckpointError lists every offender; see `rules`."""
    started = time.perf_counter()
    offences = list(judge(module, file, rule))
    if offences:
        raise checkpoint_error(file.path, offences)
    _Loading(module, file, linear, device, rule, on_bytes).run()
    seconds = time.perf_counter() - started
    return LoadReport(storage_format(file), file.data_bytes, seconds, file.synthetic)


def judge(module: nn.Module, file: CheckpointFile, rule: LoadRule) -> Iterator[Offence]:
    """Everything that keeps `file` from filling `module`, in the model's order, then what the file has too much of."""
    wanted = module.state_dict()
    for name, tensor in wanted.items():
        yield from _judge_one(name, tensor, file, rule)
    for layer in file.layers.values():
        yield from _judge_format(layer, module, rule)
    for name in file.shapes:
        if name not in wanted and not _matches(name, rule.ignored):
            yield Offence(name, "is unexpected: the model has no such tensor")
    for name in file.entries:
        if name.endswith(SUFFIX) and name.removesuffix(SUFFIX) not in file.layers:
            yield Offence(name, "marks a layer that isn't in the file")


def storage_format(file: CheckpointFile) -> str:
    """`nvfp4` if any layer is, else the commonest stored dtype by bytes, in safetensors' words but small."""
    if any(layer.marker.format == NVFP4 for layer in file.layers.values()):
        return NVFP4
    sizes: dict[torch.dtype, int] = {}
    for entry in file.entries.values():
        sizes[entry.dtype] = sizes.get(entry.dtype, 0) + entry.nbytes
    names = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
    largest = max(sizes, key=lambda d: sizes[d])
    return names.get(largest, short(largest))


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, p) for p in patterns)


def _judge_one(name: str, tensor: torch.Tensor, file: CheckpointFile, rule: LoadRule) -> Iterator[Offence]:
    entry = file.entries.get(name)
    if entry is None:
        if not _matches(name, rule.optional):
            yield Offence(name, "is missing")
        return
    layer = file.layers.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
    if layer is not None:
        if not _fits(layer, tuple(tensor.shape), entry):
            yield Offence(name, f"has shape {list(layer.shape)} ({layer.marker.label})", str(list(tensor.shape)))
        return
    if entry.shape != tuple(tensor.shape):
        yield Offence(name, f"has shape {list(entry.shape)}", str(list(tensor.shape)))
    if entry.dtype not in _plain_dtypes(name, tensor, rule):
        yield Offence(name, f"has dtype {short(entry.dtype)}", ", ".join(map(short, _plain_dtypes(name, tensor, rule))))


def _plain_dtypes(name: str, tensor: torch.Tensor, rule: LoadRule) -> tuple[torch.dtype, ...]:
    """An FP8 matrix with neither marker nor scale is a plain number to cast (checkpoint-formats §2.6)."""
    if not tensor.is_floating_point():
        return (tensor.dtype,)
    bare_fp8 = name.endswith(".weight") and tensor.ndim == 2 and rule.cast is None
    return FLOATS + FLOAT8 if bare_fp8 else FLOATS


def _fits(layer: QuantLayer, wanted: tuple[int, ...], entry: StoredTensor) -> bool:
    """The logical shape; or, for NVFP4 without `orig_shape`, the same once padded to multiples of 16."""
    if layer.shape == wanted:
        return True
    if layer.marker.format != NVFP4 or layer.marker.shape is not None or len(wanted) != 2:
        return False
    rows, half = entry.shape
    return rows in (wanted[0], -(-wanted[0] // 16) * 16) and half == -(-wanted[1] // 16) * 8


def _judge_format(layer: QuantLayer, module: nn.Module, rule: LoadRule) -> Iterator[Offence]:
    try:
        target: nn.Module | None = module.get_submodule(layer.name)
    except AttributeError:
        return
    kind, allowed = (nn.Linear, rule.nvfp4) if layer.marker.format == NVFP4 else (nn.Embedding, rule.int8_rows)
    if not isinstance(target, kind) or not _matches(layer.name, allowed):
        yield Offence(layer.name, f"is stored as {layer.marker.label}, which isn't supported there", "plain")


@dataclass(frozen=True, slots=True)
class _Group:
    """Stored tensors that become one thing: a linear, an embedding, or (no `target`) one tensor of the model."""

    name: str
    names: frozenset[str]
    target: nn.Module | None = None


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
    ) -> None:
        self.module, self.file, self.linear, self.device, self.rule = module, file, linear, device, rule
        self.on_bytes = on_bytes
        self.done = 0
        self.reported = 0

    def run(self) -> None:
        groups = {name: group for group in self._groups() for name in group.names}
        waiting: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in stream(self.file, groups, self.device):
            group = groups[name]
            held = waiting.setdefault(group.name, {})
            held[name] = tensor
            self.done += tensor.nbytes
            if len(held) == len(group.names):
                self._place(group, waiting.pop(group.name))
            self._report()
        for name in self.module.state_dict():
            if name not in self.file.entries and self.module.state_dict()[name].is_meta:
                self._stand_in(name)
        if self.on_bytes is not None:
            self.on_bytes(self.file.data_bytes, self.file.data_bytes)

    def _groups(self) -> Iterator[_Group]:
        """Everything that the model takes from the file."""
        pending = {name for name in self.module.state_dict() if name in self.file.entries}
        for name, target in self.module.named_modules():
            layer = self.file.layers.get(name)
            if layer is None and not isinstance(target, nn.Linear):
                continue
            own = {f"{name}.weight", f"{name}.bias"} & pending
            yield _Group(name, frozenset(own | set(layer.sidecars if layer else ())), target)
            pending -= own
        for name in pending:
            yield _Group(name, frozenset((name,)))

    def _place(self, group: _Group, tensors: dict[str, torch.Tensor]) -> None:
        layer = self.file.layers.get(group.name)
        if group.target is None:
            self._assign(group.name, self._cast(tensors[group.name]))
        elif layer is None:
            bias = tensors.get(f"{group.name}.bias")
            stored = PlainWeight(
                self._cast(tensors[f"{group.name}.weight"]), None if bias is None else self._cast(bias)
            )
            install(self.module, group.name, self.linear, stored, self.device)
        elif isinstance(group.target, nn.Linear):
            install(self.module, group.name, self.linear, self._quantised(layer, group.target, tensors), self.device)
        else:
            install_embedding(self.module, group.name, self._table(layer, tensors))

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.rule.cast) if tensor.is_floating_point() and self.rule.cast is not None else tensor

    def _assign(self, name: str, tensor: torch.Tensor) -> None:
        parent, _, leaf = name.rpartition(".")
        owner = self.module.get_submodule(parent)
        is_parameter = isinstance(getattr(owner, leaf), nn.Parameter)
        setattr(owner, leaf, nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor)

    def _stand_in(self, name: str) -> None:
        """An optional tensor that the file lacks; nothing uses it."""
        own = self.module.state_dict()[name]
        self._assign(name, torch.zeros(own.shape, dtype=self.rule.cast or own.dtype, device=self.device))

    def _scale(self, layer: QuantLayer, leaf: str, tensors: dict[str, torch.Tensor]) -> torch.Tensor | None:
        """A scale, which must be finite: one NaN would spoil a layer in silence. Raw U8 bytes are E4M3 (G14)."""
        scale = tensors.get(f"{layer.name}.{leaf}")
        if scale is not None and scale.dtype is torch.uint8:
            scale = scale.view(torch.float8_e4m3fn)
        if scale is not None and not torch.isfinite(scale.float()).all():
            raise checkpoint_error(self.file.path, [Offence(f"{layer.name}.{leaf}", "isn't finite")])
        return scale

    def _quantised(self, layer: QuantLayer, target: nn.Linear, tensors: dict[str, torch.Tensor]) -> StoredWeight:
        tensor_scale, block_scale = (self._scale(layer, leaf, tensors) for leaf in ("weight_scale_2", "weight_scale"))
        input_scale, pre = (self._scale(layer, leaf, tensors) for leaf in ("input_scale", "pre_quant_scale"))
        assert block_scale is not None and tensor_scale is not None
        return Nvfp4Weight(
            codes=tensors[f"{layer.name}.weight"],
            block_scale=block_scale,
            tensor_scale=tensor_scale.reshape(()),
            shape=(target.out_features, target.in_features),
            bias=tensors.get(f"{layer.name}.bias"),
            pre_quant_scale=None if pre is None else pre[: target.in_features],
            input_scale=None if input_scale is None else input_scale.reshape(()),
            full_precision=layer.marker.full_precision,
        )

    def _table(self, layer: QuantLayer, tensors: dict[str, torch.Tensor]) -> Int8Weight:
        codes, scale = tensors[f"{layer.name}.weight"], self._scale(layer, "weight_scale", tensors)
        assert scale is not None
        return Int8Weight(codes, scale.reshape(-1, 1).expand(codes.shape[0], 1).contiguous())

    def _report(self) -> None:
        """Tell of progress where there is some: files of small tensors would otherwise tell of little else."""
        total = self.file.data_bytes
        if self.on_bytes is not None and (self.done - self.reported) * REPORTS >= total:
            self.reported = self.done
            self.on_bytes(self.done, total)
