"""What the CUTLASS product is handed, by a library in its place; what it takes to compile it; where it can run.

The kernel itself needs Blackwell; `benchmarks/nvfp4_cutlass.py` compiles it and asks its library where it looks for
each scale.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import torch
from h3_kernels import cuda_compiler, cuda_library, nvfp4_cutlass
from h3_kernels.cuda_compiler import CudaBuildError, Headers, Nvcc, Sources
from h3_kernels.nvfp4_cutlass import GEMM, HEADERS

from tests.kernels.nvfp4_gemm_on_host import Library, installed, operand, prototypes


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    return installed(monkeypatch)


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
