"""What `diagnostics` returns about one run: step times, a hash of the final latents, rows, inputs, peaks.

An ordinary request goes through the same calls and keeps nothing: no copy, no device event, no clock reading.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from h3runtime.core import GenerateSpec, Latents, PackedLayout
from h3runtime.denoiser.sampler import Step
from h3runtime.engine.extras import steps_path


class Diagnosis:
    """Fed with each finished step; `report` is None unless the request asked.

    latents: with `{"latents": true}`, the packed state before each step and the estimate at it (dit-contract §5.2).
    """

    def __init__(self, spec: GenerateSpec) -> None:
        self._spec = spec
        self._times: list[float] = []
        self.latents: dict[str, torch.Tensor] = {}
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
            self.latents[f"step{step.index}.x"] = step.x.cpu()
            self.latents[f"step{step.index}.denoised"] = step.denoised.cpu()

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
        if self.latents:
            found["step_latents"] = steps_path(self._spec.output).name
        return found


def sha256_of_latents(latents: Latents) -> str:
    """Of the fp32 bytes, video then audio, each in its own axis order."""
    digest = hashlib.sha256()
    for stream in (latents.video, latents.audio):
        digest.update(stream.float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
