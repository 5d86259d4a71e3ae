"""Which layers of a file are quantised, and how: the per-layer markers, from wherever the file keeps them.

Two sources, one result (checkpoint-formats §2.5): a U8 tensor `<layer>.comfy_quant` holding JSON, and the metadata
entry `_quantization_metadata` holding `{"layers": {"<layer>": {...}}}`. Fed by `file`; read by `layers`. Nothing is
decoded here and no format is judged beyond being named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from h3runtime.checkpoint.header import printable
from h3runtime.errors import Offence

SUFFIX = ".comfy_quant"
METADATA_KEY = "_quantization_metadata"


@dataclass(frozen=True, slots=True)
class Marker:
    """How one layer is stored. `shape` is the logical [N, K] where the marker tells it (`orig_shape`).

    full_precision: dequantise and multiply plainly, never quantise the activation.
    convrot:        the group size of the Hadamard rotation along K, or None.
    """

    format: str
    full_precision: bool = False
    convrot: int | None = None
    shape: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        return f"{self.format}+convrot" if self.convrot else self.format


def parse_marker(layer: str, text: bytes) -> Marker | Offence:
    """The bytes of one `.comfy_quant` tensor; trailing NULs are tolerated, unknown keys ignored."""
    try:
        value = json.loads(text.rstrip(b"\0").decode("utf-8"))
    except (ValueError, RecursionError):
        return Offence(layer + SUFFIX, "isn't JSON")
    return marker_from(layer, value)


def marker_from(layer: str, value: object) -> Marker | Offence:
    """A decoded marker: an object, or the bare format name as some files have it in their metadata."""
    if isinstance(value, str):
        value = {"format": value}
    if not isinstance(value, dict):
        return Offence(layer + SUFFIX, "isn't a JSON object")
    params = value.get("params")
    keys: dict[str, Any] = {**(params if isinstance(params, dict) else {}), **value}
    name = keys.get("format")
    if not isinstance(name, str) or not name:
        return Offence(layer + SUFFIX, "has no `format`, so how the layer is stored can't be known")
    group = keys.get("convrot_groupsize", 256)
    convrot = group if keys.get("convrot") is True and type(group) is int else None
    return Marker(
        printable(name), keys.get("full_precision_matrix_mult") is True, convrot, _shape(keys.get("orig_shape"))
    )


def _shape(value: object) -> tuple[int, int] | None:
    if isinstance(value, list) and len(value) == 2 and all(type(v) is int and v > 0 for v in value):
        return value[0], value[1]
    return None


def metadata_markers(metadata: Mapping[str, str], prefix: str) -> tuple[dict[str, Marker], list[Offence]]:
    """Markers from the file's metadata, by layer name without `prefix` (names there may have it or not)."""
    if METADATA_KEY not in metadata:
        return {}, []
    try:
        layers = json.loads(metadata[METADATA_KEY])["layers"]
        items = list(layers.items())
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return {}, [Offence(METADATA_KEY, "isn't a JSON object with `layers`")]
    found: dict[str, Marker] = {}
    offences: list[Offence] = []
    for name, value in items:
        layer = printable(name.removeprefix(prefix))
        marker = marker_from(layer, value)
        if isinstance(marker, Offence):
            offences.append(marker)
        else:
            found[layer] = marker
    return found, offences
