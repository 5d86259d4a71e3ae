"""One component's checkpoint: judged whole on opening, then read tensor by tensor.

Fed with a path by `engine` and the command line; read by `stream` and `load` (tensors) and by the models' `from_shapes`
(shapes). The bytes are `tensor_file`'s, markers and quantised layers are `markers` and `layers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from h3runtime.checkpoint.entries import StoredTensor, whole
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.layers import model_shapes, quantised_layers
from h3runtime.checkpoint.markers import SUFFIX, Marker, metadata_markers, parse_marker
from h3runtime.checkpoint.tensor_file import TensorFile, checkpoint_error
from h3runtime.errors import Offence

PREFIXES = ("model.diffusion_model.", "diffusion_model.", "text_encoders.qwen3vl_32b.transformer.")
"""What tools that save bundles or fine-tunes put before every name (checkpoint-formats §2.1, conditioning §2.1)."""
SYNTHETIC_KEY = "h3runtime_synthetic"
"""Metadata entry, "1", of checkpoints that were made up and not trained."""
CONFIG_KEY = "h3runtime_config"
"""Metadata entry of our own files: a JSON object of what shapes can't tell, such as heads of a vision tower."""
MAX_MARKER_BYTES = 1 << 20

__all__ = ["CONFIG_KEY", "PREFIXES", "SYNTHETIC_KEY", "CheckpointFile", "checkpoint_error"]


class CheckpointFile:
    """A component in a ComfyUI layout, open for reading; a context manager.

    path, size:  as opened; bytes of all its files.
    parts:       the files it lies in.
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
        self.parts: tuple[TensorFile, ...] = (TensorFile(path),)
        try:
            self._judge(prefix)
        except BaseException:
            self.close()
            raise

    def _judge(self, prefix: str | None) -> None:
        self.metadata: Mapping[str, str] = self.parts[0].header.metadata
        found = {
            name: whole(entry, index)
            for index, part in enumerate(self.parts)
            for name, entry in part.header.entries.items()
        }
        self.prefix = _common_prefix(found) if prefix is None else prefix
        self.entries: Mapping[str, StoredTensor] = _without_prefix(found, self.prefix)
        if not self.entries:
            raise checkpoint_error(self.path, [Offence(FILE, f"has no tensors under {self.prefix!r}")])
        markers, offences = self._markers()
        self.layers, wrong = quantised_layers(self.entries, markers)
        if offences or wrong:
            raise checkpoint_error(self.path, [*offences, *wrong])
        self.shapes: Mapping[str, tuple[int, ...]] = model_shapes(self.entries, self.layers)
        self.dtypes: Mapping[str, torch.dtype] = {name: self.entries[name].dtype for name in self.shapes}

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

    def _marker(self, layer: str, entry: StoredTensor) -> Marker | Offence:
        if entry.dtype is not torch.uint8 or len(entry.shape) != 1 or entry.nbytes > MAX_MARKER_BYTES:
            return Offence(entry.name, "isn't a one-dimensional U8 tensor")
        return parse_marker(layer, self.read(entry.name).numpy().tobytes())

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    @property
    def synthetic(self) -> bool:
        return self.metadata.get(SYNTHETIC_KEY) == "1"

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors of this component."""
        return sum(e.nbytes for e in self.entries.values())

    def read(self, name: str, device: torch.device | str = "cpu") -> torch.Tensor:
        """The stored tensor `name` (as in `entries`) in its stored dtype. KeyError if there is none such.

        One tensor at a time and through the host: for a look at a file. Whole models are loaded by `stream`.
        """
        entry = self.entries[name]
        raw = torch.empty(entry.nbytes, dtype=torch.uint8)
        done = 0
        for span in entry.spans:
            if span.nbytes:
                part = self.parts[span.part]
                part.fill(raw[done : done + span.nbytes].numpy().data, part.data_start + span.start, name)
                done += span.nbytes
        return raw.view(entry.dtype).reshape(entry.shape).to(device)

    def close(self) -> None:
        """Give the files back; reading ends, tensors already read stay."""
        for part in self.parts:
            part.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _common_prefix(entries: Mapping[str, StoredTensor]) -> str:
    return next((p for p in PREFIXES if entries and all(name.startswith(p) for name in entries)), "")


def _without_prefix(entries: Mapping[str, StoredTensor], prefix: str) -> dict[str, StoredTensor]:
    return {
        name.removeprefix(prefix): replace(e, name=name.removeprefix(prefix))
        for name, e in entries.items()
        if name.startswith(prefix)
    }
