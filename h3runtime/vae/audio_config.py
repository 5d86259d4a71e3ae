"""The dimensions of an audio VAE, read from the names and shapes of its tensors.

Does: turn the shapes of a ComfyUI audio VAE file (conditioning contract §5.4), or of half of one (encoder only, decoder
only), into frozen sizes. Does not: open files, build modules, or compare every tensor; the strict loader does that
against the model built from these sizes, and lists all differences at once.
Fed by: checkpoint loading and tests. Read by: `audio_encoder`, `audio_decoder`, `audio_vae`.

Three things leave no trace in a shape. The attention has 8 heads (§5.2). The decoder's dilations are the odd numbers
from 1, so 1, 3, 5 (§5.3). A decoder stage with kernel k goes up by (k + 1) // 2, so 9 -> 5 and 4 -> 2 (§5.3). Callers
that know better (a checkpoint with a config beside it) pass their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod

from h3runtime.errors import CheckpointError, Offence

Shapes = Mapping[str, tuple[int, ...]]

HEADS = 8
"""Heads of the attention projection (conditioning contract §5.2)."""
UNIT_DILATIONS = (1, 3, 9)
"""Dilations of an encoder stage's three residual units (conditioning contract §5.2)."""


@dataclass(frozen=True, slots=True)
class AudioEncoderConfig:
    """Waveform -> posterior mean. `widths[i] -> widths[i + 1]` in stage i, which goes down by `strides[i]`."""

    widths: tuple[int, ...]
    strides: tuple[int, ...]
    stem_kernel: int
    unit_kernels: tuple[int, ...]
    out_kernel: int
    latent_dim: int
    mlp_dim: int
    heads: int = HEADS

    @property
    def hop(self) -> int:
        """Samples per latent: 800 in the real file."""
        return prod(self.strides)


@dataclass(frozen=True, slots=True)
class AudioDecoderConfig:
    """Latent -> waveform. Stage i: `widths[i] -> widths[i + 1]`, kernel `up_kernels[i]`, up by `up_strides[i]`.

    Each stage holds one block per entry of `block_kernels`, with the dilations of the same entry of `block_dilations`.
    """

    latent_dim: int
    widths: tuple[int, ...]
    up_kernels: tuple[int, ...]
    up_strides: tuple[int, ...]
    block_kernels: tuple[int, ...]
    block_dilations: tuple[tuple[int, ...], ...]
    pre_kernel: int
    post_kernel: int
    taps: int

    @property
    def hop(self) -> int:
        """Samples per latent: 800 in the real file."""
        return prod(self.up_strides)


@dataclass(frozen=True, slots=True)
class AudioVaeConfig:
    """Both halves; a file may hold only one. `latent_channels` is the C of every latent (32 in the real file)."""

    latent_channels: int
    encoder: AudioEncoderConfig | None
    decoder: AudioDecoderConfig | None

    @classmethod
    def from_shapes(
        cls,
        shapes: Shapes,
        *,
        heads: int = HEADS,
        up_strides: Sequence[int] | None = None,
        block_dilations: Sequence[Sequence[int]] | None = None,
    ) -> AudioVaeConfig:
        """Sizes of the file whose tensors have these names and shapes.

        Raises CheckpointError naming the tensor when one that a size is read from is absent or contradicts another.
        """
        channels = _shape(shapes, "latents_mean", 1)[0]
        if _shape(shapes, "latents_std", 1)[0] != channels:
            raise _wrong("latents_std", f"has shape {shapes['latents_std']}", f"[{channels}], as latents_mean")
        encodes = any(name.startswith(("encoder.", "pre_block.", "mean_proj.")) for name in shapes)
        decodes = any(name.startswith(("decoder.", "dec_in_proj.")) for name in shapes)
        if not (encodes or decodes):
            raise _wrong("encoder.block.0.weight", "is absent, and so is every decoder tensor", "an audio VAE")
        return cls(
            latent_channels=channels,
            encoder=_encoder(shapes, heads) if encodes else None,
            decoder=_decoder(shapes, up_strides, block_dilations) if decodes else None,
        )


