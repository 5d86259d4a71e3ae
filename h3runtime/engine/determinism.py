"""Process-wide numeric switches: set once when an engine starts, asserted ahead of every run.

ComfyUI is the oracle for every number, and TF32 alone moves a result by 1e-3, so no switch is left to a default.
"""

from __future__ import annotations

import torch


def pin() -> None:
    """No TF32, no algorithm search, full fp32 matmuls (architecture.md, Determinism)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.set_float32_matmul_precision("highest")


def assert_pinned() -> None:
    """Fails where a library has moved a switch behind our back."""
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cudnn.benchmark and torch.backends.cudnn.deterministic
    assert not torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
    assert not torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction
