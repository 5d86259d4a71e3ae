"""What `diagnostics` returns about one run: step times, a hash of the final latents, rows, inputs, peaks.

An ordinary request goes through the same calls and keeps nothing: no copy, no device event, no clock reading.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from h3runtime.core import GenerateSpec, Latents, PackedLayout
from h3runtime.denoiser.sampler import Step


class Diagnosis:
    """Fed with each finished step; `report` is None unless the request asked."""

    def __init__(self, spec: GenerateSpec) -> None:
        self._spec = spec
        self._times: list[float] = []
        self._latents: dict[str, torch.Tensor] = {}
        self._last = 0.0

    def begin(self) -> None:
        """Sampling starts now."""
        self._last = time.monotonic()

    def step(self, step: Step) -> None:
        """A step is done and known to be finite, so the host clock has waited for the device."""
        if not self._spec.diagnostics:
            return
        now = time.monotonic()
        self._times.append(now - self._last)
        self._last = now
        if self._spec.diagnostic_latents:
            self._latents[f"step{step.index}.x"] = step.x.cpu()
            self._latents[f"step{step.index}.denoised"] = step.denoised.cpu()

    def report(
        self, latents: Latents, layout: PackedLayout, inputs: Sequence[Mapping[str, Any]], memory: Mapping[str, int]
    ) -> dict[str, Any] | None:
        if not self._spec.diagnostics:
            return None
        found: dict[str, Any] = {
            "step_seconds": self._times,
            "latents_sha256": sha256_of_latents(latents),
            "rows": {"total": layout.rows, "text": layout.text_rows},
            "inputs": list(inputs),
            "memory": dict(memory),
        }
        if self._latents:
            found["step_latents"] = self._write_steps().name
        return found

    def _write_steps(self) -> Path:
        """Packed latents of every step, beside the clip: x before it and the estimate at x (dit-contract §5.2)."""
        path = self._spec.output.with_name(self._spec.output.name + ".steps.safetensors")
        save_file(self._latents, path)
        return path


def sha256_of_latents(latents: Latents) -> str:
    """Of the fp32 bytes, video then audio, each in its own axis order."""
    digest = hashlib.sha256()
    for stream in (latents.video, latents.audio):
        digest.update(stream.float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
