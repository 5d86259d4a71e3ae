"""A tiny engine that can refine: an upscaler of random weights beside it, and requests that ask for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from h3runtime.checkpoint.synthetic.layouts import UpscalerSizes, upscaler_shapes
from h3runtime.checkpoint.writer import write_file
from h3runtime.core import GenerateSpec, RefinePass
from h3runtime.engine.refine_upscaler import UpscalerShelf
from h3runtime.engine.resident import ResidentEngine
from h3runtime.settings import Settings
from tests.e2e.conftest import MakeSpec

SIZES = UpscalerSizes(channels=16, embedding=8, blocks=(1, 1), kernel=3)
DENOISE = 0.3
Weights = dict[str, torch.Tensor]


def weights(sizes: UpscalerSizes = SIZES, seed: int = 0) -> Weights:
    """Small enough that what goes in is about as large as what comes out."""
    source = torch.Generator().manual_seed(seed)
    return {name: 0.1 * torch.randn(shape, generator=source) for name, shape in upscaler_shapes(sizes).items()}


def upscaler_file(path: Path, tensors: Weights | None = None, dtype: torch.dtype = torch.float16) -> Path:
    found = weights() if tensors is None else tensors
    write_file(path, {name: tensor.to(dtype).contiguous() for name, tensor in found.items()})
    return path


@contextmanager
def with_upscaler(engine: ResidentEngine, path: Path) -> Iterator[UpscalerShelf]:
    """The engine with the upscaler of that file instead of its own, if it has one."""
    shelf = UpscalerShelf(Settings(upscaler_path=path), engine.device)
    shelf.judge(engine.paths.video_vae, engine.models.vaes.video.config.latent_channels)
    before = engine.upscaler
    engine.upscaler = engine.estimator.upscaler = shelf
    try:
        yield shelf
    finally:
        engine.upscaler = engine.estimator.upscaler = before


def refined(make_spec: MakeSpec, scale: float = 1.5, steps: int = 2, **changes: object) -> GenerateSpec:
    """A request on 64x64, whose clip is 96x96 or as `scale` says."""
    side = round(64 * scale / 32) * 32
    refine = RefinePass(64, 64, scale, steps, DENOISE)
    asked = {"width": side, "height": side, "frames": 5, "steps": 1, "refine": refine, **changes}
    return make_spec(**asked)
