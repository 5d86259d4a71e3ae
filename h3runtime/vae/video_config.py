"""The sizes of a video VAE, read from the names and shapes of a checkpoint's tensors. Reads no values.

`checkpoint` (or a test) hands over {name: shape} in ComfyUI's names; `video_encoder`, `video_decoder` and `video_vae`
are built from the result. A file may hold one half only: without `encoder.*` nothing can be encoded, without
`decoder.*` nothing can be decoded.

Two things are not in the shapes. Which levels halve time follows from the level's index, since a stride leaves no
trace (conditioning contract §4.1). The head width of the decoder: `to_qkv` has 3 * heads * head_dim rows and q and k
have no norm weights, so heads and head_dim can't be told apart. It is 64 as in the released file, unless the file's
own metadata (`vae_head_dim`) says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from h3runtime.errors import CheckpointError, Offence

DEFAULT_HEAD_DIM = 64
"""Width of a decoder head in the released file: 32 heads of 64 (§4.1)."""
GROUPS = 32
"""Groups of every encoder GroupNorm (§4.1)."""
PATCH = (4, 16, 16)
"""Frames, rows and columns of pixels one latent becomes (§4.1)."""
STRIDES = ((1, 2, 2), (2, 2, 2), (2, 2, 2), (1, 2, 2))
"""Stride (t, h, w) at the end of encoder level 0, 1, 2, 3; later levels have none (§4.1)."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class EncoderLevel:
    """One resolution: `blocks` residual blocks, the first of which changes the channels, then `stride` if any."""

    in_channels: int
    out_channels: int
    blocks: int
    stride: tuple[int, int, int] | None


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """The causal CNN. `channels` leave `conv_in`; `moments` leave `conv_out` (mean and log-variance)."""

    channels: int
    levels: tuple[EncoderLevel, ...]
    moments: int


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """The ViT. `inner` = heads * head_dim; `feed_forward` is the width after the gate; `registers` learned tokens."""

    latent_channels: int
    width: int
    layers: int
    inner: int
    head_dim: int
    feed_forward: int
    registers: int

    @property
    def heads(self) -> int:
        return self.inner // self.head_dim


@dataclass(frozen=True, slots=True)
class VideoVaeConfig:
    """All sizes of one file. `stored_statistics`: it has `latents_mean` and `latents_std` (official files don't)."""

    latent_channels: int
    encoder: EncoderConfig | None
    decoder: DecoderConfig | None
    stored_statistics: bool

    @classmethod
    def from_shapes(cls, shapes: Shapes, overrides: Mapping[str, Any] | None = None) -> VideoVaeConfig:
        """Read every size. `overrides` may hold `vae_head_dim`; other keys belong to others and are left alone.

        CheckpointError: a needed tensor is missing or has the wrong rank, sizes contradict each other, or neither half
        is there.
        """
        encoder = _encoder(shapes) if _any_under(shapes, "encoder.") else None
        decoder = _decoder(shapes, _head_dim(overrides or {})) if _any_under(shapes, "decoder.") else None
        channels = {half.moments // 2 for half in [encoder] if half} | {d.latent_channels for d in [decoder] if d}
        if len(channels) != 1:
            _refuse("encoder.conv_out.weight", f"latent channels {sorted(channels)}", "one number for both halves")
        return cls(channels.pop(), encoder, decoder, "latents_mean" in shapes and "latents_std" in shapes)


def _refuse(field: str, message: str, legal: str = "") -> None:
    raise CheckpointError(f"video VAE: {field}: {message}", [Offence(field, message, legal)])


def _any_under(shapes: Shapes, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in shapes)


def _need(shapes: Shapes, ranks: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The shapes of `ranks`' names in order; one CheckpointError lists all that are absent or of another rank."""
    offences = [
        Offence(name, "missing" if name not in shapes else f"shape {tuple(shapes[name])}", f"{rank} axes")
        for name, rank in ranks.items()
        if len(shapes.get(name, ())) != rank
    ]
    if offences:
        listed = ", ".join(f"{o.field} ({o.message})" for o in offences)
        raise CheckpointError(f"video VAE: needed tensors are missing or misshapen: {listed}", offences)
    return [tuple(shapes[name]) for name in ranks]


def _count(shapes: Iterable[str], prefix: str) -> int:
    """How many modules `prefix`0, `prefix`1, .. there are; they must be numbered without a gap."""
    pattern = re.compile(re.escape(prefix) + r"(\d+)\.")
    indices = {int(match[1]) for name in shapes if (match := pattern.match(name))}
    if indices != set(range(len(indices))):
        _refuse(prefix, f"numbered {sorted(indices)}", "numbers from 0 on without a gap")
    return len(indices)


def _head_dim(overrides: Mapping[str, Any]) -> int:
    value = overrides.get("vae_head_dim", DEFAULT_HEAD_DIM)
    legal = "a positive multiple of 8"
    if not isinstance(value, int) or isinstance(value, bool) or value < 8 or value % 8:
        _refuse("vae_head_dim", f"{value!r} is no head width", legal)
    return int(value)


def _decoder(shapes: Shapes, head_dim: int) -> DecoderConfig:
    block = "decoder.transformer_blocks.0."
    names = {"post_quant_conv.weight": 5, "decoder.x_embedder.weight": 2, "decoder.register_tokens": 3}
    names |= {f"{block}attn.to_qkv.weight": 2, f"{block}ff.w2.weight": 2, "decoder.proj_out.weight": 2}
    latent, embed, registers, qkv, down, out = _need(shapes, names)
    inner = qkv[0] // 3
    if qkv[0] % 3 or inner % head_dim:
        _refuse(f"{block}attn.to_qkv.weight", f"{qkv[0]} rows", f"a multiple of 3 x {head_dim} (vae_head_dim)")
    patch = 3 * PATCH[0] * PATCH[1] * PATCH[2]
    if out[0] != patch:
        _refuse("decoder.proj_out.weight", f"{out[0]} rows", f"{patch}: 3 channels of 4 x 16 x 16 pixels")
    layers = _count(shapes, "decoder.transformer_blocks.")
    return DecoderConfig(latent[0], embed[0], layers, inner, head_dim, down[1], registers[1])


def _encoder(shapes: Shapes) -> EncoderConfig:
    names = {"encoder.conv_in.weight": 5, "encoder.conv_out.weight": 5, "quant_conv.weight": 5}
    conv_in, conv_out, quant = _need(shapes, names)
    if quant[0] != conv_out[0] or quant[0] % 2:
        _refuse("quant_conv.weight", f"shape {quant}", f"an even number of moments, {conv_out[0]} in and out")
    count = _count(shapes, "encoder.down.")
    if count < len(STRIDES):
        _refuse("encoder.down.", f"{count} levels", f"at least {len(STRIDES)}, which makes 16 pixels one latent")
    levels = tuple(_level(shapes, index) for index in range(count))
    return EncoderConfig(conv_in[0], levels, conv_out[0])


def _level(shapes: Shapes, index: int) -> EncoderLevel:
    prefix = f"encoder.down.{index}."
    name = f"{prefix}block.0.conv1.weight"
    [conv] = _need(shapes, {name: 5})
    for channels in conv[:2]:
        if channels % GROUPS:
            _refuse(name, f"{channels} channels", f"a multiple of {GROUPS}, the groups of every norm")
    return EncoderLevel(
        in_channels=conv[1],
        out_channels=conv[0],
        blocks=_count(shapes, f"{prefix}block."),
        stride=STRIDES[index] if index < len(STRIDES) else None,
    )
