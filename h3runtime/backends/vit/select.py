"""The families of ViT steps and the choice among them. Read by `engine`, once, when it starts."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from h3runtime.backends.select import NONE_FAILED, choose, listing
from h3runtime.backends.vit.base import VitSteps
from h3runtime.backends.vit.cpu import CpuSteps
from h3runtime.backends.vit.definition import TorchSteps
from h3runtime.backends.vit.triton import TritonSteps
from h3runtime.core import BackendChoice


def step_families() -> tuple[VitSteps, ...]:
    """All there are, the one that `auto` prefers first."""
    return (TritonSteps(), CpuSteps(), TorchSteps())


def choose_steps(name: str, device: torch.device, failed: Mapping[str, str] = NONE_FAILED) -> tuple[VitSteps, str]:
    """The family called `name` (or `auto`) and why; InvalidRequest or BackendUnavailable, see `backends.select`."""
    return choose("vae_fused", step_families(), name, device, failed)


def steps_choice(
    chosen: VitSteps, why: str, device: torch.device, failed: Mapping[str, str] = NONE_FAILED
) -> BackendChoice:
    """What `/ready` shows."""
    return listing(step_families(), chosen.name, why, device, failed)
