"""The resampling filter is the contract's, and resampling keeps lengths and constants."""

import pytest
import torch

from h3runtime.vae.audio_filters import DownsampleByTwo, UpsampleByTwo, kaiser_sinc_taps
from tests.parity.fixture import DIRECTORY, Fixture

# Conditioning contract §5.3.
HALF = (0.0020289664, 0.0093894639, -0.0255434641, -0.0576573755, 0.1285726091, 0.4432098001)


def test_the_design_gives_the_contract_s_taps():
    taps = kaiser_sinc_taps()
    assert taps.shape == (1, 1, 12)
    torch.testing.assert_close(taps.flatten(), torch.tensor(HALF + HALF[::-1]), rtol=0, atol=1e-7)
    assert float(taps.sum()) == pytest.approx(1, abs=1e-6)


def test_the_recorded_files_hold_the_same_taps():
    paths = sorted(DIRECTORY.glob("audio_vae_decode*.safetensors"))
    if not paths:
        pytest.skip(f"no fixtures at {DIRECTORY}")
    for path in paths:
        stored = Fixture(path)["w.decoder.activation_post.upsample.filter"]
        torch.testing.assert_close(stored, kaiser_sinc_taps(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("taps", [12, 8])
@pytest.mark.parametrize("length", [1, 2, 7, 40])
def test_lengths_double_and_halve(taps, length):
    up, down = UpsampleByTwo(taps), DownsampleByTwo(taps)
    up.filter.fill_(1 / taps)
    down.lowpass.filter.fill_(1 / taps)
    x = torch.randn(2, 3, length)
    assert up(x).shape == (2, 3, 2 * length)
    assert down(up(x)).shape == x.shape


def test_a_constant_passes_unchanged_and_a_slow_wave_nearly_so():
    up, down = UpsampleByTwo(12), DownsampleByTwo(12)
    up.filter.copy_(kaiser_sinc_taps())
    down.lowpass.filter.copy_(kaiser_sinc_taps())
    constant = torch.full((1, 2, 30), 0.7)
    torch.testing.assert_close(down(up(constant)), constant, rtol=0, atol=2e-3)
    wave = torch.sin(torch.arange(200) * 0.1)[None, None]
    torch.testing.assert_close(down(up(wave))[..., 20:-20], wave[..., 20:-20], rtol=0, atol=5e-3)


def test_the_stored_filter_is_used():
    up = UpsampleByTwo(12)
    up.filter.zero_()
    assert not up(torch.ones(1, 1, 5)).any()
