"""What the choice of a linear backend depends on, once, as plain values: the device, and whether a library is there.

Nothing is imported to be listed: packages are looked for by their files and their metadata, so that tests decide with
recorded facts of machines that aren't at hand. Read by each backend's `why_not` and by `select`.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch

KITCHEN = "comfy_kitchen"
KITCHEN_CUDA = (13, 0)
"""CUDA that comfy-kitchen's compiled part needs (checkpoint-formats §8)."""
FP4_CUBLASLT = 120_800
"""The first cuBLAS that multiplies FP4: the scale mode `VEC16_UE4M3` came with CUDA 12.8."""


@dataclass(frozen=True, slots=True)
class LinearFacts:
    """kind: `cpu` or `cuda`. capability: of a CUDA device, (9, 0) for Hopper. cuda: what torch was built for. kitchen:
    comfy-kitchen's version, "" if it is there without one, None if it isn't. kitchen_compiled: with its CUDA part.
    bf16_units: of a CPU, whether it multiplies BF16 faster than FP32. cublaslt: version of the cuBLASLt that torch has
    loaded, 130100 for 13.1.0; None without one."""

    kind: str
    capability: tuple[int, int] | None = None
    cuda: tuple[int, int] | None = None
    kitchen: str | None = None
    kitchen_compiled: bool = False
    bf16_units: bool = True
    cublaslt: int | None = None

    @property
    def told_cublaslt(self) -> str:
        """`cuBLAS 13.1.0`."""
        if self.cublaslt is None:
            return "no cuBLASLt"
        return f"cuBLAS {self.cublaslt // 10_000}.{self.cublaslt // 100 % 100}.{self.cublaslt % 100}"

    def why_no_fp4_cublaslt(self) -> str | None:
        """Why torch's cuBLASLt can't multiply with block scales."""
        if self.cublaslt is None:
            return "torch has loaded no libcublasLt"
        if self.cublaslt < FP4_CUBLASLT:
            return f"needs cuBLAS 12.8 or newer, whose products have block scales, and this is {self.told_cublaslt}"
        return None

    def why_no_kitchen(self) -> str | None:
        """Why comfy-kitchen's CUDA kernels can't run here."""
        if self.kind != "cuda":
            return f"needs a CUDA device, and this is {self.kind}"
        if self.kitchen is None:
            return "comfy-kitchen is not installed"
        if not self.kitchen_compiled:
            return f"comfy-kitchen {self.kitchen} was installed without its CUDA part"
        if self.cuda is None or self.cuda < KITCHEN_CUDA:
            built = "without CUDA" if self.cuda is None else f"for CUDA {_dotted(self.cuda)}"
            return f"comfy-kitchen's kernels need CUDA {_dotted(KITCHEN_CUDA)}, and torch was built {built}"
        return None

    def why_older_than(self, needed: tuple[int, int]) -> str | None:
        if self.kind != "cuda":
            return f"needs a CUDA device, and this is {self.kind}"
        if self.capability is None or self.capability < needed:
            found = "unknown" if self.capability is None else f"SM {_dotted(self.capability)}"
            return f"needs SM {_dotted(needed)} or newer, and this is {found}"
        return None


def linear_facts(device: torch.device) -> LinearFacts:
    """Of `device`, as it is now."""
    kitchen, compiled = _kitchen()
    if device.type != "cuda":
        return LinearFacts(device.type, kitchen=kitchen, kitchen_compiled=compiled, bf16_units=_bf16_units())
    capability = torch.cuda.get_device_capability(device)
    return LinearFacts("cuda", capability, _cuda_version(), kitchen, compiled, cublaslt=_cublaslt())


def _kitchen() -> tuple[str | None, bool]:
    found = find_spec(KITCHEN)
    if found is None or not found.submodule_search_locations:
        return None, False
    folder = Path(found.submodule_search_locations[0], "backends", "cuda")
    compiled = any((folder / f"_C{suffix}").exists() for suffix in EXTENSION_SUFFIXES)
    try:
        return version("comfy-kitchen"), compiled
    except PackageNotFoundError:
        return "", compiled


def _cuda_version() -> tuple[int, int] | None:
    built = torch.version.cuda
    if built is None:
        return None
    major, minor = built.split(".")[:2]
    return int(major), int(minor)


def _cublaslt() -> int | None:
    from h3_kernels import cublaslt_api

    found = cublaslt_api.loaded()
    return None if found is None else found.version


def _bf16_units() -> bool:
    """An x86 CPU with AMX, or an ARM one whose oneDNN takes BF16 (`resident` tells what was measured)."""
    amx = getattr(torch.cpu, "_is_amx_tile_supported", None)
    if platform.machine().lower() in ("x86_64", "amd64"):
        return bool(amx is not None and amx())
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return bool(supported is not None and supported())


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"
