"""The choice of the video decoder's steps, and that a decoder uses those it was given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from h3runtime.backends.cnn import definition as cnn
from h3runtime.backends.cnn.select import steps_named
from h3runtime.backends.vit.cpu import CpuSteps
from h3runtime.backends.vit.definition import TorchSteps
from h3runtime.backends.vit.select import choose_steps, step_families, steps_choice
from h3runtime.errors import BackendUnavailable, InvalidRequest
from h3runtime.vae.video_decoder import coordinates, rotary_table
from tests.vae.test_video_vae import latents_of, pixels_of, small_vae

CPU = torch.device("cpu")


class Counting(TorchSteps):
    """The definition, which counts its calls."""

    def __init__(self) -> None:
        self.norms = self.sums = self.attended = self.gates = 0

    def norm(self, *given: Any, **more: Any) -> Any:
        self.norms += 1
        return super().norm(*given, **more)

    def add_norm(self, *given: Any, **more: Any) -> Any:
        self.sums += 1
        return super().add_norm(*given, **more)

    def attend(self, *given: Any, **more: Any) -> Any:
        self.attended += 1
        return super().attend(*given, **more)

    def gated(self, *given: Any, **more: Any) -> Any:
        self.gates += 1
        return super().gated(*given, **more)


def test_a_cpu_takes_its_own_and_says_why() -> None:
    chosen, why = choose_steps("auto", CPU)
    shown = steps_choice(chosen, why, CPU)
    assert (chosen.name, shown.default, shown.available) == ("cpu", "cpu", ("cpu", "torch"))
    assert "needs a CUDA device" in shown.unavailable["triton"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_cpu_s_own_steps_equal_the_definition_bit_for_bit(dtype: torch.dtype) -> None:
    made = torch.Generator().manual_seed(1)
    cos, sin = rotary_table(coordinates((2, 3, 5), 5, dtype, CPU), 64)
    qkv = torch.randn(2, 35, 3, 3, 64, generator=made).to(dtype)
    x, update = (torch.randn(2, 35, 96, generator=made).to(dtype) for _ in range(2))
    weight, scale = (torch.rand(96, generator=made).to(dtype) for _ in range(2))
    ours, defined = CpuSteps(), TorchSteps()
    assert torch.equal(ours.attend(qkv.clone(), cos, sin, 1e-5), defined.attend(qkv.clone(), cos, sin, 1e-5))
    assert torch.equal(ours.norm(x, weight, 1e-5), defined.norm(x, weight, 1e-5))
    both = zip(*(s.add_norm(x.clone(), update, scale, weight, 1e-5) for s in (ours, defined)), strict=True)
    assert all(torch.equal(a, b) for a, b in both)
    assert torch.isnan(ours.norm(x * torch.nan, weight, 1e-5)).all()
    assert not ours.attend(qkv * torch.nan, cos, sin, 1e-5).any()


def test_one_that_is_asked_for_and_can_t_run_is_an_error() -> None:
    with pytest.raises(BackendUnavailable, match="vae_fused: triton can't run here: needs a CUDA device"):
        choose_steps("triton", CPU)
    with pytest.raises(InvalidRequest, match="vae_fused"):
        choose_steps("cuda", CPU)


def test_every_family_has_steps_for_the_encoder() -> None:
    found = {family.name: steps_named(family.name).name for family in step_families()}
    assert found == {"triton": "triton", "cpu": "torch", "torch": "torch"}


def test_an_encoder_that_lies_with_channels_last_gives_the_same_latents() -> None:
    class Last(cnn.TorchSteps):
        layout = torch.channels_last_3d

    vae, pixels = small_vae(), pixels_of(5, 32, 32)
    wanted = vae.encode_clip(pixels)
    vae.take_steps(TorchSteps(), Last())
    assert vae.encoder is not None
    assert vae.encoder.conv_in.weight.is_contiguous(memory_format=torch.channels_last_3d)
    torch.testing.assert_close(vae.encode_clip(pixels), wanted, rtol=1e-4, atol=1e-5)


def test_a_decoder_takes_its_steps_from_those_it_was_given() -> None:
    vae, latents, steps = small_vae(), latents_of(1), Counting()
    wanted = torch.cat(list(vae.decode_chunks(latents)))
    vae.take_steps(steps, cnn.DEFINITION)
    assert torch.equal(torch.cat(list(vae.decode_chunks(latents))), wanted)
    assert vae.config.decoder is not None
    layers = vae.config.decoder.layers
    # The first norm has nothing to add; the last sum has no norm after it.
    assert (steps.norms - steps.sums, steps.sums) == (1, 2 * layers - 1)
    assert (steps.attended, steps.gates) == (layers, layers)
