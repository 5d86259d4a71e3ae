"""Weights as pieces of at most 15 MB, from which a later run goes on.

Short runs on borrowed machines bring little back at a time, so what is saved is small files: fp32 tensors in
safetensors, `NAME-1-of-N`, each replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

PIECE_BYTES: Final = 15_000_000


def save_pieces(tensors: Mapping[str, torch.Tensor], folder: Path, name: str) -> list[Path]:
    """Write all tensors in as many pieces as needed; the files."""
    folder.mkdir(parents=True, exist_ok=True)
    groups: list[dict[str, torch.Tensor]] = [{}]
    held = 0
    for key, value in tensors.items():
        size = value.numel() * value.element_size()
        if held and held + size > PIECE_BYTES:
            groups.append({})
            held = 0
        groups[-1][key] = value.contiguous()
        held += size
    paths = []
    for index, group in enumerate(groups, 1):
        path = folder / f"{name}-{index}-of-{len(groups)}.safetensors"
        temporary = path.with_suffix(".partial")
        save_file(group, temporary)
        temporary.replace(path)
        paths.append(path)
    return paths


def load_pieces(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """All tensors of the pieces in `folder`. FileNotFoundError if one is missing."""
    found = sorted(folder.glob(f"{name}-*-of-*.safetensors"))
    wanted = int(found[0].stem.rsplit("-", 1)[1]) if found else 1
    if len(found) != wanted:
        raise FileNotFoundError(f"{folder}: {len(found)} of {wanted} pieces of {name}")
    tensors: dict[str, torch.Tensor] = {}
    for path in found:
        tensors |= load_file(path)
    return tensors
