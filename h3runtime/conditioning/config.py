"""Sizes of the encoder, read from tensor names and shapes (conditioning contract §1.1, §2.1).

Three things leave no mark on any shape: how many heads the vision tower has, after which of its blocks the deepstack
taps sit, and constants such as eps. They come from `overrides`, else from the published models, else, for towers that
nobody published, from the rule of `_assumed_heads` and `_assumed_taps`, in which case `assumed` names them. Fed by
`checkpoint` (shapes of the decoded tensors, overrides from the file's metadata); read by the modules of this package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isqrt
from typing import Final

from h3runtime.errors import CheckpointError, Offence
from h3runtime.media.vision_size import FRAMES, MERGE, PATCH

Shapes = Mapping[str, tuple[int, ...]]

PUBLISHED_TAPS: Final[Mapping[int, tuple[int, ...]]] = {24: (5, 11, 17), 27: (8, 16, 24)}
"""Deepstack taps of the two published Qwen3-VL towers by depth; H3's has 27 blocks (conditioning contract §1.1)."""
PUBLISHED_HEADS: Final[Mapping[int, int]] = {1024: 16, 1152: 16}
"""Heads of the two published towers by width; H3's is 1152 wide (conditioning contract §1.1)."""


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """`taps`: blocks after which a deepstack feature is taken, one merger each. `positions`: rows of the table."""

    hidden: int
    intermediate: int
    depth: int
    heads: int
    positions: int
    out_hidden: int
    taps: tuple[int, ...]
    channels: int = 3
    eps: float = 1e-6

    @property
    def merged(self) -> int:
        """Width of a 2x2 square of patches in a row."""
        return self.hidden * MERGE**2


@dataclass(frozen=True, slots=True)
class TextEncoderConfig:
    """`mrope_section`: frequencies of the T, H and W axes, head_dim/2 in all. `assumed`: fields that nothing told."""

    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mrope_section: tuple[int, int, int]
    vision: VisionConfig
    eps: float = 1e-6
    rope_theta: float = 5e6
    assumed: tuple[str, ...] = ()

    @classmethod
    def from_shapes(cls, shapes: Shapes, overrides: Mapping[str, object] | None = None) -> TextEncoderConfig:
        """Every size from a checkpoint's decoded tensors.

        overrides: `vision_num_heads` (int) and `deepstack_visual_indexes` (ints); further `mrope_section` (three ints),
        `rope_theta` and `rms_norm_eps` (numbers). Other names are ignored.
        Raises CheckpointError listing all tensors that are absent and all sizes that contradict each other.
        """
        reader = _Reader(shapes, overrides or {})
        config = _language_config(reader, _vision_config(reader))
        if reader.offences:
            listed = "; ".join(f"{o.field} {o.message}" for o in reader.offences)
            raise CheckpointError(f"not an H3 text encoder: {listed}", reader.offences)
        return config


