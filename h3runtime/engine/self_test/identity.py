"""Everything that a known answer may depend on, as plain values: the machine, its libraries, our own source, and what
is loaded. Another one of any of them, and everything is asked again. Read by `proving`, which makes a name of it."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

from h3runtime.backends.attention.facts import DeviceFacts

DRIVER: Final = Path("/proc/driver/nvidia/version")
OURS: Final = ("h3_kernels", "h3runtime.backends", "h3runtime.quant", "h3runtime.engine.self_test")
SOURCES: Final = frozenset({".py", ".cu", ".cuh", ".so"})
PROCESSOR: Final = Path("/proc/cpuinfo")


def identity_of(facts: DeviceFacts, loaded: Mapping[str, Any]) -> dict[str, Any]:
    """loaded: checkpoints, sizes and settings that count."""
    return {
        "device": facts.name if facts.kind == "cuda" else _processor(),
        "capability": facts.told_capability,
        "driver": _driver() if facts.kind == "cuda" else "",
        "torch": facts.torch,
        "cuda": str(torch.version.cuda),
        "cudnn": facts.cudnn,
        "libraries": dict(facts.libraries),
        "parts": sorted(facts.parts),
        "source": source_hash(),
        **loaded,
    }


def _driver() -> str:
    """As the kernel module tells it; without that, the CUDA that the driver can do."""
    try:
        found = re.search(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", DRIVER.read_text())
    except OSError:
        found = None
    if found is not None:
        return found[1]
    library: Any = torch._C
    return f"CUDA {library._cuda_getDriverVersion()}"


def _processor() -> str:
    try:
        found = re.search(r"^(?:model name|CPU part)\s*:\s*(.+)$", PROCESSOR.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return f"{found[1] if found else platform.processor()} {torch.backends.cpu.get_cpu_capability()}"


@cache
def source_hash() -> str:
    """Of our kernels, the backends that call them, and the questions themselves."""
    whole = sha256()
    for file in sorted(_files(OURS)):
        whole.update(file.name.encode())
        whole.update(file.read_bytes())
    return whole.hexdigest()[:16]


def _files(packages: Iterable[str]) -> Iterable[Path]:
    for package in packages:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            yield from (file for file in Path(folder).rglob("*") if file.suffix in SOURCES)
