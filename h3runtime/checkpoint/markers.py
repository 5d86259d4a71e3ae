"""Which layers of a file are quantised, and how: the per-layer markers, from wherever the file keeps them.

Two sources, one result (checkpoint-formats §2.5): a U8 tensor `<layer>.comfy_quant` holding JSON, and the metadata
entry `_quantization_metadata` holding `{"layers": {"<layer>": {...}}}`. The third, legacy form is `legacy`'s. Fed by
`file`; read by `layers`. Nothing is decoded here and no format is judged beyond being named.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from h3runtime.checkpoint.formats import ALIASES, DEFAULT_ROTATION, FORMATS
from h3runtime.checkpoint.header import printable
from h3runtime.errors import Offence

SUFFIX = ".comfy_quant"
METADATA_KEY = "_quantization_metadata"
SHOWN = 60
"""Characters of a wrong value that an error repeats."""


@dataclass(frozen=True, slots=True)
class Marker:
    """How one layer is stored. `shape` is the logical [N, K] where the marker tells it (`orig_shape`).

    format:         as in `formats`, aliases resolved; any other name is kept for the error.
    full_precision: dequantise and multiply plainly, never quantise the activation.
    convrot:        the group size of the Hadamard rotation along K, or None.
    group:          values per group along K where the marker tells it.
    """

    format: str
    full_precision: bool = False
    convrot: int | None = None
    shape: tuple[int, int] | None = None
    group: int | None = None

    @property
    def label(self) -> str:
        form = FORMATS.get(self.format)
        told = self.convrot is not None and form is not None and form.rotation == "optional"
        return f"{self.format}+convrot" if told else self.format


def parse_marker(layer: str, text: bytes) -> Marker | Offence:
    """The bytes of one `.comfy_quant` tensor; trailing NULs are tolerated, unknown keys ignored."""
    try:
        value = json.loads(text.rstrip(b"\0").decode("utf-8"))
    except (ValueError, RecursionError):
        return Offence(layer + SUFFIX, "isn't JSON")
    return marker_from(layer, value)


def marker_from(layer: str, value: object) -> Marker | Offence:
    """A decoded marker: an object, or the bare format name as some files have it in their metadata.

    Keys may be nested in `params`; one that is outside too counts as it is outside.
    """
    if isinstance(value, str):
        value = {"format": value}
    if not isinstance(value, dict):
        return Offence(layer + SUFFIX, "isn't a JSON object")
    params = value.get("params")
    keys: dict[str, Any] = {**(params if isinstance(params, dict) else {}), **value}
    name = keys.get("format")
    if not isinstance(name, str) or not name:
        return Offence(layer + SUFFIX, "has no `format`, so how the layer is stored can't be known", ", ".join(FORMATS))
    name = ALIASES.get(name, name)
    wrong = _wrong_key(layer, keys)
    if wrong is not None:
        return wrong
    return Marker(
        printable(name[:SHOWN]),
        keys.get("full_precision_matrix_mult") is True,
        _rotation(name, keys),
        _shape(keys.get("orig_shape")),
        keys.get("group_size") if name in FORMATS and FORMATS[name].group else None,
    )


def _wrong_key(layer: str, keys: Mapping[str, Any]) -> Offence | None:
    """A value that can't mean anything. Guessing would load the layer wrongly and in silence."""
    for key in ("convrot", "full_precision_matrix_mult"):
        if not isinstance(keys.get(key), bool | None):
            return Offence(layer + SUFFIX, f"has the illegal {key} {_show(keys[key])}", "true, false")
    for key in ("convrot_groupsize", "group_size"):
        found = keys.get(key)
        if found is not None and (type(found) is not int or found < 1):
            return Offence(layer + SUFFIX, f"has the illegal {key} {_show(found)}", "a positive integer")
    return None


def _show(value: object) -> str:
    return printable(str(value)[:SHOWN])


def _rotation(name: str, keys: Mapping[str, Any]) -> int | None:
    rotation = FORMATS[name].rotation if name in FORMATS else "never"
    if rotation == "always" or (rotation == "optional" and keys.get("convrot")):
        return keys.get("convrot_groupsize") or DEFAULT_ROTATION
    return None


def _shape(value: object) -> tuple[int, int] | None:
    if isinstance(value, list) and len(value) == 2 and all(type(v) is int and v > 0 for v in value):
        return value[0], value[1]
    return None


def metadata_markers(
    metadata: Mapping[str, str], prefixes: Sequence[str], tensors: Container[str]
) -> tuple[dict[str, Marker], list[Offence]]:
    """Markers from the file's metadata for layers that are among `tensors`; names there may have a prefix or not.

    Others are passed over: a bundle's metadata covers all its components.
    """
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
        layer = next((n for n in _spellings(name, prefixes) if f"{n}.weight" in tensors), None)
        if layer is None:
            continue
        marker = marker_from(layer, value)
        if isinstance(marker, Offence):
            offences.append(marker)
        elif found.setdefault(layer, marker) != marker:
            offences.append(Offence(layer + SUFFIX, f"is described twice and differently in {METADATA_KEY}"))
    return found, offences


def _spellings(name: str, prefixes: Sequence[str]) -> tuple[str, ...]:
    return name, *(name.removeprefix(p) for p in prefixes if p and name.startswith(p))
