"""Where the text encoder's weights are while nobody needs them: `H3_RESIDENCY`, as arithmetic and as law.

    all            on the device, with everything else
    encoder_host   in page-locked memory of the host; a conditioning moves them in, unit by unit, and out again
    encoder_disk   in their file, which every conditioning reads; nothing is kept

A unit is what is moved at once: the embedding table, the vision tower, each language layer. They are used in that order
(no tower without a picture), and on the device are the one in use and, from the host, the one that follows it:

    embedding | tower | layer 0 | layer 1 | ...          from the host two neighbours at once, from disk one

Every other weight is always on the device, and so sampling and decoding have what the encoder would take. Pure: sizes
in, bytes out. Read by `load` and `memory_estimate`, and by whoever plans for another machine; `visits` does the moving.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from h3runtime.errors import Offence, SettingsError
from h3runtime.settings import variable

ALL, ENCODER_HOST, ENCODER_DISK = "all", "encoder_host", "encoder_disk"
RESIDENCIES = (ALL, ENCODER_HOST, ENCODER_DISK)
EMBEDDING, TOWER, LAYERS = "model.embed_tokens", "visual", "model.layers"
"""Modules of `TextEncoder`, and so the beginnings of its tensors' names."""
ALIGNMENT = 512
"""Bytes; where a tensor begins in a unit: as PyTorch's allocator would place it, for kernels choose by that."""


@dataclass(frozen=True, slots=True)
class Units:
    """Bytes of what the encoder is moved in."""

    embedding: int
    tower: int
    layers: tuple[int, ...]

    @property
    def total(self) -> int:
        return self.embedding + self.tower + sum(self.layers)


NO_UNITS = Units(0, 0, ())
"""Where nothing moves."""


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """Bytes of weights, by stage on the device; the conditioning's at its most. host: page-locked, always."""

    conditioning: int
    sampling: int
    decode: int
    host: int = 0


def held_weights(residency: str, encoder: Units, others: int) -> HeldWeights:
    """others: bytes of everything but the encoder."""
    if residency == ALL:
        whole = others + encoder.total
        return HeldWeights(whole, whole, whole)
    moved = max(text_moved(residency, encoder), tower_moved(residency, encoder))
    host = encoder.total if residency == ENCODER_HOST else 0
    return HeldWeights(others + moved, others, others, host)


def text_moved(residency: str, encoder: Units) -> int:
    """The most of the encoder that is on the device at once for a text without pictures; 0 where it never leaves."""
    return _at_once(residency, (encoder.embedding, *encoder.layers))


def tower_moved(residency: str, encoder: Units) -> int:
    """Likewise while the vision tower is there."""
    return _at_once(residency, (encoder.embedding, encoder.tower, *encoder.layers[:1]))


def _at_once(residency: str, route: Sequence[int]) -> int:
    match residency:
        case "encoder_host":
            return max(a + b for a, b in pairwise(route))
        case "encoder_disk":
            return max(route)
    return 0


def units_of(sizes: Mapping[str, int]) -> Units:
    """sizes: bytes of every tensor, by its name in the model; each is rounded up to where the next one begins."""
    embedding = tower = 0
    layers: dict[int, int] = {}
    for name, nbytes in sizes.items():
        taken = aligned(nbytes)
        if name.startswith(f"{EMBEDDING}."):
            embedding += taken
        elif name.startswith(f"{TOWER}."):
            tower += taken
        else:
            index = int(name.removeprefix(f"{LAYERS}.").partition(".")[0])
            layers[index] = layers.get(index, 0) + taken
    return Units(embedding, tower, tuple(layers[index] for index in sorted(layers)))


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def require_legal(residency: str, device: torch.device, *, is_integrated: bool) -> None:
    """SettingsError where moving the encoder gains nothing. is_integrated: the device has the host's memory."""
    why = why_illegal(residency, device.type, is_integrated=is_integrated)
    if why is not None:
        field = variable("residency")
        raise SettingsError(f"{field}: {residency} {why} (legal: {ALL})", [Offence(field, f"{residency} {why}", ALL)])


def why_illegal(residency: str, device_type: str, *, is_integrated: bool) -> str | None:
    """Why `residency` can't be had on such a device; None if it can."""
    if residency == ALL:
        return None
    if device_type != "cuda":
        return "needs a CUDA device: on the CPU weights are where they compute, and there is nowhere to move them from"
    if is_integrated:
        return "is for a device with memory of its own: this one shares the host's, where a moved weight counts twice"
    return None
