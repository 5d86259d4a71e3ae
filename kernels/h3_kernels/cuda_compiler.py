"""Compiles the CUDA C++ sources of this package with nvcc into one shared library for one architecture.

Knows where nvcc is, which releases of it know an architecture, what a library's name is made of, and how it gets its
place: written beside it and renamed, so that a reader never sees half of one and two writers don't meet. Doesn't load
anything and needs no torch. `cuda_library` and `benchmarks/resources.py` feed and read it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

OLDEST_NVCC: Final = {"90a": (12, 0), "100a": (12, 8), "103a": (12, 9), "120a": (12, 8), "121a": (12, 9)}
"""By architecture: the first release that compiles for it (its release notes)."""
ARCHITECTURES: Final = {(9, 0): "90a", (10, 0): "100a", (10, 3): "103a", (12, 0): "120a", (12, 1): "121a"}
"""By compute capability. The `a`: with what only that one architecture has, as the conversion to E2M1."""
BASE_FLAGS: Final = ("-O3", "-std=c++17", "--expt-relaxed-constexpr")
"""No -use_fast_math: where a flushed or an approximate result is wanted the source says so, instruction by
instruction."""
COMPILE_SECONDS: Final = 600
HOW_TO_GET_NVCC: Final = (
    "install the CUDA toolkit 13 (nvcc on PATH, or CUDA_HOME naming it), or "
    "`pip install nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-cccl`"
)


class CudaBuildError(RuntimeError):
    """Kernels can't be compiled or loaded; the text names the tool, what it said and what to do."""


@dataclass(frozen=True, slots=True)
class Headers:
    """Of another project, needed to compile and not to run. They come with an installed Python package.

    package, folder: where they are, `folder` inside of the package. sample: one of them. how: to install them.
    """

    name: str
    package: str
    folder: str
    sample: str
    how: str

    def found(self) -> Path | None:
        """Their folder, or None; imports nothing."""
        package = find_spec(self.package)
        places = () if package is None else package.submodule_search_locations or ()
        folders = (Path(place) / self.folder for place in places)
        return next((folder for folder in folders if (folder / self.sample).is_file()), None)


@dataclass(frozen=True, slots=True)
class Sources:
    """What goes into one library. folder: of its `*.cu` and `*.cuh`; flags: beside `BASE_FLAGS`; headers: others'."""

    name: str
    folder: Path
    flags: tuple[str, ...] = ()
    headers: Headers | None = None

    def units(self) -> list[Path]:
        return sorted(self.folder.glob("*.cu"))

    def digest(self) -> str:
        """Of every source's name and bytes and of the flags; 16 hexadecimal digits."""
        found = hashlib.sha256()
        for path in sorted([*self.units(), *self.folder.glob("*.cuh")]):
            content = path.read_bytes()
            found.update(f"{path.name}\0{len(content)}\0".encode() + content)
        found.update("\0".join((*BASE_FLAGS, *self.flags)).encode())
        return found.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Nvcc:
    """path of the compiler; version (major, minor); build: the whole of its version, as 13.0.88."""

    path: Path
    version: tuple[int, int]
    build: str


def nvcc_candidates() -> Iterator[Path]:
    """Where nvcc may be, best first; not all of them are there."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield Path(home) / "bin" / "nvcc"
    if on_path := shutil.which("nvcc"):
        yield Path(on_path)
    yield Path("/usr/local/cuda/bin/nvcc")
    for release in ("cu13", "cuda_nvcc"):
        yield Path(sysconfig.get_path("purelib")) / "nvidia" / release / "bin" / "nvcc"


def find_nvcc() -> Nvcc | None:
    """The first that is there and tells its version."""
    return next((found for path in nvcc_candidates() if path.is_file() and (found := _asked(path))), None)


@cache
def _asked(path: Path) -> Nvcc | None:
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60).stdout
    except OSError:
        return None
    found = re.search(r"release (\d+)\.(\d+), V([\d.]+)", told)
    return Nvcc(path, (int(found[1]), int(found[2])), found[3]) if found else None


def why_cannot_compile(architecture: str, sources: Sources | None = None) -> str | None:
    """None where nvcc, new enough, a C++ compiler and what `sources` include are there; else what is missing.

    Compiles nothing.
    """
    nvcc = find_nvcc()
    oldest = OLDEST_NVCC[architecture]
    if nvcc is None:
        return f"no nvcc was found to compile for sm_{architecture}: {HOW_TO_GET_NVCC}"
    if nvcc.version < oldest:
        wanted = ".".join(map(str, oldest))
        return (
            f"nvcc {nvcc.build} ({nvcc.path}) is older than {wanted}, which sm_{architecture} needs: {HOW_TO_GET_NVCC}"
        )
    if shutil.which("g++") is None:
        return "nvcc needs a C++ compiler and g++ isn't on PATH: `apt-get install g++`"
    headers = None if sources is None else sources.headers
    if headers is not None and headers.found() is None:
        return f"{headers.name}'s headers aren't installed: `{headers.how}`"
    return None


def library_name(sources: Sources, architecture: str) -> str:
    """Of a prebuilt library: the sources decide, whoever compiled them."""
    return f"{sources.name}-sm_{architecture}-{sources.digest()}.so"


def cached_name(sources: Sources, architecture: str, nvcc: Nvcc) -> str:
    """Of a library compiled on this machine: another nvcc makes another one."""
    return library_name(sources, architecture).removesuffix(".so") + f"-nvcc{nvcc.build}.so"


def command(nvcc: Nvcc, sources: Sources, architecture: str, into: Path, *more: str) -> list[str]:
    """nvcc's arguments; `more` go before the sources."""
    others = None if sources.headers is None else sources.headers.found()
    found = () if others is None else (f"-I{others}",)
    flags = (*BASE_FLAGS, *sources.flags, "-shared", "-Xcompiler", "-fPIC", *found, *include_flags(nvcc), *more)
    target = f"-gencode=arch=compute_{architecture},code=sm_{architecture}"
    return [str(nvcc.path), *flags, target, "-o", str(into), *map(str, sources.units())]


def include_flags(nvcc: Nvcc) -> tuple[str, ...]:
    """What nvcc from the package index doesn't find by itself: its libraries lie in `lib`, not in `lib64`."""
    home = nvcc.path.resolve().parents[1]
    return (f"-I{home / 'include'}", f"-L{home / 'lib'}")


def compile_into(path: Path, sources: Sources, architecture: str, *more: str) -> str:
    """Compile and give the library the name `path`, whole or not at all; returns what nvcc printed.

    Two processes may do so at once: each renames its own file, the last one stays. Raises CudaBuildError.
    """
    if (why := why_cannot_compile(architecture, sources)) is not None:
        raise CudaBuildError(why)
    nvcc = find_nvcc()
    assert nvcc is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".compiling-", dir=path.parent) as folder:
        made = Path(folder) / path.name
        try:
            run = subprocess.run(
                command(nvcc, sources, architecture, made, *more),
                capture_output=True,
                text=True,
                timeout=COMPILE_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise CudaBuildError(f"nvcc took more than {COMPILE_SECONDS} s for {sources.folder}") from error
        if run.returncode or not made.is_file():
            raise CudaBuildError(f"nvcc {nvcc.build} failed on {sources.folder} for sm_{architecture}:\n{run.stderr}")
        made.replace(path)
    return run.stdout + run.stderr
