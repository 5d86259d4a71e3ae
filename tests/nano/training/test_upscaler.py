"""The upscaler's training: it begins as a plain resize, improves on it, and its file is of the published layout."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from h3runtime.checkpoint.synthetic import layouts
from h3runtime.nano import model
from h3runtime.nano.training import upscaler as training
from h3runtime.nano.training.upscaler_pixels import PixelLoss
from h3runtime.nano.training.upscaler_start import initialise
from h3runtime.nano.training.video_vae import decode_clips, started
from h3runtime.vae.upscaler import LatentUpscaler
from h3runtime.vae.upscaler_config import UpscalerConfig

CPU = torch.device("cpu")
TINY = training.UpscalerTraining(
    clips=2,
    held=1,
    at_once=2,
    frames=5,
    pairs=((32, 64),),
    batch=1,
    warm=2,
    noise=0.0,
    pixels=0.0,
    wait_steps=1,
    report_seconds=0.0,
)


@pytest.fixture(scope="module")
def views() -> training.Views:
    """Smooth latents, and what they are seen from half as far."""
    large = F.interpolate(torch.randn(3, 24, 2, 3, 3, generator=torch.Generator().manual_seed(0)), size=(2, 8, 8))
    return {128: large, 64: F.avg_pool3d(large, (1, 2, 2))}


def test_it_is_small():
    assert sum(math.prod(s) for s in layouts.upscaler_shapes(model.UPSCALER).values()) <= 250_000


@torch.no_grad()
def test_training_begins_with_a_plain_resize(views: training.Views):
    upscaler = model.upscaler()
    initialise(upscaler, 0)
    plain = F.interpolate(views[64], size=(2, 6, 6), mode="trilinear", align_corners=False)
    made = upscaler(views[64], (6, 6), 1.5)
    assert float((made - plain).norm() / plain.norm()) < 0.05


def test_steps_improve_on_it(views: training.Views):
    recipe = training.UpscalerTraining(held=1, pairs=((64, 128),), batch=2, noise=0.0, rate=1e-3)
    upscaler = model.upscaler()
    initialise(upscaler, 0)
    generator = torch.Generator().manual_seed(0)
    optimiser = torch.optim.AdamW(upscaler.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        optimiser.zero_grad()
        loss = training._loss(upscaler, views, recipe, (64, 128), generator)
        torch.autograd.backward(loss)
        optimiser.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-2:]) < 0.9 * sum(losses[:2])
    assert all(p.grad is not None for p in upscaler.parameters())


def test_a_run_writes_a_master_of_the_published_layout_and_goes_on(tmp_path: Path):
    said: list[str] = []
    vae = started(CPU, 0, None)
    training.train_upscaler(tmp_path, 0.0, CPU, vae, say=said.append, recipe=TINY)
    tensors = load_file(tmp_path / "upscaler.safetensors")
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    assert shapes == layouts.upscaler_shapes(model.UPSCALER)
    assert {t.dtype for t in tensors.values()} == {torch.float16}
    upscaler = LatentUpscaler(UpscalerConfig.from_shapes(shapes))
    upscaler.load_state_dict(tensors)
    again = training._begin(tmp_path, 1)
    assert all(torch.equal(v.half(), tensors[n]) for n, v in again.state_dict().items())
    assert "32 to 64: error" in said[-1]


SEEN = replace(TINY, frames=22, pixels=1.0, decoded_from=0.0, decoded=1)


def test_pixels_are_those_that_the_runtime_decodes_and_move_the_upscaled_latents_alone():
    vae = started(CPU, 0, None)
    vae.latents_mean.normal_(generator=torch.Generator().manual_seed(1))
    vae.latents_std.uniform_(0.5, 2.0, generator=torch.Generator().manual_seed(2))
    views, seen = training.make_views(vae, SEEN, 0, CPU), PixelLoss.of(vae, training.scenes_of(SEEN, 0), SEEN)
    index, made = torch.tensor([1]), views[64][1:].float().requires_grad_()
    loss = seen(made, index, 64)
    torch.autograd.backward(loss)
    assert made.grad is not None and float(made.grad.abs().sum()) > 0
    assert all(value.grad is None for value in vae.parameters())
    # The scene as drawn is what they are compared with: its own decoded pixels put in its place leave 8-bit rounding.
    own = decode_clips(vae, (views[64].float() * seen.std + seen.mean))
    exact = replace(seen, frames={64: own})(made.detach(), index, 64)
    assert float(exact) < 0.02 * float(loss.detach())


def test_a_run_may_see_pixels_and_leaves_out_sides_that_are_decoded_in_tiles(tmp_path: Path):
    vae, said = started(CPU, 0, None), []
    recipe = replace(SEEN, pairs=((32, 64), (32, 320)))
    assert set(PixelLoss.of(vae, training.scenes_of(recipe, 0), recipe).frames) == {64}
    training.train_upscaler(tmp_path, 0.0, CPU, vae, say=said.append, recipe=SEEN)
    assert "1 steps" in said[-1]