@dataclass(slots=True)
class _Reader:
    """Looks sizes up and remembers what was wrong, so that one error can list it all. A failed lookup reads as 1."""

    shapes: Shapes
    overrides: Mapping[str, object]
    offences: list[Offence] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def size(self, name: str, axis: int = 0) -> int:
        shape = self.shapes.get(name)
        if shape is None or axis >= len(shape):
            self.offences.append(Offence(name, "is absent" if shape is None else f"has {len(shape)} axes"))
            return 1
        return shape[axis]

    def count(self, prefix: str) -> int:
        """How many consecutive numbers from 0 follow `prefix`; a gap is an offence."""
        pattern = re.compile(re.escape(prefix) + r"(\d+)\.")
        found = {int(match[1]) for name in self.shapes if (match := pattern.match(name))}
        missing = sorted(set(range(max(found, default=0) + 1)) - found)
        self.offences += [Offence(f"{prefix}{i}", "is absent") for i in missing]
        return max(1, len(found))

    def require(self, name: str, holds: bool, message: str) -> None:
        if not holds:
            self.offences.append(Offence(name, message))

    def numbers(self, name: str) -> tuple[int, ...] | None:
        value = self.overrides.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(_is_whole(v) for v in value):
            self.offences.append(Offence(name, f"is {value!r}", "a list of whole numbers"))
            return None
        return tuple(value)

    def number(self, name: str, default: float) -> float:
        value = self.overrides.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            self.offences.append(Offence(name, f"is {value!r}", "a positive number"))
            return default
        return float(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _language_config(reader: _Reader, vision: VisionConfig) -> TextEncoderConfig:
    layer = "model.layers.0."
    head_dim = reader.size(layer + "self_attn.q_norm.weight")
    query, key = reader.size(layer + "self_attn.q_proj.weight"), reader.size(layer + "self_attn.k_proj.weight")
    heads, kv_heads = max(1, query // head_dim), max(1, key // head_dim)
    hidden = reader.size(layer + "input_layernorm.weight")
    reader.require("self_attn.q_proj.weight", heads * head_dim == query, f"isn't whole heads of {head_dim}")
    reader.require("self_attn.k_proj.weight", kv_heads * head_dim == key, f"isn't whole heads of {head_dim}")
    reader.require("self_attn.k_proj.weight", heads % kv_heads == 0, f"{kv_heads} heads don't divide {heads}")
    reader.require("self_attn.q_norm.weight", head_dim % 2 == 0 or head_dim == 1, "has an odd length")
    reader.require("visual.merger.linear_fc2.weight", vision.out_hidden == hidden, f"doesn't end in width {hidden}")
    return TextEncoderConfig(
        vocab=reader.size("model.embed_tokens.weight"),
        hidden=hidden,
        intermediate=reader.size(layer + "mlp.gate_proj.weight"),
        layers=reader.count("model.layers."),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mrope_section=_section(reader, head_dim),
        vision=vision,
        eps=reader.number("rms_norm_eps", 1e-6),
        rope_theta=reader.number("rope_theta", 5e6),
        assumed=tuple(reader.assumed),
    )


def _section(reader: _Reader, head_dim: int) -> tuple[int, int, int]:
    """(24, 20, 20) for the published head of 128 (conditioning contract §1.1), the same shares of any other."""
    side = 5 * head_dim // 32
    section = reader.numbers("mrope_section") or (head_dim // 2 - 2 * side, side, side)
    fits = len(section) == 3 and sum(section) == head_dim // 2 and 3 * max(section[1:]) <= head_dim // 2 + 2
    reader.require("mrope_section", fits, f"{section} doesn't fit {head_dim // 2} frequencies")
    return (section[0], section[1], section[2]) if fits else (0, 0, 0)


def _vision_config(reader: _Reader) -> VisionConfig:
    block = "visual.blocks.0."
    hidden, depth = reader.size(block + "norm1.weight"), reader.count("visual.blocks.")
    positions = reader.size("visual.pos_embed.weight")
    patch = reader.shapes.get("visual.patch_embed.proj.weight", ())
    known = len(patch) == 5 and tuple(patch[2:]) == (FRAMES, PATCH, PATCH)
    reader.require("visual.patch_embed.proj.weight", known, "isn't a convolution over 2x16x16 pixels")
    reader.require("visual.pos_embed.weight", isqrt(positions) ** 2 == positions, "isn't a square table")
    merged = reader.size("visual.merger.linear_fc1.weight")
    reader.require("visual.merger.linear_fc1.weight", merged == hidden * MERGE**2, "doesn't merge 2x2 patches")
    return VisionConfig(
        hidden=hidden,
        intermediate=reader.size(block + "mlp.linear_fc1.weight"),
        depth=depth,
        heads=_vision_heads(reader, hidden),
        positions=positions,
        out_hidden=reader.size("visual.merger.linear_fc2.weight"),
        taps=_taps(reader, depth, reader.count("visual.deepstack_merger_list.")),
        channels=patch[1] if known else 3,
    )


def _vision_heads(reader: _Reader, hidden: int) -> int:
    given = reader.overrides.get("vision_num_heads")
    heads = PUBLISHED_HEADS.get(hidden) or _assumed_heads(hidden)
    if given is not None:
        heads = given if isinstance(given, int) and _is_whole(given) else 0
    elif hidden not in PUBLISHED_HEADS:
        reader.assumed.append("vision_num_heads")
    # A quarter of a head's width is the number of frequencies of each axis.
    fits = heads > 0 and hidden % heads == 0 and hidden // heads % 4 == 0
    reader.require("vision_num_heads", fits or hidden == 1, f"{heads} doesn't divide a width of {hidden} by fours")
    return heads or 1


def _assumed_heads(hidden: int) -> int:
    """16 heads from width 1024 up, as all published towers have; 2 below, as the recorded toy towers have."""
    return 16 if hidden >= 1024 else 2


def _taps(reader: _Reader, depth: int, mergers: int) -> tuple[int, ...]:
    published = PUBLISHED_TAPS.get(depth, ())
    given = reader.numbers("deepstack_visual_indexes")
    if given is None and len(published) != mergers:
        reader.assumed.append("deepstack_visual_indexes")
        published = _assumed_taps(depth, mergers)
    taps = published if given is None else given
    fits = len(taps) == mergers and all(t < depth for t in taps) and list(taps) == sorted(set(taps))
    reader.require("deepstack_visual_indexes", fits, f"{taps} doesn't fit {mergers} mergers and {depth} blocks")
    return taps


def _assumed_taps(depth: int, mergers: int) -> tuple[int, ...]:
    """Evenly spread from block 0: 0, 1, 2 in the recorded toy towers of 3 and 4 blocks."""
    return tuple(j * depth // mergers for j in range(mergers))
