"""Which backend `auto` takes on which architecture: one row each, best first, with where the order comes from.

A row only orders; whether a backend of it can run is its own word, and an experimental one is never taken by `auto`.
Rows for an ordinary request are of 16-bit arithmetic (service-contract, `quality` absent: the server's default, which
needs no evidence) but where the issue of an architecture names another. Read by `select`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from h3runtime.backends.attention.facts import DeviceFacts


@dataclass(frozen=True, slots=True)
class Preference:
    """capability: of a CUDA device; None for the CPU and for whatever has no row. source: of the order."""

    capability: tuple[int, int] | None
    backends: tuple[str, ...]
    source: str


PLAIN: Final = Preference(None, ("sdpa",), "PyTorch's own; nothing is known to be better on this device")
PREFERENCES: Final = (
    Preference(
        (9, 0),
        ("fa4", "cudnn_sdpa", "sdpa"),
        "benchmarks/LOG.md, one H200, S = 37,810: 61.1, 72.8 and 72.7 ms in BF16; the last is PyTorch's choice",
    ),
    Preference(
        (10, 0),
        ("fa4", "cudnn_sdpa", "sdpa"),
        "not measured; flash-attn-4's own kernels for SM 10.x, then cuDNN's, as on SM 9.0",
    ),
    Preference(
        (10, 3),
        ("fa4", "cudnn_sdpa", "sdpa"),
        "not measured; flash-attn-4's own kernels for SM 10.x, then cuDNN's, as on SM 9.0",
    ),
    Preference(
        (12, 0),
        ("cudnn_sdpa", "fa4", "sdpa"),
        "not measured; flash-attn-4 runs its SM 8.0 arithmetic on SM 12.x, so cuDNN's comes first",
    ),
    Preference(
        (12, 1),
        ("sage2", "cudnn_sdpa", "fa4", "sdpa"),
        "performance.md, GB10 with SageAttention 2: the reference point of the field, 62 % of a block",
    ),
)


def preference(device: DeviceFacts) -> Preference:
    return next((row for row in PREFERENCES if row.capability == device.capability and device.kind == "cuda"), PLAIN)
