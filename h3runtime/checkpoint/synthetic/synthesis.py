"""`h3runtime synth`'s work: a complete made-up set in a folder, tiny or at the published sizes.

    DIR/minimax_h3_{fl2va,ref2va}_[pruned_]<format>.safetensors     DIR/tokenizer/     DIR/h3.env     DIR/SYNTHETIC
    DIR/qwen3vl_32b_minimax_h3_<format>.safetensors         DIR/minimax_h3_{video_vae_fp16,audio_vae_fp32}.safetensors
                                                            DIR/SHA256SUMS     DIR/loras/<layout>.safetensors

One transformer or both, as ordered; each has the same bytes either way. `loras`, where they are ordered, has an adapter
in each public layout. A set appears whole or not at all (`staging`).
Tiny files are made by `made_files` and say in their metadata that they are synthetic; files of the published sizes are
streamed by `full_size`, have the published header and are listed in `SYNTHETIC`. The tokenizer is `byte_tokenizer`'s,
since the published one isn't ours to write.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from h3runtime.checkpoint import synthetic_mark
from h3runtime.checkpoint.expected import SUMS_NAME, write_sums
from h3runtime.checkpoint.partition import FL2VA
from h3runtime.checkpoint.synthetic import layouts
from h3runtime.checkpoint.synthetic.adapters import LAYOUTS, adapter
from h3runtime.checkpoint.synthetic.byte_tokenizer import tokenizer_files
from h3runtime.checkpoint.synthetic.full_size import write_streamed
from h3runtime.checkpoint.synthetic.made_files import MadeFile, SetSizes, set_files
from h3runtime.checkpoint.synthetic.published import SetFormat
from h3runtime.checkpoint.synthetic.recipes.audio_vae import FULL_STREAM
from h3runtime.checkpoint.synthetic.staging import staged
from h3runtime.checkpoint.synthetic.tiny import METADATA, TOKENIZER, TOLD, VIDEO_VAE
from h3runtime.checkpoint.writer import write_whole
from h3runtime.errors import DiskFull, Offence, invalid
from h3runtime.settings import PARTITION_PATHS, variable

OnBytes = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""
ENV_NAME = "h3.env"
LORAS = "loras"
SHARED = ("H3_TEXT_ENCODER_PATH", "H3_VIDEO_VAE_PATH", "H3_AUDIO_VAE_PATH")
"""Variables of what both transformers share."""
UNQUOTABLE = "'\"\\$`"
"""Characters that a shell and the reader of `--config` don't take alike, even in quotes."""
SMALL_FILES = 1 << 20
"""Bytes set aside for everything that isn't a checkpoint."""

FULL = SetSizes(
    layouts.TransformerSizes(),
    layouts.EncoderSizes(),
    layouts.VideoVaeSizes(),
    layouts.AudioVaeSizes(),
    FULL_STREAM,
)
"""The published sizes."""
TINY = SetSizes(
    layouts.TransformerSizes(hidden=512, layers=3, heads=2, ffn=768, text_dim=256, time_hidden=128, time_dim=64),
    layouts.EncoderSizes(
        hidden=256,
        intermediate=512,
        layers=3,
        heads=4,
        kv_heads=2,
        vision_hidden=64,
        vision_intermediate=128,
        vision_depth=4,
        positions=256,
    ),
    VIDEO_VAE,
    layouts.AudioVaeSizes(
        encoder_widths=(8, 16, 32, 64, 128, 256), decoder_in=64, decoder_widths=(64, 32, 16, 8, 8, 8, 8, 8)
    ),
)
"""Small, with everything that the rotation's groups of 256 (64 for unpruned AdaLN) and NVFP4's tiles have to divide.

Features aren't as wide as the transformer: ComfyUI takes such for refined already, and computes something else.
"""


@dataclass(frozen=True, slots=True)
class Order:
    """What to make. partitions: the transformers, in the order in which the engine loads them. loras: adapters too, of
    a tiny set alone."""

    format: SetFormat
    pruned: bool = True
    full_size: bool = False
    seed: int = 0
    partitions: tuple[str, ...] = (FL2VA,)
    loras: bool = False

    def require_sound(self) -> None:
        """InvalidRequest for what can't be had together."""
        if self.loras and self.full_size:
            told = "adapters are made for tiny sets alone"
            raise invalid([Offence("loras", told, "no --full-size, or no --loras")])


@dataclass(frozen=True, slots=True)
class Written:
    """One checkpoint of the set. `bytes` is its whole size, `sha256` empty where only its header was written."""

    path: Path
    bytes: int
    tensors: int
    sha256: str


