"""What is taken on which GPU architecture: one row each, every entry with where it comes from.

    attention     what `auto` tries, best first                          `attention.select`
    sage_layout   how q, k and v go into SageAttention with `auto`       `attention.select`
    nvfp4         linear backends that `auto` tries for layers stored as NVFP4, before the exact ones; none: it is exact
                                                                         `linear.select`
    producers     what `auto` tries between the products, best first     `fused.select`
    switches      settings of the NVFP4 path that are worth turning on   the image of a Spark has them on
    compiled      what the CUDA C++ kernels are compiled for             `h3_kernels.cuda_compiler`, the image

An entry only orders: whether a backend can run is its own word, and an experimental one is never taken by `auto`. A row
for an ordinary request is of 16-bit attention (service-contract, `quality` absent: the server's default, which needs no
evidence) but where the issue of an architecture names another. "Not measured" is said where nothing was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

T_co = TypeVar("T_co", covariant=True)
Capability = tuple[int, int]
QkvLayout = Literal["strided_nhd", "contiguous_nhd", "contiguous_hnd"]


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T_co]):
    """source: where `value` comes from, for people; shown wherever `auto` tells why."""

    value: T_co
    source: str


@dataclass(frozen=True, slots=True)
class Row:
    """capability: of a CUDA device; None for the CPU and for whatever has no row. devices: that have it."""

    capability: Capability | None
    devices: str
    attention: Sourced[tuple[str, ...]]
    sage_layout: Sourced[QkvLayout]
    nvfp4: Sourced[tuple[str, ...]]
    producers: Sourced[tuple[str, ...]]
    switches: Sourced[tuple[str, ...]]
    compiled: Sourced[str | None]

    @property
    def told(self) -> str:
        """`SM 9.0`."""
        return "no CUDA device" if self.capability is None else f"SM {self.capability[0]}.{self.capability[1]}"


_VIEWS: Final[Sourced[QkvLayout]] = Sourced(
    "strided_nhd", "SageAttention's kernels take strides, so nothing is copied and no number changes; not measured"
)
_TRITON: Final = Sourced(
    ("triton", "torch"), "not measured; fewer passes over memory, compiled by Triton for any SM from 8.0 on"
)
_AS_COMFYUI: Final = Sourced(
    ("nvfp4",),
    "what ComfyUI does with these files from SM 10.0 on (checkpoint-formats §8); not run by us, held to its definition "
    "by the self-test",
)
_DATA_CENTRE: Final = Sourced(
    ("fa4", "cudnn_sdpa", "sdpa"),
    "not measured; flash-attn-4's own kernels for SM 10.x, then cuDNN's, as on SM 9.0",
)
_NO_SWITCH: Final[Sourced[tuple[str, ...]]] = Sourced((), "not measured")

PLAIN: Final = Row(
    None,
    "CPUs, and GPUs without a row",
    attention=Sourced(("sdpa",), "PyTorch's own; nothing is known to be better on this device"),
    sage_layout=_VIEWS,
    nvfp4=Sourced((), "there is no row for this device; nvfp4 can be asked for"),
    producers=Sourced(
        ("triton", "cpu", "torch"), "benchmarks/LOG.md, 2026-11-30, a CPU: 0.265 s of `cpu`, 0.301 of `torch`, least"
    ),
    switches=Sourced((), "there is no FP4 product to feed"),
    compiled=Sourced(None, "no kernels are written for it"),
)
ROWS: Final = (
    Row(
        (9, 0),
        "H100, H200, GH200",
        attention=Sourced(
            ("fa4", "cudnn_sdpa", "sdpa"),
            "benchmarks/LOG.md, one H200, S = 37,810: 61.1, 72.8 and 72.7 ms in BF16; the last is PyTorch's choice",
        ),
        sage_layout=_VIEWS,
        nvfp4=Sourced((), "FP4 products need SM 10.0 (checkpoint-formats §8)"),
        producers=Sourced(
            ("triton", "torch"), "performance.md, one H200: norm and modulation 1.32 -> 0.40 ms, SwiGLU 2.97 -> 0.93"
        ),
        switches=Sourced((), "there is no FP4 product to feed"),
        compiled=Sourced("90a", "compiled and run on an H200 (benchmarks/LOG.md)"),
    ),
    Row(
        (10, 0),
        "B200, GB200",
        attention=_DATA_CENTRE,
        sage_layout=_VIEWS,
        nvfp4=_AS_COMFYUI,
        producers=_TRITON,
        switches=_NO_SWITCH,
        compiled=Sourced("100a", "compiled, not run; the conversion to E2M1 needs the `a`"),
    ),
    Row(
        (10, 3),
        "B300, GB300",
        attention=_DATA_CENTRE,
        sage_layout=_VIEWS,
        nvfp4=Sourced(
            (),
            "one of cuBLAS's kernels for NVFP4 may be wrong on SM 10.3 (release notes of CUDA 13.4, known issues): ask "
            "for nvfp4_lt, which passes it over, or for nvfp4, which takes what the library names",
        ),
        producers=_TRITON,
        switches=_NO_SWITCH,
        compiled=Sourced("103a", "compiled, not run; the conversion to E2M1 needs the `a`"),
    ),
    Row(
        (12, 0),
        "RTX PRO 6000, RTX 5090",
        attention=Sourced(
            ("cudnn_sdpa", "fa4", "sdpa"),
            "not measured; flash-attn-4 runs its SM 8.0 arithmetic on SM 12.x, so cuDNN's comes first",
        ),
        sage_layout=_VIEWS,
        nvfp4=_AS_COMFYUI,
        producers=_TRITON,
        switches=_NO_SWITCH,
        compiled=Sourced("120a", "compiled, not run; FP4 arithmetic on SM 12.x needs the `a`"),
    ),
    Row(
        (12, 1),
        "DGX Spark (GB10)",
        attention=Sourced(
            ("sage2", "cudnn_sdpa", "fa4", "sdpa"),
            "performance.md, GB10 with SageAttention 2: the reference point of the field, 62 % of a block",
        ),
        sage_layout=Sourced("strided_nhd", "performance.md, GB10: 3.6 % less than copies; reported, not run by us"),
        nvfp4=Sourced(
            ("nvfp4",),
            "performance.md, GB10: the reference point of the field multiplies these files so, as ComfyUI does; not "
            "run by us, held to its definition by the self-test",
        ),
        producers=_TRITON,
        switches=Sourced(
            ("nvfp4_modulate_fusion", "nvfp4_swiglu_fusion", "nvfp4_fc2_lt_splitk1"),
            "performance.md, GB10: 0.5 %, 4.1 % and, at 37,810 rows alone, 8.2 % less; reported, not run by us",
        ),
        compiled=Sourced("121a", "compiled, not run; FP4 arithmetic on SM 12.x needs the `a`"),
    ),
)


def row_of(kind: str, capability: Capability | None) -> Row:
    """kind: `cuda` or another. The row of that device, or `PLAIN`."""
    return next((row for row in ROWS if kind == "cuda" and row.capability == capability), PLAIN)
