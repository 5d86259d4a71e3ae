"""A unit of a model in one piece of host memory, and the same on a device by one copy.

    modules -> places (which tensors belong where, inside resident forms too) -> Crate, from which they are views

Views begin at multiples of `residency.ALIGNMENT`. One long copy runs at the speed of the bus, where one for each of a
layer's 30 tensors would not. Fed and read by `visits`; knows no encoder.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import nn

from h3runtime.engine.residency import aligned
from h3runtime.errors import Offence, SettingsError
from h3runtime.settings import variable

FORMS = ("resident", "table")
"""Attributes of a module that hold a dataclass of tensors: of a linear with a backend, and of an INT8 embedding."""


@dataclass(frozen=True, slots=True)
class Place:
    """An attribute of a module whose value is a parameter, a buffer, or a form of tensors."""

    module: nn.Module
    name: str

    @property
    def value(self) -> Any:
        return getattr(self.module, self.name)

    def put(self, value: Any) -> None:
        setattr(self.module, self.name, value)


def places_of(unit: nn.Module) -> list[Place]:
    """Every place of `unit` and of what is in it."""
    found = []
    for module in unit.modules():
        own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        found += [Place(module, name) for name, _ in own]
        found += [Place(module, name) for name in FORMS if is_dataclass(getattr(module, name, None))]
    return found


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with `change` of each of its tensors."""
    if isinstance(value, nn.Parameter):
        return nn.Parameter(change(value.detach()), requires_grad=False)
    if isinstance(value, torch.Tensor):
        return change(value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    held = {field.name: getattr(value, field.name) for field in fields(value)}
    return replace(value, **{name: mapped(each, change) for name, each in held.items()})


class HostMemory:
    """`nbytes` of the host's memory in pages of its own, page-locked where `device` is a CUDA one.

    PyTorch's own page-locked memory comes in powers of two, and would be half as much again. SettingsError if the
    system won't lock so much.
    """

    def __init__(self, nbytes: int, device: torch.device) -> None:
        pages = mmap.mmap(-1, max(nbytes, 1))
        with suppress(AttributeError, OSError, ValueError):
            pages.madvise(mmap.MADV_HUGEPAGE)
        self.bytes = torch.frombuffer(pages, dtype=torch.uint8)[:nbytes]
        if device.type == "cuda":
            address = self.bytes.data_ptr()
            fault = int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0))  # type: ignore[no-untyped-call]
            if fault:
                raise _not_locked(nbytes, fault)
            weakref.finalize(self, _unlock, address)


def _unlock(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def _not_locked(nbytes: int, fault: int) -> SettingsError:
    field, told = variable("residency"), f"the system won't lock {nbytes} bytes of host memory (CUDA error {fault})"
    return SettingsError(f"{field}: encoder_host: {told}", [Offence(field, told, "all, encoder_disk")])


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a tensor lies in the crate."""

    start: int
    nbytes: int
    dtype: torch.dtype
    shape: torch.Size


class Crate:
    """What stands in `places` now, packed; they stand for views of the packed bytes from then on."""

    def __init__(self, places: list[Place], device: torch.device) -> None:
        self.places, self._device = places, device
        self._slots = list(_slots(places))
        self.nbytes = sum(aligned(slot.nbytes) for slot in self._slots)
        self._host = HostMemory(self.nbytes, device)
        self._pack()

    def _pack(self) -> None:
        views = self._views(self._host.bytes)

        def packed(tensor: torch.Tensor) -> torch.Tensor:
            return next(views).copy_(tensor)

        for place in self.places:
            place.put(mapped(place.value, packed))
        self.resting = [place.value for place in self.places]

    def copy_into(self, there: torch.Tensor) -> None:
        """All bytes, in the order of the current stream."""
        there.copy_(self._host.bytes, non_blocking=True)

    def unpack(self, there: torch.Tensor) -> None:
        """Places get views of `there`, uint8 [nbytes], which a copy fills."""
        views = self._views(there)
        for place, value in zip(self.places, self.resting, strict=True):
            place.put(mapped(value, lambda _: next(views)))

    def rest(self) -> None:
        """Places get what they had before."""
        for place, value in zip(self.places, self.resting, strict=True):
            place.put(value)

    def _views(self, piece: torch.Tensor) -> Iterator[torch.Tensor]:
        for slot in self._slots:
            yield piece[slot.start : slot.start + slot.nbytes].view(slot.dtype).reshape(slot.shape)


def _slots(places: list[Place]) -> Iterator[_Slot]:
    start = 0
    for tensor in tensors_of(places):
        yield _Slot(start, tensor.nbytes, tensor.dtype, tensor.shape)
        start += aligned(tensor.nbytes)


def tensors_of(places: list[Place]) -> list[torch.Tensor]:
    """In the order in which `mapped` meets them."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    for place in places:
        mapped(place.value, note)
    return found
