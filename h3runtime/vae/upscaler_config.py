"""The sizes of a latent upscaler, read from the names and shapes of its tensors (checkpoint-formats §6, last lines).

Does: say which blocks there are, of which kind and how wide. Does not: open files, build modules or compare every
tensor; the strict loader does that. Fed by: checkpoint loading, `nano.model` and tests. Read by: `upscaler`.

The number of groups leaves no trace in a shape. It is 32 in the published file, which has 512 channels; a file too
narrow for that (less than `NARROW` channels a group) has groups of 16 channels, as wide as the published ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final, Literal

from h3runtime.errors import CheckpointError, Offence

Shapes = Mapping[str, tuple[int, ...]]
Kind = Literal["residual", "temporal"]

PREFIX: Final = "upscaler."
"""Some files have it before every name (checkpoint-formats §6)."""
GROUPS: Final = 32
GROUP_CHANNELS: Final = 16
NARROW: Final = 4


@dataclass(frozen=True, slots=True)
class UpscalerConfig:
    """inner: kinds of the blocks before the resize, outer: after it. kernel: of the temporal ones, 0 without any."""

    latent_channels: int
    channels: int
    embedding: int
    inner: tuple[Kind, ...]
    outer: tuple[Kind, ...]
    kernel: int
    groups: int

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> UpscalerConfig:
        """Sizes of the file with these tensors, `PREFIX` or not. CheckpointError names what is absent or wrong."""
        shapes = without_prefix(shapes)
        channels, latent_channels = _shape(shapes, "conv_in.weight", 5)[:2]
        if channels % GROUP_CHANNELS:
            raise _wrong("conv_in.weight", f"gives {channels} channels", f"a multiple of {GROUP_CHANNELS}")
        inner, outer = (tuple(_kinds(shapes, side)) for side in ("in_blocks", "out_blocks"))
        if "residual" not in inner:
            raise _wrong("in_blocks.0.in_layers.2.weight", "is absent", "present in every latent upscaler")
        kernels = {shapes[name][2] for name in shapes if name.endswith(".dwconv.weight")}
        if len(kernels) > 1 or any(kernel % 2 == 0 for kernel in kernels):
            raise _wrong("dwconv.weight", f"has kernels {sorted(kernels)}", "one odd kernel everywhere")
        return cls(
            latent_channels=latent_channels,
            channels=channels,
            embedding=_shape(shapes, "embed.0.weight", 2)[0],
            inner=inner,
            outer=outer,
            kernel=kernels.pop() if kernels else 0,
            groups=GROUPS if channels >= NARROW * GROUPS else channels // GROUP_CHANNELS,
        )


def without_prefix(shapes: Shapes) -> Shapes:
    """The names of the upscaler alone, should there be a prefix."""
    if not any(name.startswith(PREFIX) for name in shapes):
        return shapes
    return {name.removeprefix(PREFIX): shape for name, shape in shapes.items() if name.startswith(PREFIX)}


def _kinds(shapes: Shapes, side: str) -> Iterator[Kind]:
    for index in count():
        if f"{side}.{index}.in_layers.2.weight" in shapes:
            yield "residual"
        elif f"{side}.{index}.dwconv.weight" in shapes:
            yield "temporal"
        else:
            return


def _shape(shapes: Shapes, name: str, rank: int) -> tuple[int, ...]:
    shape = shapes.get(name)
    if shape is None:
        raise _wrong(name, "is absent", "present in every latent upscaler")
    if len(shape) != rank:
        raise _wrong(name, f"has shape {list(shape)}", f"{rank} dimensions")
    return shape


def _wrong(name: str, message: str, legal: str) -> CheckpointError:
    return CheckpointError(
        f"not a latent upscaler: {name} {message}; expected {legal}", [Offence(name, message, legal)]
    )
