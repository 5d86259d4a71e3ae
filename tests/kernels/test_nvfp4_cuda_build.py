"""How the CUDA C++ kernels come to be: what their names hold, which library is taken first, what is told without nvcc.

nvcc compiles small sources here (`.ci/run` provides it); nothing runs on a GPU.
"""

import ctypes
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from h3_kernels import cuda_compiler, cuda_library
from h3_kernels.cuda_compiler import CudaBuildError, Nvcc, Sources

KERNEL = """
#include <cuda_runtime.h>
#include "answer.cuh"
__global__ void set(int* to) { *to = ANSWER; }
extern "C" int h3_set(void* to, cudaStream_t stream) {
    set<<<1, 1, 0, stream>>>(static_cast<int*>(to));
    return cudaGetLastError();
}
extern "C" int h3_answer() { return ANSWER; }
"""
NVCC = Nvcc(Path("/opt/nvcc"), (13, 0), "13.0.88")


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "set.cu").write_text(KERNEL)
    (folder / "answer.cuh").write_text("#define ANSWER 42\n")
    return Sources("small", folder)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "h3runtime" / "kernels"


@pytest.fixture
def no_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_compiler, "nvcc_candidates", lambda: iter([Path("/nowhere/nvcc")]))


def test_a_library_s_name_holds_what_decides_on_it(sources: Sources) -> None:
    names = [cuda_compiler.cached_name(sources, "121a", NVCC)]
    names.append(cuda_compiler.cached_name(sources, "120a", NVCC))
    names.append(cuda_compiler.cached_name(sources, "121a", Nvcc(NVCC.path, (13, 1), "13.1.2")))
    names.append(cuda_compiler.cached_name(Sources("small", sources.folder, ("-DX",)), "121a", NVCC))
    (sources.folder / "answer.cuh").write_text("#define ANSWER 43\n")
    names.append(cuda_compiler.cached_name(sources, "121a", NVCC))
    (sources.folder / "answer.cuh").rename(sources.folder / "other.cuh")
    names.append(cuda_compiler.cached_name(sources, "121a", NVCC))
    assert len(set(names)) == len(names)
    (sources.folder / "notes.txt").write_text("not compiled")
    assert cuda_compiler.cached_name(sources, "121a", NVCC) == names[-1]


def test_a_library_is_compiled_once_and_again_for_other_sources(sources: Sources, cache: Path) -> None:
    path = cuda_library.library_path("90a", sources)
    assert path.parent == cache and ctypes.CDLL(str(path)).h3_answer() == 42
    made = path.stat().st_mtime_ns
    assert cuda_library.library_path("90a", sources) == path and path.stat().st_mtime_ns == made
    (sources.folder / "answer.cuh").write_text("#define ANSWER 43\n")
    other = cuda_library.library_path("90a", sources)
    assert other != path and ctypes.CDLL(str(other)).h3_answer() == 43
    assert {found.name for found in cache.iterdir()} == {path.name, other.name}


def test_a_prebuilt_library_is_taken_first_and_needs_no_nvcc(
    sources: Sources, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (named,) = cuda_library.prebuild(["121a"], tmp_path / "image", sources)
    assert named.parent == tmp_path / "image"
    monkeypatch.setattr(cuda_compiler, "nvcc_candidates", lambda: iter(()))
    assert cuda_library.why_unavailable((12, 1), sources) is None
    assert cuda_library.library_path("121a", sources) == named
    beside = sources.folder / "prebuilt" / named.name
    beside.parent.mkdir()
    beside.write_bytes(named.read_bytes())
    assert cuda_library.library_path("121a", sources) == beside
    assert not cache.exists()
    # Of older sources: not taken.
    (sources.folder / "answer.cuh").write_text("#define ANSWER 43\n")
    why = cuda_library.why_unavailable((12, 1), sources)
    assert why is not None and "no nvcc was found to compile for sm_121a" in why and str(tmp_path / "image") in why


@pytest.mark.usefixtures("no_nvcc")
def test_a_missing_compiler_is_told_with_what_to_install(sources: Sources) -> None:
    why = cuda_library.why_unavailable((9, 0), sources)
    assert why is not None and "no nvcc" in why and "pip install nvidia-cuda-nvcc" in why and "CUDA_HOME" in why
    with pytest.raises(CudaBuildError, match=re.escape("no nvcc was found to compile for sm_90a")):
        cuda_library.library_path("90a", sources)


def test_an_old_compiler_is_told(sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old" / "bin" / "nvcc"
    old.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.61'\n")
    old.chmod(0o755)
    monkeypatch.setattr(cuda_compiler, "nvcc_candidates", lambda: iter([old]))
    assert cuda_library.why_unavailable((12, 0), sources) is None
    why = cuda_library.why_unavailable((12, 1), sources)
    assert why is not None and "nvcc 12.8.61" in why and "older than 12.9, which sm_121a needs" in why


def test_a_missing_host_compiler_is_told(sources: Sources, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cuda_compiler.find_nvcc() is not None
    monkeypatch.setattr(cuda_compiler, "find_nvcc", lambda: NVCC)
    monkeypatch.setenv("PATH", str(tmp_path))
    why = cuda_library.why_unavailable((9, 0), sources)
    assert why is not None and "g++" in why


@pytest.mark.parametrize("capability", [None, (8, 9), (13, 0)])
def test_other_devices_are_told(capability: tuple[int, int] | None) -> None:
    why = cuda_library.why_unavailable(capability)
    assert why is not None
    assert "CUDA device" in why if capability is None else "9.0, 10.0, 10.3, 12.0, 12.1" in why


def test_what_does_not_compile_is_told_and_leaves_nothing(sources: Sources, cache: Path) -> None:
    (sources.folder / "answer.cuh").write_text("#define ANSWER nonsense\n")
    with pytest.raises(CudaBuildError, match=r'(?s)nvcc .* failed .*"nonsense" is undefined'):
        cuda_library.library_path("90a", sources)
    assert list(cache.iterdir()) == []


def test_two_processes_may_compile_at_once(sources: Sources, cache: Path) -> None:
    program = (
        "import sys, ctypes; from pathlib import Path; from h3_kernels import cuda_library as c; "
        "from h3_kernels.cuda_compiler import Sources; "
        "print(ctypes.CDLL(str(c.library_path('120a', Sources('small', Path(sys.argv[1]))))).h3_answer())"
    )
    run = [sys.executable, "-c", program, str(sources.folder)]
    started = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True, env={**os.environ}) for _ in range(2)]
    assert [process.communicate(timeout=200)[0].strip() for process in started] == ["42", "42"]
    assert len(list(cache.iterdir())) == 1


def test_the_command_prebuilds(sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cuda_library.main(["--arch", "121a", "--into", str(tmp_path / "made")], sources) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.parent == tmp_path / "made" and path.name == cuda_compiler.library_name(sources, "121a")
    (sources.folder / "set.cu").write_text("nonsense")
    assert cuda_library.main(["--arch", "121a"], sources) == 1
    assert "nvcc" in capsys.readouterr().err
