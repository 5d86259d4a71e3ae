"""The sizes of a DiT, read off the names and shapes of its tensors.

Takes no number from anywhere else: test models and real ones go through the same door (dit-contract §1.3). Does not
check every tensor of a file (the strict loader does, against the built module); it raises where sizes can't be told or
contradict each other. Fed by `checkpoint` with logical shapes, so a packed 4-bit weight comes as [out, in] (of the
block linears only row counts are read). Read by `Dit`.

FL2VA and Ref2VA weights have the same names and shapes, so nothing here knows which one it is (§1.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from h3runtime.core import Modality
from h3runtime.errors import CheckpointError, Offence

PATCH = 2
"""Edge of a video patch in latent pixels; one latent frame deep (dit-contract §1.1)."""
PATCH_AREA = PATCH * PATCH
AXES = 3
"""Rotary axes t, h, w (dit-contract §3.1)."""
BLOCK_VECTORS = 6
"""AdaLN vectors of a block for one timestep and modality: shift, scale, gate, twice (dit-contract §4.2)."""
FINAL_VECTORS = 2
"""AdaLN vectors of the final layer for one timestep: shift, scale (dit-contract §4.6)."""
MODALITIES = len(Modality)

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class DitConfig:
    """Every size of one DiT.

    time_dim: width of the vector that AdaLN reads: output of the timestep network, or rank of the curve.
    sinusoid, time_hidden: sizes of the timestep network; None in curve form.
    curve_grid: rows of `adaln_t_table`; None with a timestep network.
    head_bank: stacked output heads; 1 is an ordinary model (dit-contract §4.7).
    gate_compress: the file carries `to_gate_compress`, which dense attention doesn't read (dit-contract §1.2).
    norm_eps, qk_norm_eps, final_norm_eps: not in any tensor; 1e-5 in every published model (dit-contract §1.1).
    """

    hidden: int
    layers: int
    refiner_layers: int
    heads: int
    head_dim: int
    ffn: int
    channels: int
    audio_channels: int
    text_dim: int
    time_dim: int
    rope_freqs: int
    sinusoid: int | None = None
    time_hidden: int | None = None
    curve_grid: int | None = None
    head_bank: int = 1
    gate_compress: bool = False
    norm_eps: float = 1e-5
    qk_norm_eps: float = 1e-5
    final_norm_eps: float = 1e-5

    @property
    def inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def video_row(self) -> int:
        """Width of a video row: the latent channels of one 1x2x2 patch."""
        return self.channels * PATCH_AREA

    @classmethod
    def from_shapes(cls, shapes: Shapes) -> DitConfig:
        """Sizes from tensor name -> shape (ComfyUI names, no prefix). Raises CheckpointError listing what is wrong."""
        return _Reader(shapes).config()


class _Reader:
    """Collects offences while sizes are read, so that one error names them all. An unreadable size is 0 meanwhile."""

    def __init__(self, shapes: Shapes) -> None:
        self.shapes = shapes
        self.offences: list[Offence] = []

    def config(self) -> DitConfig:
        """Read, cross-check, raise if anything is off."""
        hidden, video_row = self.matrix("video_patch_proj.weight")
        audio_hidden, audio_channels = self.matrix("audio_patch_proj.weight")
        text_hidden, text_dim = self.matrix("condition_proj.weight")
        self.stop_if_wrong()
        self.agree("audio_patch_proj.weight", "rows", audio_hidden, hidden)
        self.agree("condition_proj.weight", "rows", text_hidden, hidden)
        head_dim = self.vector("blocks.0.attn.q_norm.weight")
        sinusoid, time_hidden, curve_grid, time_dim = self.clock()
        config = DitConfig(
            hidden=hidden,
            layers=self.count("blocks."),
            refiner_layers=self.count("token_refiner.blocks."),
            heads=self.divided("blocks.0.attn.qkv_proj.weight", 3 * head_dim),
            head_dim=head_dim,
            ffn=self.divided("blocks.0.mlp.fc1.weight", 2),
            channels=self.whole("video_patch_proj.weight", video_row, PATCH_AREA),
            audio_channels=audio_channels,
            text_dim=text_dim,
            time_dim=time_dim,
            rope_freqs=self.vector("rope.inv_freq"),
            sinusoid=sinusoid,
            time_hidden=time_hidden,
            curve_grid=curve_grid,
            head_bank=self.bank(video_row, audio_channels),
            gate_compress="blocks.0.attn.to_gate_compress.weight" in self.shapes,
        )
        self.check_layers(config)
        self.stop_if_wrong()
        return config

    def clock(self) -> tuple[int | None, int | None, int | None, int]:
        """(sinusoid, time_hidden, curve_grid, time_dim); the table's presence decides the form (dit-contract §1.3)."""
        if "adaln_t_table" in self.shapes:
            grid, rank = self.matrix("adaln_t_table")
            if grid < 2:
                self.wrong("adaln_t_table", f"{grid} rows", "at least 2, to interpolate between")
            return None, None, grid, rank
        time_hidden, sinusoid = self.matrix("time_embedder.proj_in.weight")
        time_dim, width = self.matrix("time_embedder.proj_out.weight")
        self.agree("time_embedder.proj_out.weight", "columns", width, time_hidden)
        if sinusoid % 2:
            self.wrong("time_embedder.proj_in.weight", f"{sinusoid} columns", "an even number: cosines and sines")
        return sinusoid, time_hidden, None, time_dim

    def bank(self, video_row: int, audio_channels: int) -> int:
        """Stacked heads; both output layers must hold equally many (dit-contract §4.7)."""
        video = self.divided("final_layer.video_out.weight", video_row)
        audio = self.divided("final_layer.audio_out.weight", audio_channels)
        self.agree("final_layer.audio_out.weight", "stacked heads", audio, video)
        return video

    def check_layers(self, config: DitConfig) -> None:
        """Sizes that several tensors share, in every block."""
        self.check_adaln(config, "final_layer", FINAL_VECTORS)
        for layer in range(config.layers):
            self.check_adaln(config, f"blocks.{layer}", BLOCK_VECTORS * MODALITIES)
            self.check_block(config, f"blocks.{layer}")
        for layer in range(config.refiner_layers):
            self.check_block(config, f"token_refiner.blocks.{layer}")
        rotated = 2 * AXES * config.rope_freqs
        if config.head_dim and rotated > config.head_dim:
            self.wrong("rope.inv_freq", f"{rotated} rotated dims", f"at most the head's {config.head_dim}")

    def check_block(self, config: DitConfig, name: str) -> None:
        """Row counts of one block's linears and its head norms: the dims that a packed weight keeps."""
        rows = {
            "attn.qkv_proj": 3 * config.inner,
            "attn.out_proj": config.hidden,
            "mlp.fc1": 2 * config.ffn,
            "mlp.fc2": config.hidden,
        }
        for leaf, want in rows.items():
            self.agree(f"{name}.{leaf}.weight", "rows", self.matrix(f"{name}.{leaf}.weight")[0], want)
        for leaf in ("attn.q_norm", "attn.k_norm"):
            self.agree(f"{name}.{leaf}.weight", "length", self.vector(f"{name}.{leaf}.weight"), config.head_dim)

    def check_adaln(self, config: DitConfig, name: str, vectors: int) -> None:
        """One AdaLN projection: vectors of `hidden` out of the timestep's width."""
        name = f"{name}.adaln_proj.linear.weight"
        rows, columns = self.matrix(name)
        self.agree(name, "rows", rows, vectors * config.hidden)
        self.agree(name, "columns", columns, config.time_dim)

    def matrix(self, name: str) -> tuple[int, int]:
        """(rows, columns), or zeros with an offence."""
        shape = self.shapes.get(name)
        if shape is None:
            self.wrong(name, "missing")
        elif len(shape) != 2 or 0 in shape:
            self.wrong(name, f"shape {list(shape)}", "two dimensions, none empty")
        else:
            return shape[0], shape[1]
        return 0, 0

    def vector(self, name: str) -> int:
        """Length, or 0 with an offence."""
        shape = self.shapes.get(name)
        if shape is None:
            self.wrong(name, "missing")
        elif len(shape) != 1 or 0 in shape:
            self.wrong(name, f"shape {list(shape)}", "one dimension, not empty")
        else:
            return shape[0]
        return 0

    def divided(self, name: str, by: int) -> int:
        """Rows of `name` / `by`, which must come out whole and at least 1."""
        return self.whole(name, self.matrix(name)[0], by)

    def whole(self, name: str, size: int, by: int) -> int:
        if size and by and (size % by or size < by):
            self.wrong(name, f"size {size}", f"a multiple of {by}")
        return size // by if by else 0

    def count(self, prefix: str) -> int:
        """How many numbered layers start with `prefix`; they must count up from 0 without a gap."""
        pattern = re.compile(re.escape(prefix) + r"(\d+)\.")
        found = sorted({int(m[1]) for m in map(pattern.match, self.shapes) if m})
        if found != list(range(len(found))):
            self.wrong(prefix.rstrip("."), f"layers {_listed(found)}", "numbered from 0 without a gap")
            return 0
        return len(found)

    def agree(self, name: str, what: str, found: int, want: int) -> None:
        """Two sizes that must be equal; silent where either could not be read (that is an offence already)."""
        if found != want and found and want:
            self.wrong(name, f"{what} {found}", f"{want}")

    def wrong(self, name: str, message: str, legal: str = "") -> None:
        offence = Offence(name, message, legal)
        if offence not in self.offences:
            self.offences.append(offence)

    def stop_if_wrong(self) -> None:
        if not self.offences:
            return
        clauses = (f"{o.field}: {o.message}" + (f" (want {o.legal})" if o.legal else "") for o in self.offences)
        raise CheckpointError("not an H3 DiT: " + "; ".join(clauses), self.offences)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
