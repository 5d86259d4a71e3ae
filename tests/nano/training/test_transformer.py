"""The batched forward of the training is the runtime's, sequence by sequence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from h3runtime.core import Keyframe, KeyframeShape, PackedLayout, Reference, ReferenceShape
from h3runtime.denoiser.conditions import condition_rows, is_sound
from h3runtime.denoiser.dit import Dit
from h3runtime.denoiser.schedule import unshift
from h3runtime.nano import model
from h3runtime.nano.training import transformer as batched
from h3runtime.packing.layout import pack


@pytest.fixture(scope="module")
def dit() -> Dit:
    torch.manual_seed(3)
    made = model.transformer()
    batched.initialise(made, 5)
    for name, value in made.named_parameters():
        if "adaln" in name or "final_layer" in name:
            value.data.add_(0.1 * torch.randn(value.shape))
    return made


def relative(found: torch.Tensor, want: torch.Tensor) -> float:
    return float((found - want).norm() / want.norm())


def layout_of(task: str) -> PackedLayout:
    tags = np.array([1] * 4 + [0] * 6 + [1] * 5)
    keyframes = [KeyframeShape(0, 1), KeyframeShape(21, 1, 3)] if task == "keyframes" else []
    references = [ReferenceShape("image", 1, 4, 6), ReferenceShape("audio", audio_latents=5)]
    return pack(7, 4, 8, 37, tags, keyframes, references if task == "references" else [])


@pytest.mark.parametrize("task", ["text", "keyframes", "references"])
@pytest.mark.parametrize("sigma", [1.0, 0.9, 0.05])
@torch.no_grad()
def test_a_batch_is_the_runtime_on_each_sequence(dit: Dit, task: str, sigma: float) -> None:
    layout = layout_of(task)
    text, video, audio = torch.randn(2, 15, 128), torch.randn(2, 24, 7, 4, 8), torch.randn(2, 32, 2, 37)
    pictures, second = torch.randn(2, 24, 1, 4, 8), torch.randn(2, 24, 1, 4, 8)
    portrait, heard, told = torch.randn(2, 24, 1, 4, 6), torch.randn(2, 32, 2, 5), torch.randn(2, 32, 2, 3)
    keyframes, references = [], []
    if task == "keyframes":
        keyframes = [
            [Keyframe(0, pictures[i : i + 1]), Keyframe(21, second[i : i + 1], told[i : i + 1])] for i in (0, 1)
        ]
    if task == "references":
        references = [
            [Reference("image", portrait[i : i + 1]), Reference("audio", None, heard[i : i + 1])] for i in (0, 1)
        ]
    conditions = list(zip(keyframes or [[], []], references or [[], []], strict=True))
    rows, base = batched.rows_of(layout, dit), torch.full((2,), unshift(sigma, 12.0))
    visual, audible = (noisy_rows(layout, conditions, sound) for sound in (False, True))
    found_audio, found_video = batched.predict(
        dit, rows, batched.refine(dit, text), visual, audible, batched.audio_rows(audio), batched.patchify(video), base
    )
    for i, (guides, given) in enumerate(conditions):
        prepared = dit.prepare(layout, dit.refine(text[i : i + 1]), guides, given, noise_seed=1)
        want_video, want_audio = dit(prepared, video[i : i + 1], audio[i : i + 1], sigma)
        assert relative(-batched.unpatchify(found_video, 7, 4, 8)[i : i + 1], want_video) < 1e-5
        assert relative(-batched.audio_latent(found_audio)[i : i + 1], want_audio) < 1e-5


def noisy_rows(
    layout: PackedLayout, conditions: list[tuple[list[Keyframe], list[Reference]]], sound: bool
) -> torch.Tensor | None:
    """The rows of one modality as the runtime makes them, with its 0.1 % of noise, stacked over the batch."""
    batch = [
        [rows for segment, rows in condition_rows(layout, k, r, 1) if is_sound(segment) is sound] for k, r in conditions
    ]
    return torch.stack([torch.cat(rows) for rows in batch]) if batch[0] else None


def test_gradients_reach_every_parameter(dit: Dit) -> None:
    layout = layout_of("references")
    rows = batched.rows_of(layout, dit)
    dit.zero_grad()
    u_audio, u_video = batched.predict(
        dit,
        rows,
        batched.refine(dit, torch.randn(1, 15, 128)),
        torch.randn(1, 6, 96),
        torch.randn(1, 10, 32),
        torch.randn(1, 74, 32),
        torch.randn(1, 56, 96),
        torch.full((1,), 0.5),
    )
    (u_audio.square().mean() + u_video.square().mean()).backward()
    assert [name for name, value in dit.named_parameters() if value.grad is None or not value.grad.any()] == []


def test_the_curve_is_even_in_the_base() -> None:
    table = batched.curve_table()
    assert table.shape == (1025, 8) and torch.equal(table[:, 0], torch.ones(1025))
    assert float(table[0, 1]) == 1.0 and float(table[-1, 1]) == -1.0
