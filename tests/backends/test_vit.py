"""The choice of the video decoder's steps, and that a decoder uses those it was given."""

from __future__ import annotations

import pytest
import torch

from h3runtime.backends.vit.definition import TorchSteps
from h3runtime.backends.vit.select import choose_steps, steps_choice
from h3runtime.errors import BackendUnavailable, InvalidRequest
from tests.vae.test_video_vae import latents_of, small_vae

CPU = torch.device("cpu")


class Counting(TorchSteps):
    """The definition, which counts its calls."""

    def __init__(self) -> None:
        self.norms = self.sums = self.attended = self.gates = 0

    def norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        self.norms += 1
        return super().norm(x, weight, eps)

    def add_norm(
        self, x: torch.Tensor, update: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.sums += 1
        return super().add_norm(x, update, scale, weight, eps)

    def attend(self, qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float) -> torch.Tensor:
        self.attended += 1
        return super().attend(qkv, cos, sin, eps)

    def gated(self, x: torch.Tensor) -> torch.Tensor:
        self.gates += 1
        return super().gated(x)


def test_a_cpu_takes_the_definition_and_says_why() -> None:
    chosen, why = choose_steps("auto", CPU)
    shown = steps_choice(chosen, why, CPU)
    assert (chosen.name, shown.default, shown.available) == ("torch", "torch", ("torch",))
    assert "needs a CUDA device" in shown.unavailable["triton"]


def test_one_that_is_asked_for_and_can_t_run_is_an_error() -> None:
    with pytest.raises(BackendUnavailable, match="vae_fused: triton can't run here: needs a CUDA device"):
        choose_steps("triton", CPU)
    with pytest.raises(InvalidRequest, match="vae_fused"):
        choose_steps("cuda", CPU)


def test_a_decoder_takes_its_steps_from_those_it_was_given() -> None:
    vae, latents, steps = small_vae(), latents_of(1), Counting()
    wanted = torch.cat(list(vae.decode_chunks(latents)))
    vae.take_steps(steps)
    assert torch.equal(torch.cat(list(vae.decode_chunks(latents))), wanted)
    assert vae.config.decoder is not None
    layers = vae.config.decoder.layers
    # The first norm has nothing to add; the last sum has no norm after it.
    assert (steps.norms - steps.sums, steps.sums) == (1, 2 * layers - 1)
    assert (steps.attended, steps.gates) == (layers, layers)
