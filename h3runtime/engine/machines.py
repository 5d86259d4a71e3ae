"""Machines that can be planned for without being at hand: their memory and their kind, each number with its source.

A plan for one of these is the arithmetic of loading and admission over these facts; `here` is the machine itself. What
libraries a machine has is what the project's image installs on it. Data only. Read by `planning` and by the command
line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from h3runtime.engine.memory_budget import DeviceKind, DeviceMemory
from h3runtime.errors import InvalidRequest, Offence, invalid
from h3runtime.settings import GIB, MIB

HERE: Final = "here"


@dataclass(frozen=True, slots=True)
class Files:
    """Which published files suit a machine, as `published_files` names their formats, and why."""

    transformer: str
    text_encoder: str
    video_vae: str
    partitions: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Machine:
    """name: as `plan --device` has it; aliases: other words for it. capability: of the GPU. total: bytes that CUDA (or,
    where memory is shared, the kernel) tells. taken: of these, what is not free on an idle machine. files: for it.
    sage2: whether the image for it has SageAttention 2. sources: of each number."""

    name: str
    title: str
    capability: tuple[int, int]
    kind: DeviceKind
    total: int
    taken: int
    files: Files
    aliases: tuple[str, ...] = ()
    sage2: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def memory(self) -> DeviceMemory:
        """Idle, as an engine would find it."""
        return DeviceMemory(self.kind, self.total, self.total - self.taken)

    @property
    def architecture(self) -> str:
        return f"SM {self.capability[0]}.{self.capability[1]}"


def _sources(**told: str) -> Mapping[str, str]:
    return MappingProxyType(told)


BOTH: Final = ("fl2va", "ref2va")
MACHINES: Final = (
    Machine(
        name="gb10",
        title="DGX Spark (GB10), 128 GB of unified LPDDR5X",
        capability=(12, 1),
        kind="integrated",
        total=128_501_256_192,
        taken=6_910_320_640,
        files=Files("pruned_nvfp4", "nvfp4_awq", "fp16", BOTH, "the smallest there are, multiplied as they are stored"),
        aliases=("spark", "dgx-spark"),
        sage2=True,
        sources=_sources(
            total="sysinfo of a DGX Spark, 119.68 GiB of its 128 GB (leptonai/gpud #1170)",
            taken="in use on that machine, page cache left out: its system and what ran there",
        ),
    ),
    Machine(
        name="rtx-pro-6000",
        title="RTX PRO 6000 Blackwell, 96 GB",
        capability=(12, 0),
        kind="discrete",
        total=int(94.97 * GIB),
        taken=0,
        files=Files("pruned_nvfp4", "nvfp4_awq", "fp16", BOTH, "the smallest there are, multiplied as they are stored"),
        aliases=("96gb",),
        sources=_sources(
            total="what CUDA tells of 97,887 MiB (antirez/ds4 #431: total=94.97 GiB)",
            taken="a card that nothing else uses",
        ),
    ),
    Machine(
        name="5090",
        title="GeForce RTX 5090, 32 GB",
        capability=(12, 0),
        kind="discrete",
        total=33_645_199_360,
        taken=0,
        files=Files(
            "pruned_nvfp4", "nvfp4_awq", "fp16", BOTH[:1], "one transformer fits; --partition ref2va lists the other"
        ),
        aliases=("rtx-5090", "32gb"),
        sources=_sources(
            total="what PyTorch tells on Linux, 31.33 GiB of 32,607 MiB (vram_total of a public ComfyUI log)",
            taken="a card without a display",
        ),
    ),
    Machine(
        name="h200",
        title="H200, 141 GB",
        capability=(9, 0),
        kind="discrete",
        total=150_109_880_320,
        taken=0,
        files=Files("pruned_bf16", "int8_convrot", "fp16", BOTH, "exact transformers fit, and there is no FP4 unit"),
        aliases=(),
        sources=_sources(
            total="what CUDA tells of 143,771 MiB, 139.80 GiB (benchmarks/LOG.md)",
            taken="a card that nothing else uses",
        ),
    ),
)

CONTEXT: Final = 780 * MIB
"""What a CUDA context and the kernels that libraries load take of a GPU, beside PyTorch's allocator: on an H200 619 MiB
at first, 699 once all is loaded, 779 after a clip (benchmarks/LOG.md). Other GPUs were not at hand."""


def machine_named(name: str) -> Machine:
    """InvalidRequest that lists the names if there is none such."""
    found = next((m for m in MACHINES if name.lower() in (m.name, *m.aliases)), None)
    if found is None:
        raise unknown_machine(name)
    return found


def unknown_machine(name: str) -> InvalidRequest:
    legal = ", ".join([HERE, *(" or ".join((m.name, *m.aliases)) for m in MACHINES)])
    return invalid([Offence("device", f"there is no machine {name!r}", legal)])
