"""A whole set of 4 GiB in a published layout: real bytes on a real disk, written in seconds.

Fewer layers at the published widths, in BF16, so that the largest tensor is the published one and any bytes are legal
values. Where `synth` makes every value, here 64 MiB of random bytes are written again and again: a file is as long, as
full and as strictly judged. `SHA256SUMS` beside it is right, and binding.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from h3runtime.checkpoint.expected import write_sums
from h3runtime.checkpoint.synthetic import layouts
from h3runtime.checkpoint.synthetic.made_files import MadeFile, SetSizes, set_files

SIZES = SetSizes(
    layouts.TransformerSizes(layers=2, refiner_layers=1),
    layouts.EncoderSizes(vocab=6144, layers=1, vision_depth=4),
    layouts.VideoVaeSizes(encoder_widths=(64, 64, 64, 64, 64, 64), layers=1),
    layouts.AudioVaeSizes(encoder_widths=(64, 64, 64, 64, 64, 64)),
)
BLOCK = 64 << 20


@dataclass(frozen=True)
class MadeSet:
    """paths: transformer, text encoder, video VAE, audio VAE. bytes: of all files. largest: of one tensor."""

    paths: tuple[Path, ...]
    bytes: int
    largest: int


def write_gigabytes(folder: Path) -> MadeSet:
    """On the disk, and never in the page cache where the file system can do without."""
    files = set_files("bf16", SIZES, 0, {}, {}, ("fl2va",))
    with mmap.mmap(-1, BLOCK) as block:
        block[:] = os.urandom(BLOCK)
        write_sums(folder, {file.name: _write(folder / file.name, file, block) for file in files})
    largest = max(math.prod(shape) * dtype.itemsize for file in files for dtype, shape in file.layout().values())
    paths = tuple(folder / file.name for file in files)
    return MadeSet(paths, sum(path.stat().st_size for path in paths), largest)


def _write(path: Path, file: MadeFile, block: mmap.mmap) -> str:
    """A header, and the block from there on. Its SHA-256."""
    header, size = file.header(), file.size()
    digest = hashlib.sha256()
    with mmap.mmap(-1, BLOCK) as first, ThreadPoolExecutor(1) as hashing:
        first[:] = header + block[len(header) :]
        done: Future[None] | None = None
        with _Writer(path) as writer:
            for start in range(0, size, BLOCK):
                with memoryview(block if start else first) as whole, whole[: size - start] as piece:
                    done = hashing.submit(digest.update, piece)
                    writer.write(piece)
                    done.result()
    return digest.hexdigest()


class _Writer:
    """Past the page cache, but for the end that fills no page: millions of pages fewer to be made and dropped."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._set_direct(True)

    def _set_direct(self, wanted: bool) -> None:
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        with suppress(OSError):
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)

    def write(self, piece: memoryview) -> None:
        pages = len(piece) - len(piece) % mmap.PAGESIZE
        self._write_all(piece[:pages])
        if pages < len(piece):
            self._set_direct(False)
            self._write_all(piece[pages:])

    def _write_all(self, piece: memoryview) -> None:
        done = 0
        while done < len(piece):
            done += os.write(self._fd, piece[done:])

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        os.fsync(self._fd)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(self._fd)
