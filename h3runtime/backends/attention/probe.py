"""One small real call of a backend before it is used, held against fp32.

A package that imports, a kernel that compiles and an answer that is a number are three things; a kernel that a build
left out returns whatever memory held. Called by `select` when a backend is chosen, never when it is only listed.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import functional as F

from h3runtime.backends.attention.base import Candidate

ROWS: Final = 331
"""No multiple of a tile: the ragged end is where kernels go wrong."""
HEADS: Final = 2


def why_its_call_fails(backend: Candidate, device: torch.device, head_dim: int) -> str | None:
    """None if `backend` gives softmax(q k^T / sqrt(D)) v within its tolerance on strided views of random numbers.

    A full or lost device is no fault of a backend and is left to the caller.
    """
    qkv = torch.randn(1, ROWS, 3, HEADS, head_dim, generator=torch.Generator().manual_seed(0))
    q, k, v = qkv.to(device, torch.bfloat16).unbind(2)
    try:
        got = backend.call(q, k, v)
        error = relative_error(got, reference(q, k, v))
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as fault:
        return f"its first call failed: {type(fault).__name__}: {_first_line(fault)}"
    if not error <= backend.tolerance:
        return f"its first call was wrong: relative error {error:.3g}, at most {backend.tolerance:g} is right"
    return None


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """[B, S, H, D] in fp32 from the rounded inputs."""
    q, k, v = (x.float().transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def relative_error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """L2; NaN if anything is."""
    return float((got.float() - wanted).norm() / wanted.norm())


def _first_line(fault: Exception) -> str:
    return str(fault).strip().partition("\n")[0][:200] or "no message"