def _encoder(shapes: Shapes, heads: int) -> AudioEncoderConfig:
    down = _run(shapes, "encoder.block.{}.block.4.weight", first=1)
    if not down:
        raise _absent("encoder.block.1.block.4.weight")
    stem = _shape(shapes, "encoder.block.0.weight", 3)
    out = _shape(shapes, f"encoder.block.{len(down) + 2}.weight", 3)
    for name in down:
        if shapes[name][2] % 2:
            raise _wrong(name, f"has kernel {shapes[name][2]}", "an even kernel: twice the stride")
    if out[0] % heads:
        raise _wrong("encoder", f"ends {out[0]} wide", f"a multiple of {heads} heads")
    return AudioEncoderConfig(
        widths=(stem[0], *(shapes[name][0] for name in down)),
        strides=tuple(shapes[name][2] // 2 for name in down),
        stem_kernel=stem[2],
        unit_kernels=tuple(
            _shape(shapes, f"encoder.block.{stage}.block.0.block.1.weight", 3)[2] for stage in range(1, len(down) + 1)
        ),
        out_kernel=out[2],
        latent_dim=out[0],
        mlp_dim=_shape(shapes, "pre_block.mlp.w0.weight", 2)[0],
        heads=heads,
    )


def _decoder(
    shapes: Shapes, up_strides: Sequence[int] | None, block_dilations: Sequence[Sequence[int]] | None
) -> AudioDecoderConfig:
    ups = [shapes[name] for name in _run(shapes, "decoder.ups.{}.0.weight")]
    if not ups:
        raise _absent("decoder.ups.0.0.weight")
    pre = _shape(shapes, "decoder.conv_pre.weight", 3)
    kernels = tuple(shape[2] for shape in ups)
    blocks = _blocks_per_stage(shapes, len(ups))
    return AudioDecoderConfig(
        latent_dim=pre[1],
        widths=(pre[0], *(shape[1] for shape in ups)),
        up_kernels=kernels,
        up_strides=_up_strides(kernels, up_strides),
        block_kernels=tuple(shapes[f"decoder.resblocks.{block}.convs1.0.weight"][2] for block in range(blocks)),
        block_dilations=_dilations(shapes, blocks, block_dilations),
        pre_kernel=pre[2],
        post_kernel=_shape(shapes, "decoder.conv_post.weight", 3)[2],
        taps=_shape(shapes, "decoder.activation_post.upsample.filter", 3)[2],
    )


def _blocks_per_stage(shapes: Shapes, stages: int) -> int:
    blocks = len(_run(shapes, "decoder.resblocks.{}.convs1.0.weight"))
    if blocks == 0 or blocks % stages:
        legal = f"the same number in each of the {stages} stages"
        raise _wrong("decoder.resblocks", f"holds {blocks} blocks", legal)
    return blocks // stages


def _up_strides(kernels: tuple[int, ...], given: Sequence[int] | None) -> tuple[int, ...]:
    strides = tuple((kernel + 1) // 2 for kernel in kernels) if given is None else tuple(given)
    if len(strides) != len(kernels):
        raise _wrong("decoder.ups", f"holds {len(kernels)} stages", f"one for each of the strides {strides}")
    for stage, (kernel, stride) in enumerate(zip(kernels, strides, strict=True)):
        if kernel < stride or (kernel - stride) % 2:
            legal = f"a kernel that exceeds the stride {stride} by an even number"
            raise _wrong(f"decoder.ups.{stage}.0.weight", f"has kernel {kernel}", legal)
    return strides


def _dilations(shapes: Shapes, blocks: int, given: Sequence[Sequence[int]] | None) -> tuple[tuple[int, ...], ...]:
    found = [len(_run(shapes, f"decoder.resblocks.{block}.convs1.{{}}.weight")) for block in range(blocks)]
    dilations = (
        tuple(tuple(range(1, 2 * number, 2)) for number in found)
        if given is None
        else tuple(tuple(entry) for entry in given)
    )
    if [len(entry) for entry in dilations] != found:
        raise _wrong("decoder.resblocks", f"holds {found} convolutions per block", f"one for each of {dilations}")
    return dilations


def _run(shapes: Shapes, pattern: str, first: int = 0) -> list[str]:
    """The names `pattern` gives for first, first + 1, ... up to the first one that is absent; all are convolutions."""
    names: list[str] = []
    for index in count(first):
        name = pattern.format(index)
        if name not in shapes:
            return names
        _shape(shapes, name, 3)
        names.append(name)
    raise AssertionError("count() never ends")


def _shape(shapes: Shapes, name: str, rank: int) -> tuple[int, ...]:
    if name not in shapes:
        raise _absent(name)
    shape = tuple(shapes[name])
    if len(shape) != rank:
        raise _wrong(name, f"has shape {list(shape)}", f"{rank} dimensions")
    return shape


def _absent(name: str) -> CheckpointError:
    return _wrong(name, "is absent", "present in every audio VAE of this kind")


def _wrong(name: str, message: str, legal: str) -> CheckpointError:
    return CheckpointError(f"not an H3 audio VAE: {name} {message}; expected {legal}", [Offence(name, message, legal)])
