"""What the CUTLASS product is handed, by a library in its place that reads the addresses as its header says.

The kernel itself needs Blackwell; `benchmarks/nvfp4_cutlass.py` compiles it and asks its library where it looks for
each scale.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from h3_kernels import cuda_compiler, cuda_library, nvfp4_cutlass
from h3_kernels.cuda_compiler import CudaBuildError, Headers, Nvcc, Sources
from h3_kernels.nvfp4_cutlass import GEMM, HEADERS

CPU = torch.device("cpu")
STREAM = 0x5EED
INVALID = 1
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def prototypes() -> dict[str, list[str]]:
    """Of the header, by function: its arguments' types."""
    text = re.sub(r"//.*", "", (GEMM.folder / "nvfp4_gemm.cuh").read_text())
    found = re.findall(r"int (h3_\w+)\(([^)]*)\);", text)
    return {
        name: [re.sub(r"\s*\w+$", "", one.strip()) for one in arguments.split(",") if one.strip() != "void"]
        for name, arguments in found
    }


def as_declared(name: str, work: Callable[..., int]) -> Any:
    """`work` with the C types that the header gives to `name`."""
    types = [ctypes.c_int64 if one == "int64_t" else ctypes.c_void_p for one in prototypes()[name]]
    return ctypes.CFUNCTYPE(ctypes.c_int, *types)(work)


class Library:
    """Functions of the header for ctypes, on memory of the host."""

    def __init__(self, workspace: int = 0) -> None:
        self.workspace, self.runs = workspace, 0
        self.h3_nvfp4_gemm_run = as_declared("h3_nvfp4_gemm_run", self._run)
        self.h3_nvfp4_gemm_workspace_bytes = as_declared("h3_nvfp4_gemm_workspace_bytes", self._workspace_bytes)

    def _can_implement(self, m: int, n: int, k: int) -> int:
        return 0 if m > 0 and n > 0 and k > 0 and n % 8 == 0 and k % 32 == 0 else INVALID

    def _workspace_bytes(self, m: int, n: int, k: int, into: int) -> int:
        ctypes.c_int64.from_address(into).value = self.workspace
        return self._can_implement(m, n, k)

    def _run(
        self,
        a: int,
        a_scale: int,
        b: int,
        b_scale: int,
        alpha: int,
        d: int,
        workspace: int | None,
        m: int,
        n: int,
        k: int,
        stream: int,
    ) -> int:
        if stream != STREAM or (workspace is None) != (self.workspace == 0) or self._can_implement(m, n, k):
            return INVALID
        self.runs += 1
        sums = operand(a, a_scale, m, k) @ operand(b, b_scale, n, k).T
        y = (sums * ctypes.c_float.from_address(alpha).value).float().bfloat16().view(torch.int16).numpy().tobytes()
        ctypes.memmove(d, y, len(y))
        return 0


