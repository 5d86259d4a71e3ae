"""`benchmarks/resources.py`: what is read out of what ptxas tells, and what makes it fail. `.ci/run` runs all of it."""

from pathlib import Path

import pytest
from h3_kernels.cuda_compiler import CudaBuildError, Sources

from benchmarks import resources
from benchmarks.resources import Resources, faults, parsed, table

TOLD = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN46_GLOBAL__N__9f184194_4packI6__halfEEvPKT_l' for 'sm_90a'
ptxas info    : Function properties for _ZN46_GLOBAL__N__9f184194_4packI6__halfEEvPKT_l
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 59 registers, used 1 barriers, 2112 bytes smem
ptxas info    : Compile time = 89.925 ms
ptxas info    : Function properties for _ZN2h319codes8_by_midpointsI6__halfEEjjjjjf
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Compiling entry function 'plain' for 'sm_90a'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""
SPILLING = """
#include <cuda_runtime.h>
__global__ void __launch_bounds__(1024, 2) crowded(float* to, const float* from) {
    float kept[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) kept[i] = from[i * 1024 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 64; ++i) to[i * 1024 + threadIdx.x] = kept[i] * kept[63 - i] + kept[(i * 7) % 64];
}
extern "C" int h3_crowded(void* to, const void* from, cudaStream_t stream) {
    crowded<<<1, 1024, 0, stream>>>(static_cast<float*>(to), static_cast<const float*>(from));
    return cudaGetLastError();
}
"""


def test_what_ptxas_told_is_read() -> None:
    pack, plain = parsed(TOLD)
    assert pack == Resources(pack.kernel, "90a", 59, 4, 12, 8, 2112) and "pack" in pack.kernel
    assert plain == Resources("plain", "90a", 8, 0, 0, 0, 0)
    with pytest.raises(CudaBuildError, match="told nothing of what plain takes"):
        parsed(TOLD.rpartition("ptxas info    : Used")[0])


def test_spills_and_kernels_that_lack_are_faults() -> None:
    rows = [
        Resources("a", "90a", 9, 0, 0, 0, 0),
        Resources("a", "121a", 9, 4, 8, 0, 16),
        Resources("b", "90a", 9, 0, 0, 8, 0),
    ]
    assert faults(rows[:1], ["90a"]) == []
    found = faults(rows, ["90a", "121a"])
    assert found == ["b isn't there for sm_121a", "a spills on sm_121a: 4 bytes stored, 8 loaded"]
    told = table(rows, ["90a", "121a"])
    assert "| `a` | 9 / 0 | 9 / 16 +12 spilled |" in told and "| `b` | 9 / 0 | missing |" in told


def test_a_kernel_that_spills_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "crowded.cu").write_text(SPILLING)
    monkeypatch.setattr(resources, "KERNELS", Sources("crowded", tmp_path))
    assert resources.main(["--arch", "90a"]) == 1
    told = capsys.readouterr()
    assert "crowded spills on sm_90a" in told.err and "spilled |" in told.out
    monkeypatch.setattr(resources, "TOLERATED", {("crowded", "90a"): "it is meant to"})
    assert resources.main(["--arch", "90a"]) == 0
    (tmp_path / "crowded.cu").write_text("nonsense")
    assert resources.main(["--arch", "90a"]) == 1
