"""The CPU's way through the audio decoder's activation against the convolutions that define it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.vae import audio_decoder
from h3runtime.vae.audio_banded import BLOCK, anti_aliased
from h3runtime.vae.audio_decoder import AntiAliased


def _activation(channels: int, taps: int, seed: int = 0) -> AntiAliased:
    """Filters that aren't symmetric, and not each other's."""
    generator = torch.Generator().manual_seed(seed)
    made = AntiAliased(channels, taps).double().requires_grad_(False)
    for tensor in (made.upsample.filter, made.downsample.lowpass.filter, made.act.alpha, made.act.beta):
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
    return made


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 4),
    length=st.integers(1, 5 * BLOCK + 1),
    taps=st.integers(1, BLOCK + 1).map(lambda half: 2 * half),
)
def test_is_what_the_convolutions_make(batch: int, channels: int, length: int, taps: int) -> None:
    activation = _activation(channels, taps, seed=length)
    x = torch.randn(batch, channels, length, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
    expected = activation.filtered(x)
    found = anti_aliased(x, activation.upsample.filter, activation.downsample.lowpass.filter, *activation.act.factors())
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_rounds_as_little_as_they_do() -> None:
    activation, x = _activation(8, 12), torch.randn(2, 8, 1000, generator=torch.Generator().manual_seed(1))
    exact = activation.filtered(x.double())
    activation.float()
    with torch.no_grad():
        errors = [(y - exact).norm() / exact.norm() for y in (activation(x), activation.filtered(x))]
    assert errors[0] < 1.5 * errors[1] < 1e-6


@pytest.mark.parametrize("trained", [True, False])
def test_gradients_go_through_the_convolutions(trained: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(audio_decoder, "anti_aliased", lambda x, *_: calls.append(1) or x)
    with torch.set_grad_enabled(trained):
        _activation(2, 12).float()(torch.zeros(1, 2, 20))
    assert len(calls) == (0 if trained else 1)
