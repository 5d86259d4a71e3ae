"""The few-step adapter as a file, in ComfyUI's Turbo layout (checkpoint-formats §6).

    diffusion_model.<layer>.lora_A.weight [r, K]    .lora_B.weight [n, r]  BF16    .alpha F32 []
    attn.qkv_proj: three pairs made one, A [3r, K], B [n, 3r] block-diagonal, alpha 3r; the others alpha r

Metadata says the rows' order, the name by which `checkpoint.lora.contracts` holds requests to 4 Euler forwards at
shifts 12 and 3, and what was distilled. Read by `checkpoint.lora` as any other adapter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch

from h3runtime.checkpoint.writer import write_file
from h3runtime.nano.training.turbo.schedule import NAME
from h3runtime.nano.training.turbo.side import SideLinear
from h3runtime.nano.training.turbo.student import Student

FILE: Final = f"{NAME}.safetensors"
PREFIX: Final = "diffusion_model."


def write_adapter(student: Student, path: Path) -> str:
    """The pairs as they are now. Its SHA-256; OSError if the disk says no."""
    tensors: dict[str, torch.Tensor] = {}
    for layer, side in student.sides.items():
        down, up = _fused(side)
        tensors[f"{PREFIX}{layer}.lora_A.weight"] = down
        tensors[f"{PREFIX}{layer}.lora_B.weight"] = up
        tensors[f"{PREFIX}{layer}.alpha"] = torch.tensor(float(len(down)))
    metadata = {"converted_layout": "comfyui_minimax_h3", "name": NAME, "base_model": "h3-nano"}
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_file(path, tensors, metadata)


def _fused(side: SideLinear) -> tuple[torch.Tensor, torch.Tensor]:
    """A one under the other, B side by side with zeros around them; BF16 on the CPU."""
    downs, ups = ([part.detach().cpu().bfloat16() for part in parts] for parts in (side.downs, side.ups))
    down, rows = torch.cat(downs), len(ups[0])
    up = down.new_zeros(rows * len(ups), len(down))
    for i, part in enumerate(ups):
        up[i * rows : (i + 1) * rows, i * side.rank : (i + 1) * side.rank] = part
    return down, up
