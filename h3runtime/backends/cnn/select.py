"""The CNN steps that go with a family of ViT steps: one choice is made for the video VAE, by `backends.vit.select`."""

from __future__ import annotations

from h3runtime.backends.cnn.base import CnnSteps
from h3runtime.backends.cnn.definition import TorchSteps
from h3runtime.backends.cnn.triton import TritonSteps


def steps_named(name: str) -> CnnSteps:
    """Of a family that was chosen, of any name of `vit.select.step_families`; `cpu` leaves these to the definition."""
    return TritonSteps() if name == TritonSteps.name else TorchSteps()
