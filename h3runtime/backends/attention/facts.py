"""What a device and the libraries around it say of themselves, once, as plain values.

Whether a backend can run is decided from these alone, so that every decision is tested with recorded facts of machines
that aren't at hand. Nothing is imported to be listed: packages are looked for by their files and their metadata. Fed by
the driver and the file system in `device_facts`; read by each backend's `why_unavailable` and by `policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import torch

PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "sageattention": "sageattention",
        "sageattn3": "sageattn3",
        "flash_attn": "flash-attn-4",
        "comfy_kitchen": "comfy-kitchen",
        "cudnn": "nvidia-cudnn-frontend",
        "triton": "triton",
        "h3_kernels": "h3runtime",
    }
)
"""Import name -> the distribution whose version counts. `flash_attn` is a namespace that others share: it is there
only with the module that flash-attn-4 brings."""
PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sageattention": ("_qattn_sm80", "_qattn_sm89", "_qattn_sm90", "_fused"),
        "flash_attn": ("cute/interface",),
        "comfy_kitchen": ("backends/cuda/_C",),
        "h3_kernels": ("attention8", "sparse", "sparse8"),
    }
)
"""Modules inside a package that it may lack, by path: what was compiled for another machine, or isn't of this version.
`fp4attn_cuda` and `fp4quant_cuda` of SageAttention 3 lie beside it, at the top."""
ALONE = ("fp4attn_cuda", "fp4quant_cuda")


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """kind: `cpu` or `cuda`. capability: of a CUDA device, (9, 0) for Hopper. torch: its version. cudnn: as a number,
    91900 for 9.19. libraries: version by import name, "" where it isn't known. parts: `package/path` of what of `PARTS`
    is there, and the names of `ALONE`."""

    kind: str
    name: str = "cpu"
    capability: tuple[int, int] | None = None
    torch: str = ""
    cudnn: int | None = None
    libraries: Mapping[str, str] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()

    @property
    def told_capability(self) -> str:
        """`SM 9.0`."""
        return "no CUDA device" if self.capability is None else f"SM {self.capability[0]}.{self.capability[1]}"

    def why_no_cuda(self) -> str | None:
        return None if self.kind == "cuda" else f"needs a CUDA device, and this is {self.kind}"

    def why_not_on(self, capabilities: tuple[tuple[int, int], ...]) -> str | None:
        """Why none of `capabilities` is this device's."""
        if (no_cuda := self.why_no_cuda()) or self.capability in capabilities:
            return no_cuda
        known = ", ".join(f"{major}.{minor}" for major, minor in capabilities)
        return f"has a kernel for SM {known} only, and this is {self.told_capability}"

    def why_without(self, package: str, *needed: str) -> str | None:
        """Why `package`, with the parts `needed`, isn't there."""
        if package not in self.libraries:
            return f"{PACKAGES[package]} is not installed"
        missing = [part for part in needed if f"{package}/{part}" not in self.parts]
        if missing:
            return f"{self.told(package)} was built without {', '.join(missing)}"
        return None

    def told(self, package: str) -> str:
        """`comfy-kitchen 0.2.40`."""
        return f"{PACKAGES[package]} {self.libraries.get(package, '')}".rstrip()

    def major(self, package: str) -> int | None:
        """First number of a version; None where it isn't known."""
        first = self.libraries.get(package, "").partition(".")[0]
        return int(first) if first.isdigit() else None


def device_facts(device: torch.device) -> DeviceFacts:
    """Of `device`, as it is now; imports none of the packages."""
    libraries, parts = _libraries()
    if device.type != "cuda":
        return DeviceFacts(device.type, device.type, None, str(torch.__version__), None, libraries, parts)
    return DeviceFacts(
        kind="cuda",
        name=torch.cuda.get_device_name(device),
        capability=torch.cuda.get_device_capability(device),
        torch=str(torch.__version__),
        cudnn=_cudnn(),
        libraries=libraries,
        parts=parts,
    )


def _cudnn() -> int | None:
    version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return version


def _libraries() -> tuple[dict[str, str], frozenset[str]]:
    libraries: dict[str, str] = {}
    parts = {name for name in ALONE if find_spec(name) is not None}
    for package, distribution in PACKAGES.items():
        folders = _folders(package)
        found = {part for part in PARTS.get(package, ()) if any(_is_there(folder / part) for folder in folders)}
        if not folders or (package == "flash_attn" and not found):
            continue
        libraries[package] = _version(distribution)
        parts |= {f"{package}/{part}" for part in found}
    return libraries, frozenset(parts)


def _folders(package: str) -> tuple[Path, ...]:
    """Where a package lies, without importing it."""
    spec = find_spec(package)
    return () if spec is None else tuple(Path(folder) for folder in spec.submodule_search_locations or ())


def _is_there(module: Path) -> bool:
    return any(module.with_name(module.name + suffix).is_file() for suffix in (".py", *EXTENSION_SUFFIXES))


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
