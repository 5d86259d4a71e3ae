"""One component's checkpoint: judged whole on opening, then read tensor by tensor.

    path -> sources (files, index) -> prefix off -> renaming (our names) -> markers, layers -> qkv_order (our row order)

Fed with a path, a file or a folder, by `engine` and the command line; read by `stream` and `load` (tensors), by the
models' `from_shapes` (shapes) and by `report`. The bytes are `tensor_file`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from h3runtime.checkpoint.entries import StoredTensor
from h3runtime.checkpoint.families import LEGAL, foreign_family
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.layers import model_shapes, quantised_layers
from h3runtime.checkpoint.legacy import modernise
from h3runtime.checkpoint.markers import SUFFIX, Marker, metadata_markers, parse_marker
from h3runtime.checkpoint.model_name import FRAMES_KEY, MODEL_KEY, read_frames
from h3runtime.checkpoint.qkv_order import QkvDecision, QkvSwitch, decide
from h3runtime.checkpoint.qkv_rows import Stored, as_contiguous
from h3runtime.checkpoint.renaming import renamed
from h3runtime.checkpoint.sources import SYNTHETIC_KEY, Source, open_source
from h3runtime.checkpoint.synthetic_mark import is_marked_synthetic
from h3runtime.checkpoint.tensor_file import TensorFile, checkpoint_error
from h3runtime.errors import Offence

PREFIXES = ("model.diffusion_model.", "diffusion_model.", "text_encoders.qwen3vl_32b.transformer.")
"""What tools that save bundles or fine-tunes put before every name (checkpoint-formats §2.1, conditioning §2.1)."""
CONFIG_KEY = "h3runtime_config"
"""Metadata entry of our own files: a JSON object of what shapes can't tell, such as heads of a vision tower."""
MAX_MARKER_BYTES = 1 << 20


