"""The few-step adapter as a file, in ComfyUI's Turbo layout (checkpoint-formats §6), and the pairs of such a file.

    diffusion_model.<layer>.lora_A.weight [r, K]    .lora_B.weight [n, r]  BF16    .alpha F32 []
    attn.qkv_proj: three pairs made one, A [3r, K], B [n, 3r] block-diagonal, alpha 3r; the others alpha r

Metadata says the rows' order, the name by which `checkpoint.lora.contracts` holds requests to 4 Euler forwards at
shifts 12 and 3, what was distilled, and the masters that it was distilled from. Read by `checkpoint.lora` as any other
adapter. Pairs are named as `student` names them, `<layer>.downs.<part>` and `<layer>.ups.<part>`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file

from h3runtime.checkpoint.model_name import MASTERS_KEY, NANO
from h3runtime.checkpoint.writer import write_file
from h3runtime.nano.training.turbo.schedule import NAME
from h3runtime.nano.training.turbo.side import FUSED, THIRDS

FILE: Final = f"{NAME}.safetensors"
PREFIX: Final = "diffusion_model."
DOWN, UP = ".lora_A.weight", ".lora_B.weight"
Pairs = Mapping[str, torch.Tensor]
"""A [r, K] and B [n, r] of every part of every layer."""


def write_adapter(pairs: Pairs, path: Path, masters: str = "") -> str:
    """masters: `Listing.trained` of what was distilled, if it is known. The file's SHA-256; OSError if the disk says
    no."""
    tensors: dict[str, torch.Tensor] = {}
    for layer in dict.fromkeys(name.rsplit(".", 2)[0] for name in pairs):
        down, up = _fused(*(_parts(pairs, f"{layer}.{kind}") for kind in ("downs", "ups")))
        tensors[f"{PREFIX}{layer}{DOWN}"] = down
        tensors[f"{PREFIX}{layer}{UP}"] = up
        tensors[f"{PREFIX}{layer}.alpha"] = torch.tensor(float(len(down)))
    metadata = {"converted_layout": "comfyui_minimax_h3", "name": NAME, "base_model": NANO}
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_file(path, tensors, metadata | ({MASTERS_KEY: masters} if masters else {}))


def read_pairs(path: Path) -> dict[str, torch.Tensor]:
    """fp32, of a file that `write_adapter` wrote: a training goes on from it, but for the rounding to BF16."""
    tensors = load_file(path)
    found: dict[str, torch.Tensor] = {}
    for key in (key for key in tensors if key.endswith(DOWN)):
        layer = key.removesuffix(DOWN)
        down, up = tensors[key].float(), tensors[layer + UP].float()
        count = THIRDS if layer.endswith(FUSED) else 1
        rows, rank = len(up) // count, len(down) // count
        for i in range(count):
            name = layer.removeprefix(PREFIX)
            found[f"{name}.downs.{i}"] = down[i * rank : (i + 1) * rank]
            found[f"{name}.ups.{i}"] = up[i * rows : (i + 1) * rows, i * rank : (i + 1) * rank]
    return found


def _parts(pairs: Pairs, owner: str) -> list[torch.Tensor]:
    found = (pairs.get(f"{owner}.{i}") for i in range(THIRDS))
    return [part.detach().cpu().bfloat16() for part in found if part is not None]


def _fused(downs: list[torch.Tensor], ups: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """A one under the other, B side by side with zeros around them."""
    (rows, rank), count = ups[0].shape, len(ups)
    up = ups[0].new_zeros(count, rows, count, rank)
    for i, part in enumerate(ups):
        up[i, :, i] = part
    return torch.cat(downs), up.view(count * rows, count * rank)
