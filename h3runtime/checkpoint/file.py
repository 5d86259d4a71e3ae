"""One open checkpoint file: judged whole on opening, then read tensor by tensor.

Reading is `preadv` into memory we own, never a mapping: a file that is cut short while open gives a `CheckpointError`
where a mapping would kill the process with SIGBUS. Tensors for the CPU are read straight into their own storage; for
another device they pass through one reused staging buffer, so that memory doesn't grow with the file.

Fed with a path by `engine` and the command line; read by `load` (tensors) and by the models' `from_shapes` (shapes).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from h3runtime.checkpoint.header import FILE, Header, HeaderError, TensorEntry, header_length, parse_header
from h3runtime.checkpoint.layers import model_shapes, quantised_layers
from h3runtime.checkpoint.markers import SUFFIX, Marker, metadata_markers, parse_marker
from h3runtime.errors import CheckpointError, Offence

PREFIXES = ("model.diffusion_model.", "diffusion_model.", "text_encoders.qwen3vl_32b.transformer.")
"""What tools that save bundles or fine-tunes put before every name (checkpoint-formats §2.1, conditioning §2.1)."""
SYNTHETIC_KEY = "h3runtime_synthetic"
"""Metadata entry, "1", of checkpoints that were made up and not trained."""
CONFIG_KEY = "h3runtime_config"
"""Metadata entry of our own files: a JSON object of what shapes can't tell, such as heads of a vision tower."""
STAGING_BYTES = 64 << 20
SHOWN = 40
"""Offenders that a message spells out; all are in `offences`."""
MAX_MARKER_BYTES = 1 << 20


def checkpoint_error(path: Path, offences: Iterable[Offence]) -> CheckpointError:
    """One error for one file, its message naming the file (not its folder) and the offenders."""
    listed = tuple(offences)
    clauses = [o.message if o.field == FILE else f"{o.field} {o.message}" for o in listed[:SHOWN]]
    clauses = [c + (f" (legal: {o.legal})" if o.legal else "") for c, o in zip(clauses, listed, strict=False)]
    more = f"; and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return CheckpointError(f"{path.name}: {'; '.join(clauses)}{more}", listed)