class CheckpointFile:
    """A component, open for reading; a context manager.

    path, size:  as opened, a file or a folder; bytes of all its files.
    parts:       the files it lies in.
    layout:      whose names and arrangement they have, see `renaming`. Below, all is in ours (ComfyUI's).
    prefix:      what was taken off every name, "" if nothing.
    entries:     every stored tensor of this component by its name without prefix; sidecars and markers included.
    shapes:      what a model is built from: the model's own tensors, quantised weights at their logical [N, K].
    dtypes:      stored dtypes of the tensors in `shapes`.
    layers:      the quantised layers.
    metadata:    the header's `__metadata__`.
    overrides:   what a folder's `config.json` tells of a text encoder that shapes can't.
    qkv:         the row order of fused q, k and v as stored, and what told it; None for what is no transformer.
    synthetic:   the metadata, or a `SYNTHETIC` file beside, says that these weights were made up.
    model:       the name of a trained model that isn't H3 itself, as the metadata says; None for H3.
    trained_frames:  shortest and longest clip that such a model was trained on; None for H3, or where nothing tells.
    warnings:    what an operator should know and that is no reason to refuse.

    `prefix` given: only tensors under it are seen (a bundle). Not given: one of `PREFIXES` is taken off if every name
    has it. `qkv_order`: the operator's word on a transformer's row order. `source`: already open. Raises
    CheckpointError that names the file and lists every offender.
    """

    def __init__(
        self,
        path: Path,
        prefix: str | None = None,
        *,
        qkv_order: QkvSwitch = "auto",
        source: Source | None = None,
    ) -> None:
        self.path = path
        self.source = open_source(path) if source is None else source
        self.parts: tuple[TensorFile, ...] = self.source.parts
        try:
            self._judge(prefix, qkv_order)
        except BaseException:
            self.close()
            raise

    def _judge(self, prefix: str | None, qkv_order: QkvSwitch) -> None:
        self.metadata: Mapping[str, str] = self.source.metadata
        self.prefix = common_prefix(self.source.entries) if prefix is None else prefix
        found = _without_prefix(self.source.entries, self.prefix)
        if not found:
            raise checkpoint_error(self.path, [Offence(FILE, f"has no tensors under {self.prefix!r}")])
        ours = self._renamed(found)
        markers, offences = self._markers()
        self.layers, wrong = quantised_layers(self.entries, markers)
        offences = [*ours, *offences, *wrong]
        if offences:
            foreign = foreign_family(self.entries)
            told = [Offence(FILE, f"looks like {foreign.title}", LEGAL)] if foreign is not None else offences
            raise checkpoint_error(self.path, told)
        self.shapes: Mapping[str, tuple[int, ...]] = model_shapes(self.entries, self.layers)
        self.dtypes: Mapping[str, torch.dtype] = {name: self.entries[name].dtype for name in self.shapes}
        self._put_rows_in_order(qkv_order)

    def _renamed(self, found: Mapping[str, StoredTensor]) -> tuple[Offence, ...]:
        source = self.source
        folder = self.path if source.is_folder else self.path.parent
        ours = renamed(found, folder, source.config, is_sharded=source.is_sharded)
        self.layout = ours.layout
        self.entries: Mapping[str, StoredTensor] = ours.entries
        self._computed = ours.computed
        self.overrides = ours.overrides
        return ours.offences

    def _put_rows_in_order(self, switch: QkvSwitch) -> None:
        stored = Stored(self.entries, self.shapes, self.layers, self.read_stored)
        decision = decide(stored, self.layout, switch, synthetic=self.synthetic, ours=self.model is not None)
        if isinstance(decision, Offence):
            raise checkpoint_error(self.path, [decision])
        self.qkv: QkvDecision | None = decision
        told = [decision.warning] if decision is not None and decision.warning is not None else []
        self.warnings: tuple[str, ...] = (*self.source.warnings, *told)
        if decision is not None and decision.order == "interleaved":
            moved, offences = as_contiguous(stored)
            if offences:
                raise checkpoint_error(self.path, offences)
            self.entries = {**self.entries, **moved}

    def _markers(self) -> tuple[dict[str, Marker], list[Offence]]:
        """Per-layer markers of all kinds; where a layer has both a tensor and metadata they must agree."""
        prefixes = (self.prefix, *PREFIXES)
        markers, offences = metadata_markers(self.metadata, prefixes, self.entries)
        modern = modernise(self.entries, self.read)
        self.entries = modern.entries
        markers = {**modern.markers, **markers}
        offences += modern.offences
        for name, entry in self.entries.items():
            if not name.endswith(SUFFIX):
                continue
            layer = name.removesuffix(SUFFIX)
            marker = self._marker(layer, entry)
            if isinstance(marker, Offence):
                offences.append(marker)
            elif markers.setdefault(layer, marker) != marker:
                offences.append(Offence(name, "contradicts what else the file says of the layer"))
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
        return self.metadata.get(SYNTHETIC_KEY) == "1" or all(is_marked_synthetic(part.path) for part in self.parts)

    @property
    def model(self) -> str | None:
        return self.metadata.get(MODEL_KEY)

    @property
    def trained_frames(self) -> tuple[int, int] | None:
        return read_frames(self.metadata.get(FRAMES_KEY, ""))

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors of this component."""
        return sum(e.nbytes for e in self.entries.values())

    def read(self, name: str, device: torch.device | str = "cpu") -> torch.Tensor:
        """The stored tensor `name` (as in `entries`) in its stored dtype. KeyError if there is none such.

        One tensor at a time and through the host: for a look at a file. Whole models are loaded by `stream`.
        """
        computed = self._computed.get(name)
        return (self.read_stored(self.entries[name]) if computed is None else computed).to(device)

    def read_stored(self, entry: StoredTensor) -> torch.Tensor:
        """The bytes of `entry`'s spans, which may be some rows of a tensor only."""
        raw = torch.empty(entry.nbytes, dtype=torch.uint8)
        done = 0
        for span in entry.spans:
            if span.nbytes:
                part = self.parts[span.part]
                part.fill(raw[done : done + span.nbytes].numpy().data, part.data_start + span.start, entry.name)
                done += span.nbytes
        return raw.view(entry.dtype).reshape(entry.shape)

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


def common_prefix(entries: Mapping[str, StoredTensor]) -> str:
    return next((p for p in PREFIXES if entries and all(name.startswith(p) for name in entries)), "")


def _without_prefix(entries: Mapping[str, StoredTensor], prefix: str) -> dict[str, StoredTensor]:
    return {
        name.removeprefix(prefix): replace(e, name=name.removeprefix(prefix))
        for name, e in entries.items()
        if name.startswith(prefix)
    }
