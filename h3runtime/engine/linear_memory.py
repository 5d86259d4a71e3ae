"""What linear layers keep resident, and what a call of theirs takes: the loaded models asked, nothing run.

Fed by `memory_estimate` with loaded models; the backends themselves say what their calls take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import nn

from h3runtime.backends.fused.base import GATED, MODULATED
from h3runtime.backends.fused.triton import TritonProducers
from h3runtime.backends.linear.base import BackendLinear, CallBytes, LinearBackend
from h3runtime.backends.linear.fp8 import Fp8Linear, Fp8Rows
from h3runtime.backends.linear.nvfp4_base import Nvfp4LinearBase
from h3runtime.backends.linear.select import linear_backends
from h3runtime.backends.linear.switching import switched
from h3runtime.engine.memory_formulas import LinearCalls

Layer = tuple[LinearBackend[Any], Any]
CODED = frozenset({"attn.qkv_proj", "mlp.fc1", "mlp.fc2"})
"""Read what a producer makes; what `attn.out_proj` reads, attention makes."""


def resident_bytes(models: Iterable[nn.Module]) -> int:
    """Of all their tensors, those inside the resident forms of linears and embeddings included; shared ones once."""
    found = {_place(tensor): tensor.nbytes for model in models for tensor in _tensors(model)}
    return sum(found.values())


def _place(tensor: torch.Tensor) -> int:
    """Tensors on meta have no address: they are told apart by their storages."""
    return tensor.untyped_storage()._cdata if tensor.is_meta else tensor.data_ptr()


def linear_calls(
    model: nn.Module, dtype: torch.dtype, name: str | None = None, packed: frozenset[str] = frozenset()
) -> LinearCalls:
    """What a call of a block's linear takes for so many rows of `dtype`, the most of any block's.

    name: the backend of a request; None is what the weights were loaded for. packed: those whose input comes in NVFP4.
    """
    backend = _named(name)
    layers: dict[str, dict[Any, Layer]] = {}
    for path, layer in switched(model):
        place = ".".join(path.split(".")[-2:])
        layers.setdefault(place, {})[_kind(layer)] = backend or layer.loaded_for, layer.resident

    def calls(place: str, rows: int) -> CallBytes:
        each = [_call(*layer, place, rows) for layer in layers.get(place, {}).values()]
        return CallBytes(max((c.held for c in each), default=0), max((c.before for c in each), default=0))

    def _call(found: LinearBackend[Any], resident: Any, place: str, rows: int) -> CallBytes:
        if not isinstance(found, Nvfp4LinearBase):
            return found.call_bytes(resident, rows, dtype)
        if place in packed:
            return found.came_bytes(resident, rows)
        call = found.call_bytes(resident, rows, dtype)
        # SwiGLU leaves its result in one half of fc1's.
        copied = found.view_bytes(resident, rows, dtype) if place == "mlp.fc2" else 0
        return replace(call, before=call.before + copied)

    return calls


def _named(name: str | None) -> LinearBackend[Any] | None:
    """Who packs for an NVFP4 one is the default here, which takes up to 15 rows of codes more than others."""
    return next((candidate for candidate in linear_backends() if candidate.name == name), None)


def coded_linears(model: Any, name: str | None = None) -> frozenset[str]:
    """Those of a block (`attn.qkv_proj`, ...) that producers hand codes in FP8, as `denoiser.blocks` decides it, in
    every block. model: a transformer. name: as of `linear_calls`."""
    whole = _whole(model)
    return frozenset(place for place in code_readers(model, name) if place in CODED and not whole.get(place))


def packed_linears(model: Any, name: str | None = None) -> frozenset[str]:
    """Those of a block that a kernel of the producers hands NVFP4, in every block. Other producers pack what they made
    before, as a linear does. model, name: as of `coded_linears`."""
    producers = model.producers
    if producers.name != TritonProducers.name:
        return frozenset()
    made = {"attn.qkv_proj": MODULATED, "mlp.fc1": MODULATED, "mlp.fc2": GATED}
    reads = _places(model, name, _multiplies_packed)
    return frozenset(p for p in reads if made.get(p) in producers.packs and not _whole(model).get(p))


def _whole(model: Any) -> dict[str, bool]:
    """Linears whose input is read in another way too, and so isn't handed in codes."""
    return {"attn.qkv_proj": model.config.gate_compress, "mlp.fc1": model.mlp_chunks > 1}


def code_readers(model: Any, name: str | None = None) -> frozenset[str]:
    """Those that read codes which producers make at all; beside an adapter all of them lie beside the values."""
    if not model.producers.gives_codes:
        return frozenset()
    return _places(model, name, _multiplies_codes)


def _places(model: Any, name: str | None, reads: Callable[[LinearBackend[Any], Any], bool]) -> frozenset[str]:
    """Those of which every block's is one."""
    asked = _named(name)
    reading: dict[str, bool] = {}
    for path, layer in switched(model):
        place = ".".join(path.split(".")[-2:])
        reading[place] = reading.get(place, True) and reads(asked or layer.loaded_for, layer.resident)
    return frozenset(place for place, all_read in reading.items() if all_read)


def _multiplies_packed(backend: LinearBackend[Any], resident: Any) -> bool:
    return (
        isinstance(backend, Nvfp4LinearBase)
        and backend.why_unfit(resident) is None
        and resident.pre_quant_scale is None
    )


def _multiplies_codes(backend: LinearBackend[Any], resident: Any) -> bool:
    return isinstance(backend, Fp8Linear) and isinstance(resident, Fp8Rows) and resident.pre_quant_scale is None


def _kind(layer: BackendLinear) -> tuple[Any, ...]:
    """Layers of one kind take the same."""
    resident = layer.resident
    dtypes = tuple(tensor.dtype for tensor in tensors_of(resident))
    return type(resident), resident.shape, dtypes, getattr(resident, "full_precision", False), layer.form


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    yield from model.parameters()
    yield from model.buffers()
    for part in model.modules():
        for name in ("resident", "table"):
            yield from tensors_of(getattr(part, name, None))


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """Tensors of a resident form, however deep."""
    if isinstance(value, torch.Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))
