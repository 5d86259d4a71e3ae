"""The CUDA C++ kernels of this package, as a library of plain functions: found or compiled once, loaded, called.

    cuda/*.cu, *.cuh      sources; every launcher is `extern "C" int name(..., cudaStream_t stream)`: pointers, 64-bit
                          integers and floats, then the stream; it returns a cudaError_t
    prebuilt library      beside the sources (`cuda/prebuilt`) or in the folder that the build named: taken first
    compiled library      in the cache folder, by nvcc, at the first call of a machine that has none prebuilt

A library belongs to the very sources beside it (its name holds their digest), so an old one is never taken for a new
one. Decides nothing about where kernels are used; `nvfp4` and its like call it, `backends` asks `why_unavailable`.

    python -m h3_kernels.cuda_library --arch 121a --into /opt/h3/kernels
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import torch

from h3_kernels.cuda_compiler import (
    ARCHITECTURES,
    OLDEST_NVCC,
    CudaBuildError,
    Sources,
    cached_name,
    compile_into,
    find_nvcc,
    library_name,
    why_cannot_compile,
)

KERNELS: Final = Sources("h3_kernels", Path(__file__).parent / "cuda")
PREBUILT: Final = "prebuilt"
"""Folder beside the sources."""
NAMED: Final = "prebuilt_folder.txt"
"""File beside the sources: the folder that a build put its libraries into, where it isn't `PREBUILT`."""
_loading = threading.Lock()


def why_unavailable(capability: tuple[int, int] | None, sources: Sources = KERNELS) -> str | None:
    """None where the library is there or nvcc could make it; else a sentence. Compiles and loads nothing.

    capability: of the device, as (12, 1); None: no CUDA device.
    """
    if capability is None:
        return "the CUDA C++ kernels need a CUDA device"
    architecture = ARCHITECTURES.get(capability)
    if architecture is None:
        named = "%d.%d" % capability  # noqa: UP031
        return f"the CUDA C++ kernels aren't written for SM {named}, only for {_listed(ARCHITECTURES)}"
    if _there(sources, architecture) is not None:
        return None
    why = why_cannot_compile(architecture, sources)
    return why and f"{why}; nor is {library_name(sources, architecture)} in {' or '.join(map(str, _places(sources)))}"


def _listed(capabilities: dict[tuple[int, int], str]) -> str:
    return ", ".join(f"{major}.{minor}" for major, minor in capabilities)


def _places(sources: Sources) -> list[Path]:
    """Folders of prebuilt libraries."""
    named = sources.folder / NAMED
    elsewhere = [Path(named.read_text().strip())] if named.is_file() else []
    return [sources.folder / PREBUILT, *elsewhere]


def cache_folder() -> Path:
    """Of compiled libraries: `h3runtime/kernels` in `XDG_CACHE_HOME`, else in `~/.cache`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".cache") / "h3runtime" / "kernels"


def _there(sources: Sources, architecture: str) -> Path | None:
    """A library that needn't be compiled."""
    prebuilt = [place / library_name(sources, architecture) for place in _places(sources)]
    nvcc = find_nvcc()
    compiled = [] if nvcc is None else [cache_folder() / cached_name(sources, architecture, nvcc)]
    return next((path for path in (*prebuilt, *compiled) if path.is_file()), None)


def library_path(architecture: str, sources: Sources = KERNELS) -> Path:
    """Of the library for that architecture ("121a"); compiled here and now if it has to be. Raises CudaBuildError."""
    if (found := _there(sources, architecture)) is not None:
        return found
    if (why := why_cannot_compile(architecture, sources)) is not None:
        raise CudaBuildError(why)
    nvcc = find_nvcc()
    assert nvcc is not None
    path = cache_folder() / cached_name(sources, architecture, nvcc)
    compile_into(path, sources, architecture)
    return path


@cache
def _loaded(architecture: str, sources: Sources) -> ctypes.CDLL:
    path = library_path(architecture, sources)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CudaBuildError(f"{path} can't be loaded: {error}; delete it and it is made again") from error


def library(device: torch.device, sources: Sources = KERNELS) -> ctypes.CDLL:
    """Loaded, for that CUDA device; at its first call on a machine it may compile. Raises CudaBuildError."""
    capability = torch.cuda.get_device_capability(device)
    if capability not in ARCHITECTURES:
        raise CudaBuildError(why_unavailable(capability, sources) or "")
    with _loading:
        return _loaded(ARCHITECTURES[capability], sources)


Argument = torch.Tensor | int | float | None


def launch(name: str, device: torch.device, *arguments: Argument, sources: Sources = KERNELS) -> None:
    """Call launcher `name` on `device`'s current stream: its kernels are queued, nothing is waited for.

    arguments: tensors (their data's address), None (a null pointer), int (64 bits), float; the stream is added. Keep
    what a kernel writes to alive as for any torch operation on that stream. Raises CudaBuildError for an unknown name,
    RuntimeError for what the launch returned.
    """
    try:
        launcher = getattr(library(device, sources), name)
    except AttributeError as error:
        raise CudaBuildError(f"the library of {sources.folder} has no launcher {name}") from error
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream(device).cuda_stream
        code = launcher(*map(_passed, arguments), ctypes.c_void_p(stream))
    if code:
        raise RuntimeError(f"{name} failed with CUDA error {code}")


def _passed(argument: Argument) -> ctypes.c_void_p | ctypes.c_int64 | ctypes.c_float:
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    return ctypes.c_void_p(None if argument is None else argument.data_ptr())


def prebuild(architectures: Sequence[str], into: Path | None = None, sources: Sources = KERNELS) -> list[Path]:
    """Compile for each of them ("121a") into that folder, None: beside the sources; returns the libraries.

    Another folder is noted beside the sources, where `library` looks for its name. Raises CudaBuildError.
    """
    folder = sources.folder / PREBUILT if into is None else into.resolve()
    made = [folder / library_name(sources, architecture) for architecture in architectures]
    for path, architecture in zip(made, architectures, strict=True):
        compile_into(path, sources, architecture)
    if into is not None:
        (sources.folder / NAMED).write_text(f"{folder}\n")
    return made


def main(arguments: Sequence[str] | None = None, sources: Sources = KERNELS, module: str = "cuda_library") -> int:
    """Prebuild `sources`, which `python -m h3_kernels.<module>` is for."""
    parser = argparse.ArgumentParser(prog=f"python -m h3_kernels.{module}", description="Compile the CUDA kernels.")
    parser.add_argument(
        "--arch",
        action="append",
        required=True,
        choices=sorted(OLDEST_NVCC),
        help="An architecture to compile for, as 121a for a DGX Spark. May be given more than once.",
    )
    parser.add_argument("--into", type=Path, metavar="DIR", help="Default: beside the sources.")
    given = parser.parse_args(arguments)
    try:
        made = prebuild(given.arch, given.into, sources)
    except (CudaBuildError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in made:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