class CheckpointFile:
    """A safetensors file in a ComfyUI layout, open for reading; a context manager.

    path, size:  as opened; size in bytes.
    prefix:      what was taken off every name, "" if nothing.
    entries:     every stored tensor of this component by its name without prefix; sidecars and markers included.
    shapes:      what a model is built from: the model's own tensors, quantised weights at their logical [N, K].
    dtypes:      stored dtypes of the tensors in `shapes`.
    layers:      the quantised layers.
    metadata:    the header's `__metadata__`.
    synthetic:   the metadata says that these weights were made up.

    `prefix` given: only tensors under it are seen (a bundle). Not given: one of `PREFIXES` is taken off if every name
    has it. Raises CheckpointError that names the file and lists every offender.
    """

    def __init__(self, path: Path, prefix: str | None = None) -> None:
        self.path = path
        self._staging: torch.Tensor | None = None
        self._fd = _open(path)
        try:
            self._judge(prefix)
        except BaseException:
            self.close()
            raise

    def _judge(self, prefix: str | None) -> None:
        self.size = os.fstat(self._fd).st_size
        header = self._header()
        self._data_start = header.data_start
        self.metadata = header.metadata
        self.prefix = _common_prefix(header.entries) if prefix is None else prefix
        self.entries = _without_prefix(header.entries, self.prefix)
        if not self.entries:
            raise checkpoint_error(self.path, [Offence(FILE, f"has no tensors under {self.prefix!r}")])
        markers, offences = self._markers()
        self.layers, wrong = quantised_layers(self.entries, markers)
        if offences or wrong:
            raise checkpoint_error(self.path, [*offences, *wrong])
        self.shapes: Mapping[str, tuple[int, ...]] = model_shapes(self.entries, self.layers)
        self.dtypes: Mapping[str, torch.dtype] = {name: self.entries[name].dtype for name in self.shapes}

    def _header(self) -> Header:
        try:
            first = self._pread(0, min(8, self.size))
            length = header_length(first, self.size)
            return parse_header(self._pread(8, length), self.size)
        except HeaderError as fault:
            raise checkpoint_error(self.path, fault.offences) from None

    def _markers(self) -> tuple[dict[str, Marker], list[Offence]]:
        """Per-layer markers of both kinds; where a layer has both they must agree."""
        markers, offences = metadata_markers(self.metadata, self.prefix)
        for name, entry in self.entries.items():
            if not name.endswith(SUFFIX):
                continue
            layer = name.removesuffix(SUFFIX)
            marker = self._marker(layer, entry)
            if isinstance(marker, Offence):
                offences.append(marker)
            elif markers.setdefault(layer, marker) != marker:
                offences.append(Offence(name, "contradicts the file's _quantization_metadata"))
        return markers, offences

    def _marker(self, layer: str, entry: TensorEntry) -> Marker | Offence:
        if entry.dtype is not torch.uint8 or len(entry.shape) != 1 or entry.nbytes > MAX_MARKER_BYTES:
            return Offence(entry.name, "isn't a one-dimensional U8 tensor")
        return parse_marker(layer, self._pread(self._data_start + entry.start, entry.nbytes))

    @property
    def synthetic(self) -> bool:
        return self.metadata.get(SYNTHETIC_KEY) == "1"

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors of this component."""
        return sum(e.nbytes for e in self.entries.values())

    def read(self, name: str, device: torch.device | str = "cpu") -> torch.Tensor:
        """The stored tensor `name` (as in `entries`) in its stored dtype. KeyError if there is none such."""
        entry = self.entries[name]
        target = torch.device(device)
        raw = torch.empty(entry.nbytes, dtype=torch.uint8, device=target)
        if target.type == "cpu":
            self._fill(raw, entry, 0)
        else:
            self._fill_through_staging(raw, entry)
        return raw.view(entry.dtype).reshape(entry.shape)

    def _fill_through_staging(self, raw: torch.Tensor, entry: TensorEntry) -> None:
        staging = self._staging_for(raw.device)
        for done in range(0, entry.nbytes, STAGING_BYTES):
            part = staging[: min(STAGING_BYTES, entry.nbytes - done)]
            self._fill(part, entry, done)
            raw[done : done + part.numel()].copy_(part)

    def _staging_for(self, device: torch.device) -> torch.Tensor:
        if self._staging is None:
            self._staging = torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=device.type == "cuda")
        return self._staging

    def _fill(self, part: torch.Tensor, entry: TensorEntry, done: int) -> None:
        """Fill `part`, uint8 on the CPU, with bytes of `entry` from `done` on."""
        if part.numel() > 0:
            self._preadv(part.numpy().data, self._data_start + entry.start + done, entry.name)

    def _pread(self, offset: int, count: int) -> bytes:
        buffer = bytearray(count)
        if count:
            self._preadv(memoryview(buffer), offset, FILE)
        return bytes(buffer)

    def _preadv(self, view: memoryview, offset: int, name: str) -> None:
        """Fill `view` from `offset`; the kernel may give less than asked for (2 GiB at most), so ask on."""
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as error:
                raise checkpoint_error(self.path, [Offence(name, f"can't be read: {_reason(error)}")]) from None
            if got == 0:
                raise checkpoint_error(self.path, [Offence(name, "can't be read: the file was cut short while open")])
            done += got

    def close(self) -> None:
        """Give the file back; reading ends, tensors already read stay."""
        self._staging = None
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            self.close()


def _open(path: Path) -> int:
    """A descriptor of a regular file. O_NONBLOCK: opening a named pipe must not wait for its writer."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise checkpoint_error(path, [Offence(FILE, f"can't be opened: {_reason(error)}")]) from None
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise checkpoint_error(path, [Offence(FILE, f"can't be opened: it is {what}")])
    return fd


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None:
        return {errno.ENOENT: "no such file", errno.EACCES: "permission denied"}.get(
            error.errno, os.strerror(error.errno).lower()
        )
    return "illegal path"


def _common_prefix(entries: Mapping[str, TensorEntry]) -> str:
    return next((p for p in PREFIXES if entries and all(name.startswith(p) for name in entries)), "")


def _without_prefix(entries: Mapping[str, TensorEntry], prefix: str) -> dict[str, TensorEntry]:
    return {
        name.removeprefix(prefix): TensorEntry(name.removeprefix(prefix), e.dtype, e.shape, e.start, e.stop)
        for name, e in entries.items()
        if name.startswith(prefix)
    }