def operand(codes: int, scales: int, rows: int, width: int) -> torch.Tensor:
    """fp64 [rows, width] from bytes at two addresses: low nibble first, scales where checkpoint-formats §3 says."""
    pairs = torch.frombuffer(bytearray(ctypes.string_at(codes, rows * width // 2)), dtype=torch.uint8).int()
    values = torch.stack([VALUES[(pairs & 15).long()], VALUES[(pairs >> 4).long()]], dim=1).reshape(rows, -1, 16)
    tiles_across = -(-width // 64)
    stored = torch.frombuffer(
        bytearray(ctypes.string_at(scales, -(-rows // 128) * tiles_across * 512)), dtype=torch.float8_e4m3fn
    )
    r, c = torch.arange(rows)[:, None], torch.arange(width // 16)[None]
    offsets = ((r // 128) * tiles_across + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    scale = stored.float()[offsets]
    return (values * scale[..., None]).reshape(rows, width).double()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()

    def found(device: torch.device, sources: Sources) -> Any:
        assert device == CPU and sources is GEMM
        return made

    monkeypatch.setattr(cuda_library, "library", found)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext(device))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=STREAM))
    nvfp4_cutlass.workspace_bytes.cache_clear()
    return made


def made(rows: int, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes and scales with rows of padding as a packer leaves them, and what they stand for, fp64."""
    generator = torch.Generator().manual_seed(seed)
    natural = torch.randint(0, 256, (rows, width // 2), generator=generator, dtype=torch.uint8)
    scale = torch.rand(-(-rows // 128) * 128, -(-width // 64) * 4, generator=generator).to(torch.float8_e4m3fn)
    return natural, scale, operand(natural.data_ptr(), scale.data_ptr(), rows, width)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 127, 128, 129])
@pytest.mark.parametrize("width", [32, 96, 256])
def test_addresses_sizes_and_scales_reach_the_kernel(library: Library, rows: int, width: int) -> None:
    codes, scale, x = made(-(-rows // 16) * 16, width, 1)
    weight, weight_scale, w = made(40, width, 2)
    y = nvfp4_cutlass.product(codes, scale, weight, weight_scale, torch.tensor(3e-3), rows)
    assert y.dtype is torch.bfloat16 and y.shape == (rows, 40) and library.runs == 1
    assert torch.equal(y, ((x[:rows] @ w.T) * torch.tensor(3e-3).item()).float().bfloat16())


@pytest.mark.usefixtures("library")
def test_either_order_of_nibbles_gives_the_product_that_both_have() -> None:
    """The reader above has the even column in the low nibble, files have it in the high one."""
    codes, scale, _ = made(48, 64, 1)
    weight, weight_scale, _ = made(16, 64, 2)
    swapped = [(each << 4) | (each >> 4) for each in (codes, weight)]
    alpha = torch.tensor(0.5)
    first = nvfp4_cutlass.product(codes, scale, weight, weight_scale, alpha, 48)
    assert torch.equal(first, nvfp4_cutlass.product(swapped[0], scale, swapped[1], weight_scale, alpha, 48))
    assert not torch.equal(first, nvfp4_cutlass.product(swapped[0], scale, weight, weight_scale, alpha, 48))


def test_a_workspace_is_there_where_the_kernel_asks_for_one(library: Library) -> None:
    library.workspace = 64
    codes, scale, x = made(16, 64, 1)
    y = nvfp4_cutlass.product(codes, scale, codes, scale, torch.tensor(1.0), 16)
    assert torch.equal(y, (x @ x.T).float().bfloat16())


def test_a_product_that_there_is_none_of_is_an_error(library: Library) -> None:
    codes, scale, _ = made(16, 64, 1)
    with pytest.raises(RuntimeError, match=r"no product of \[16, 64\] and \[12, 64\]: CUDA error 1"):
        nvfp4_cutlass.product(codes, scale, codes[:12], scale, torch.tensor(1.0), 16)
    assert library.runs == 0


def test_the_source_declares_what_it_defines() -> None:
    source = (GEMM.folder / "nvfp4_gemm.cu").read_text()
    assert set(prototypes()) == set(re.findall(r"^int (h3_\w+)\(", source, re.MULTILINE)) != set()
    assert '#include "nvfp4_gemm.cuh"' in source


@pytest.mark.parametrize(
    ("capability", "told"),
    [
        (None, "need a CUDA device"),
        ((9, 0), "needs SM 10.0, 10.3, 12.0, 12.1, and this is SM 9.0"),
        ((11, 0), "needs SM 10.0, 10.3, 12.0, 12.1, and this is SM 11.0"),
        ((12, 1), "CUTLASS's headers aren't installed: `pip install --no-deps nvidia-cutlass==4.2.0.0`"),
        ((10, 3), "nor is h3_nvfp4_gemm-sm_103a-"),
    ],
)
def test_why_there_is_no_kernel(
    capability: tuple[int, int] | None, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(cuda_compiler, "find_nvcc", lambda: Nvcc(tmp_path / "nvcc", (13, 0), "13.0.88"))
    monkeypatch.setattr(cuda_compiler.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(cuda_compiler, "find_spec", lambda _: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert told in str(nvfp4_cutlass.why_unavailable(capability))


def test_headers_are_where_their_package_has_them(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "cutlass_library"
    folder = package / "source" / "include"
    (folder / "cutlass").mkdir(parents=True)
    package.joinpath("__init__.py").write_text("raise RuntimeError('nothing of it may be imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert HEADERS.found() is None
    (folder / "cutlass" / "cutlass.h").touch()
    assert HEADERS.found() == folder
    nvcc = Nvcc(tmp_path / "bin" / "nvcc", (13, 0), "13.0.88")
    assert f"-I{folder}" in cuda_compiler.command(nvcc, GEMM, "121a", tmp_path / "made.so")


def test_headers_don_t_name_a_library_but_sources_do() -> None:
    """A library that an image built with headers is found where none are."""
    elsewhere = Headers("CUTLASS", "elsewhere", "include", "cutlass.h", "")
    other = Sources(GEMM.name, GEMM.folder, GEMM.flags, elsewhere)
    assert cuda_compiler.library_name(other, "121a") == cuda_compiler.library_name(GEMM, "121a")


def test_hopper_is_refused_at_once_by_the_source_itself() -> None:
    """By the preprocessor, before any header is looked for."""
    source = GEMM.folder / "nvfp4_gemm.cu"

    def preprocessed(*defines: str) -> str:
        told = ["g++", "-E", "-x", "c++", *(f"-D{one}" for one in defines), str(source)]
        return subprocess.run(told, capture_output=True, text=True, timeout=60).stderr

    assert "NVFP4 products need sm_100a, sm_103a, sm_120a or sm_121a" in preprocessed("__CUDA_ARCH_LIST__=900")
    told = preprocessed("__CUDA_ARCH_LIST__=1210", "__CUDA_ARCH__=1210")
    assert "must end in a, as in sm_121a" in told
    allowed = preprocessed("__CUDA_ARCH_LIST__=1210", "__CUDA_ARCH__=1210", "__CUDA_ARCH_SPECIFIC__=1210")
    assert "#error" not in allowed


def test_a_build_error_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(cuda_compiler, "find_nvcc", lambda: Nvcc(tmp_path / "nvcc", (13, 0), "13.0.88"))
    monkeypatch.setattr(cuda_compiler.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(cuda_compiler, "find_spec", lambda _: None)
    with pytest.raises(CudaBuildError, match="CUTLASS's headers aren't installed"):
        cuda_library.prebuild(["121a"], tmp_path, GEMM)
