"""What a job may leave beside its clip: the final latents, and every step's latents for diagnostics.

Written into the scratch folder before the clip is decoded and renamed after it is published, so that a job which fails
leaves nothing and a full disk is met before the clip has its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from h3runtime.core import STEPS_SUFFIX, GenerateSpec, Latents
from h3runtime.engine.latents_file import latents_path, write_latents, write_tensors


def steps_path(output: Path) -> Path:
    """Beside the clip, named after it."""
    return output.with_name(output.name + STEPS_SUFFIX)


@dataclass(frozen=True, slots=True)
class Extras:
    """`moves`: staged file -> final name. `latents`: the final name of the saved latents, None if not asked for."""

    moves: tuple[tuple[Path, Path], ...]
    latents: Path | None

    @classmethod
    def of(cls, spec: GenerateSpec, latents: Latents, steps: Mapping[str, torch.Tensor]) -> Extras:
        """Stage what the request asks for; OSError where the disk says no."""
        moves = []
        if spec.save_latents:
            target = latents_path(spec.output)
            moves.append((spec.scratch / target.name, target))
            write_latents(spec.scratch / target.name, latents, spec.request, spec.loras)
        if steps:
            target = steps_path(spec.output)
            moves.append((spec.scratch / target.name, target))
            write_tensors(spec.scratch / target.name, steps)
        return cls(tuple(moves), latents_path(spec.output) if spec.save_latents else None)

    def publish(self) -> None:
        for staged, target in self.moves:
            staged.replace(target)
