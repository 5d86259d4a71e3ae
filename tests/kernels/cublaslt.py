"""The played libcublasLt of `fake_cublaslt.c`, compiled once a process, and what it is told and asked."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_long
from functools import cache
from pathlib import Path

import pytest
import torch
from h3_kernels import cublaslt, cublaslt_api
from h3_kernels.cublaslt import CublasLt
from h3_kernels.cublaslt_api import Library

SOURCE = Path(__file__).with_name("fake_cublaslt.c")
CPU = torch.device("cpu")


@cache
def _compiled() -> tuple[tempfile.TemporaryDirectory[str], Library]:
    folder = tempfile.TemporaryDirectory(prefix="fake_cublaslt")
    path = Path(folder.name, "libcublasLt_played.so")
    # -ffast-math would also link what makes a process flush subnormal numbers to zero, every test's after this one.
    sums = ["-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math", "-fno-math-errno"]
    command = ["cc", "-O3", *sums, "-Wall", "-Werror", "-shared", "-fPIC", str(SOURCE), "-o", str(path), "-lm"]
    subprocess.run(command, check=True)
    return folder, Library(str(path))


class Played:
    """The played library, as if it had just been loaded."""

    def __init__(self) -> None:
        raw = _compiled()[1].raw
        raw.fake_set.argtypes, raw.fake_set.restype = [c_char_p, c_long], None
        raw.fake_count.argtypes, raw.fake_count.restype = [c_char_p], c_long
        raw.fake_last.argtypes, raw.fake_last.restype = [c_int], c_long
        self._raw = raw
        raw.fake_reset()
        self.library = Library(_compiled()[1].path)

    def told(self, **values: int) -> Played:
        """What it is to be from now on. A version counts at the next loading."""
        for name, value in values.items():
            self._raw.fake_set(name.encode(), value)
        self.library.version = int(self._raw.cublasLtGetVersion())
        return self

    def count(self, name: str) -> int:
        return int(self._raw.fake_count(name.encode()))

    def last(self) -> tuple[int, ...]:
        """Of the last product: algorithm, tile, stages, split-K, reduction scheme, bytes of workspace."""
        return tuple(int(self._raw.fake_last(which)) for which in range(6))


@contextmanager
def played(patch: pytest.MonkeyPatch) -> Iterator[Played]:
    """The library of this process, for as long as it lasts: what `cublaslt.on_device` finds on the CPU."""
    fake = Played()
    patch.setattr(cublaslt_api, "loaded", lambda: fake.library)
    cublaslt.on_device.cache_clear()
    yield fake
    cublaslt.on_device.cache_clear()


def on_cpu(fake: Played, avoided: frozenset[tuple[int, int]] = frozenset()) -> CublasLt:
    return CublasLt(CPU, fake.library, avoided)