def plan(order: Order) -> tuple[MadeFile, ...]:
    """The files: transformers, text encoder, video VAE, audio VAE."""
    sizes = FULL if order.full_size else TINY
    if not order.pruned:
        sizes = replace(sizes, transformer=replace(sizes.transformer, curve=None))
    mark, told = ({}, {}) if order.full_size else (METADATA, TOLD)
    return set_files(order.format, sizes, order.seed, mark, told, order.partitions)


def write_headers(folder: Path, order: Order, *, overwrite: bool) -> tuple[Written, ...]:
    """Files that end where their data would begin, to be looked at: no loader takes them."""
    files = plan(order)
    with staged(folder, _headers(files), overwrite=overwrite) as stage:
        for file in files:
            write_whole(stage / file.name, file.header())
    return tuple(Written(folder / f.name, f.size(), len(f.layout()), "") for f in files)


def write_set(folder: Path, order: Order, *, overwrite: bool, on_bytes: OnBytes, threads: int) -> tuple[Written, ...]:
    """The whole set. OutputExists, DiskFull and InvalidRequest say what is in the way before anything is written."""
    files = plan(order)
    order.require_sound()
    variables = environment(folder, files, order.partitions, loras=order.loras)
    names = _headers(files) | {TOKENIZER: None, ENV_NAME: None} | ({LORAS: None} if order.loras else {})
    with staged(folder, names, overwrite=overwrite) as stage:
        _require_space(folder, files)
        sums = _write_files(stage, files, order, on_bytes, threads)
        carry_sums(folder, stage, sums)
        marked = synthetic_mark.mark(folder, [stage / file.name for file in files])
        write_whole(stage / synthetic_mark.NAME, marked.encode())
        (stage / TOKENIZER).mkdir()
        for name, content in tokenizer_files().items():
            write_whole(stage / TOKENIZER / name, content)
        write_whole(stage / ENV_NAME, variables.encode())
        if order.loras:
            _write_loras(stage / LORAS, order)
    return tuple(Written(folder / f.name, f.size(), len(f.layout()), sums[f.name]) for f in files)


def _write_loras(folder: Path, order: Order) -> None:
    """The full width of AdaLN is the set's own where it is unpruned."""
    folder.mkdir()
    for layout in LAYOUTS:
        adapter(layout, TINY.transformer, seed=order.seed).write(folder / f"{layout}.safetensors")


def carry_sums(folder: Path, stage: Path, sums: Mapping[str, str]) -> None:
    """SHA256SUMS in `stage`, with the lines for other files that are in `folder` already."""
    with suppress(FileNotFoundError):
        shutil.copyfile(folder / SUMS_NAME, stage / SUMS_NAME)
    write_sums(stage, sums)


def _write_files(
    folder: Path, files: Sequence[MadeFile], order: Order, on_bytes: OnBytes, threads: int
) -> dict[str, str]:
    """SHA-256 by name."""
    total, done = sum(file.size() for file in files), 0

    def told(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        on_bytes(done, total)

    sums: dict[str, str] = {}
    for file in files:
        if order.full_size:
            sums[file.name] = write_streamed(file, folder, threads, told)
        else:
            sums[file.name] = file.write(folder)
            told(file.size())
    return sums


class Named(Protocol):
    """A file of a set."""

    @property
    def name(self) -> str: ...


def environment(
    folder: Path, files: Sequence[Named], partitions: Sequence[str] = (FL2VA,), *, loras: bool = False
) -> str:
    """`h3.env`: lines that a shell and `--config` read alike. InvalidRequest for a folder whose name they wouldn't.

    Paths are quoted only where a shell needs it, for those who split lines at `=` themselves.
    """
    whole = str(folder.absolute())
    if not whole.isprintable() or any(mark in whole for mark in UNQUOTABLE):
        told = f"{whole!r} can't be written into {ENV_NAME}"
        raise invalid(
            [Offence("DIR", told, "a path without quotes, backslashes, dollars, backquotes, control characters")]
        )
    names = (*(variable(PARTITION_PATHS[partition]) for partition in partitions), *SHARED)
    paths = dict(zip(names, (f"{whole}/{file.name}" for file in files), strict=True))
    paths["H3_TOKENIZER_PATH"] = f"{whole}/{TOKENIZER}"
    if loras:
        paths["H3_LORA_DIR"] = f"{whole}/{LORAS}"
    return "".join(f"{name}={shlex.quote(path)}\n" for name, path in paths.items())


def _headers(files: Sequence[MadeFile]) -> dict[str, int | None]:
    """Names, with the size that each has as a header alone."""
    return {file.name: len(file.header()) for file in files}


def _require_space(folder: Path, files: Sequence[MadeFile]) -> None:
    needed = sum(file.size() for file in files) + SMALL_FILES
    available = shutil.disk_usage(folder).free
    if needed > available:
        told = f"needs {needed} bytes, {available} are available"
        raise DiskFull(f"{folder}: the set {told}", [Offence("DIR", told, f"a disk with {needed} bytes free")])
