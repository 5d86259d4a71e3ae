"""The text encoder's weights come to the device while it encodes, unit by unit, and leave it again.

    with visits.visit(tower=..., poll=...):      around one encoding
        embedding | tower | layer 0 | layer 1 | ...
        a unit arrives before it is first used, and goes when a later one is: the tower stays for all pictures of a text

    HostSource    from page-locked memory, the next unit on a stream of its own while this one computes
    DiskSource    from the file, read ahead by blocks while this one computes

However it ends, nothing of the encoder is left on the device. The numbers are those of an encoder that never leaves:
same bytes, same dtypes, aligned alike. One thread. Made by `load`, used by `conditioning.encoder`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.embedding import Int8Embedding
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.groups import Made, assign
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.refill import Refill
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.engine.components import Part
from h3runtime.engine.crate import Crate, places_of
from h3runtime.engine.residency import EMBEDDING, ENCODER_HOST, LAYERS, TOWER
from h3runtime.errors import CheckpointChanged, CheckpointError, Offence
from h3runtime.quant.stored import Int8Weight

Poll = Callable[[], None]
Arrivals = Generator[None, None, None]


@dataclass(frozen=True, slots=True)
class Unit:
    """A submodule of the encoder that is moved at once."""

    name: str
    module: nn.Module


def units_of_encoder(encoder: TextEncoder) -> list[Unit]:
    """All of it, in the order of use."""
    names = [EMBEDDING, TOWER, *(f"{LAYERS}.{index}" for index in range(encoder.config.layers))]
    return [Unit(name, encoder.get_submodule(name)) for name in names]


class Source(Protocol):
    """Where units come from. host_bytes: page-locked, always."""

    host_bytes: int

    def arrivals(self, route: Sequence[Unit], poll: Poll) -> Arrivals:
        """Each step puts the next unit of `route` in place on the device, and takes the one before away. Closing it
        takes the last away, and whatever is on its way."""
        ...

    def close(self) -> None: ...


class Visits:
    """Of one encoder, whose `lodging` it is. device: where it computes. visits: how many there have been."""

    def __init__(self, encoder: TextEncoder, source: Source, device: torch.device) -> None:
        self.device, self.source = device, source
        self._units = units_of_encoder(encoder)
        self.visits = 0

    @property
    def host_bytes(self) -> int:
        """Page-locked, always."""
        return self.source.host_bytes

    def close(self) -> None:
        """Give back memory and file; nothing can be encoded any more."""
        self.source.close()

    @contextmanager
    def visit(self, *, tower: bool, poll: Poll) -> Iterator[None]:
        """tower: there are pictures. `poll` is asked now and then while units move, and may raise. CheckpointChanged
        for a file that can't be read, or isn't the one that was loaded."""
        self.visits += 1
        route = [unit for unit in self._units if tower or unit.name != TOWER]
        try:
            with closing(self.source.arrivals(route, poll)) as arrivals, _entered(route, arrivals):
                yield
        except CheckpointError as error:
            raise CheckpointChanged(f"the text encoder can't be read: {error.message}", error.offences) from None


@contextmanager
def _entered(route: Sequence[Unit], arrivals: Iterator[None]) -> Iterator[None]:
    """Units arrive as they are used. At the end of the route whatever the source has to say comes out."""
    arrived = 0

    def arrive(index: int) -> None:
        nonlocal arrived
        while arrived <= index:
            next(arrivals)
            arrived += 1
        assert arrived == index + 1, "a unit is used after a later one"

    handles = [
        unit.module.register_forward_pre_hook(lambda *_, index=index: arrive(index)) for index, unit in enumerate(route)
    ]
    try:
        yield
        if arrived == len(route):
            next(arrivals, None)
    finally:
        for handle in handles:
            handle.remove()


class HostSource:
    """Units packed in page-locked memory. A CPU as the device has neither that nor streams, and is for tests."""

    def __init__(self, units: Sequence[Unit], device: torch.device, on_unit: Poll = lambda: None) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._crates: dict[str, Crate] = {}
        for unit in units:
            self._crates[unit.name] = Crate(places_of(unit.module), device)
            on_unit()
        self.host_bytes = sum(crate.nbytes for crate in self._crates.values())

    def arrivals(self, route: Sequence[Unit], poll: Poll) -> Arrivals:
        """On the device are the unit in use and the next: where that one goes, the one before has been, and its copy
        waits for the computing stream to be done with it."""
        crates = [self._crates[unit.name] for unit in route]
        coming: _Coming | None = self._send(crates[0])
        try:
            for crate, following in zip(crates, [*crates[1:], None], strict=True):
                poll()
                assert coming is not None
                coming.settle(crate)
                coming = None if following is None else self._send(following)
                yield
                crate.rest()
        finally:
            for crate in crates:
                crate.rest()
            if self._stream is not None:
                torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def _send(self, crate: Crate) -> _Coming:
        there = torch.empty(crate.nbytes, dtype=torch.uint8, device=self._device)
        if self._stream is None:
            crate.copy_into(there)
            return _Coming(there)
        # Memory of the computing stream: what used it before is behind this point of that stream, and what is given it
        # next comes after the wait in `settle`.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            crate.copy_into(there)
            return _Coming(there, self._stream.record_event())

    def close(self) -> None:
        self._crates.clear()


@dataclass(frozen=True, slots=True)
class _Coming:
    """Bytes on their way. arrived: on the copying stream."""

    there: torch.Tensor
    arrived: torch.cuda.Event | None = None

    def settle(self, crate: Crate) -> None:
        if self.arrived is not None:
            torch.cuda.current_stream(self.there.device).wait_event(self.arrived)
        crate.unpack(self.there)


class DiskSource:
    """Units as their file has them; between visits the model holds meta tensors. host_bytes: nothing stays."""

    host_bytes = 0

    def __init__(self, encoder: TextEncoder, refill: Refill, device: torch.device) -> None:
        self._encoder, self._refill, self._device = encoder, refill, device

    def arrivals(self, route: Sequence[Unit], poll: Poll) -> Arrivals:
        names = [unit.name for unit in route]
        with closing(self._refill.read(names, self._device, poll)) as parts:
            for unit in route:
                places = places_of(unit.module)
                resting = [place.value for place in places]
                try:
                    for name, made in next(parts).items():
                        self._put(name, made)
                    yield
                finally:
                    for place, value in zip(places, resting, strict=True):
                        place.put(value)
            assert next(parts, None) is None

    def _put(self, name: str, made: Made) -> None:
        if isinstance(made, torch.Tensor):
            assign(self._encoder, name, made)
            return
        owner = self._encoder.get_submodule(name)
        if isinstance(owner, BackendLinear):
            owner.resident = owner.loaded_for.prepare(made, self._device)
        else:
            assert isinstance(owner, Int8Embedding) and isinstance(made, Int8Weight)
            owner.table = made

    def close(self) -> None:
        self._refill.close()


def lodge(
    encoder: TextEncoder, part: Part, file: CheckpointFile, residency: str, device: torch.device, on_unit: Poll
) -> None:
    """From now on `encoder`, loaded from `file` onto the host or, for the disk, onto meta, computes on `device`.

    on_unit: called as units are packed, for signs of life. CheckpointError if another file has taken `file`'s place.
    """
    source: Source
    if residency == ENCODER_HOST:
        source = HostSource(units_of_encoder(encoder), device, on_unit)
    else:
        source = DiskSource(encoder, _refill(encoder, part, file), device)
    encoder.lodging = Visits(encoder, source, device)


def _refill(encoder: TextEncoder, part: Part, file: CheckpointFile) -> Refill:
    """From a file of its own, which stays open and must be the one that was loaded."""
    again = part.open()
    for before, now in zip(file.parts, again.parts, strict=True):
        if before.identity != now.identity:
            again.close()
            raise checkpoint_error(part.path, [Offence(FILE, "was replaced while it was read")])
    return Refill(part.on_meta(again), again, part.rule, [unit.name for unit in units_of_encoder(encoder)])
