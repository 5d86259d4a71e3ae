"""The wrapper: channels, cropping, shapes, precision, halves of a file."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.errors import BadMedia, CheckpointError
from h3runtime.vae.audio_vae import as_stereo, fit_to_latents
from h3runtime.vae.audio_weight_norm import fold_weight_norm
from tests.vae.audio_loading import load_audio_vae, random_weights
from tests.vae.test_audio_config import WHOLE

HOP = 10
"""Product of the strides of `WHOLE`."""


@pytest.fixture(scope="module")
def vae():
    return load_audio_vae(random_weights(WHOLE))


def sound(channels: int, samples: int, seed: int = 0) -> torch.Tensor:
    return 0.3 * torch.randn(1, channels, samples, generator=torch.Generator().manual_seed(seed))


def test_encode_and_decode_have_the_contract_s_shapes(vae):
    latent = vae.encode(sound(2, 7 * HOP))
    assert latent.shape == (1, 8, 2, 7)
    assert latent.dtype == torch.float32
    waveform = vae.decode(latent)
    assert waveform.shape == (1, 2, 7 * HOP)
    assert waveform.dtype == torch.float32
    assert waveform.abs().max() <= 1


def test_left_and_right_do_not_touch_each_other(vae):
    one, other = sound(2, 50, 1), sound(2, 50, 2)
    mixed = torch.cat([one[:, :1], other[:, 1:]], dim=1)
    latent = vae.encode(mixed)
    torch.testing.assert_close(latent[:, :, 0], vae.encode(one)[:, :, 0])
    torch.testing.assert_close(latent[:, :, 1], vae.encode(other)[:, :, 1])
    torch.testing.assert_close(vae.decode(latent)[:, 0], vae.decode(vae.encode(one))[:, 0])


def test_mono_is_heard_on_both_sides_and_surplus_channels_are_dropped(vae):
    mono, many = sound(1, 40), sound(6, 40)
    assert torch.equal(vae.encode(mono), vae.encode(mono.repeat(1, 2, 1)))
    assert torch.equal(vae.encode(many), vae.encode(many[:, :2]))


def test_crop_takes_the_centre_and_pad_appends_zeros(vae):
    waveform = sound(2, 37)
    assert torch.equal(vae.encode(waveform), vae.encode(waveform[..., 3:33]))
    padded = torch.cat([waveform, torch.zeros(1, 2, 3)], dim=-1)
    assert torch.equal(vae.encode(waveform, "pad"), vae.encode(padded))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5000), st.sampled_from((1, 10, 800)))
def test_fitting_gives_whole_latents_of_the_sound_s_own_samples(samples, hop):
    waveform = torch.arange(1.0, samples + 1)
    padded = fit_to_latents(waveform, hop, "pad")
    assert padded.shape[0] == -(-samples // hop) * hop
    assert torch.equal(padded[:samples], waveform)
    assert not padded[samples:].any()
    if samples >= hop:
        cropped = fit_to_latents(waveform, hop, "crop")
        assert cropped.shape[0] == samples // hop * hop
        assert torch.equal(cropped, waveform[(samples % hop) // 2 :][: cropped.shape[0]])


@pytest.mark.parametrize(
    ("shape", "fit"), [((1, 2, 9), "crop"), ((1, 2, 0), "pad"), ((1, 0, 40), "crop"), ((2, 40), "crop")]
)
def test_a_sound_that_holds_no_latent_is_a_typed_error(vae, shape, fit):
    with pytest.raises(BadMedia) as caught:
        vae.encode(torch.zeros(shape), fit)
    assert caught.value.offences[0].field == "waveform"


def test_a_file_of_one_half_does_that_half():
    weights = random_weights(WHOLE)
    decoding = ("decoder.", "dec_in_proj.")
    encoder = load_audio_vae({name: w for name, w in weights.items() if not name.startswith(decoding)})
    decoder = load_audio_vae({n: w for n, w in weights.items() if n.startswith((*decoding, "latents_"))})
    latent = encoder.encode(sound(2, 40))
    assert torch.equal(decoder.decode(latent), load_audio_vae(weights).decode(latent))
    with pytest.raises(CheckpointError, match="no decoder"):
        encoder.decode(latent)
    with pytest.raises(CheckpointError, match="no encoder"):
        decoder.encode(sound(2, 40))


def test_weights_in_half_precision_are_widened_and_run_in_fp32():
    halves = {name: w.half() for name, w in random_weights(WHOLE).items()}
    wide = load_audio_vae({name: w.float() for name, w in halves.items()})
    narrow = load_audio_vae(halves)
    latent = wide.encode(sound(2, 40).double())
    assert latent.dtype == torch.float32
    assert torch.equal(narrow.encode(sound(2, 40)), latent)
    assert torch.equal(narrow.decode(latent.half().float()), wide.decode(latent.half()))


def test_attention_is_causal_but_convolutions_look_ahead_a_little(vae):
    """Far earlier latents don't feel a later change; §5.2: causal attention."""
    waveform = sound(2, 60 * HOP)
    changed = waveform.clone()
    changed[..., 50 * HOP :] = 0
    before, after = vae.encode(waveform), vae.encode(changed)
    torch.testing.assert_close(before[..., :30], after[..., :30], rtol=0, atol=1e-5)
    assert not torch.allclose(before[..., 55:], after[..., 55:], atol=1e-3)


def test_normalisation_is_per_channel(vae):
    latent = torch.randn(1, 8, 2, 4)
    items = vae.denormalised_items(latent)
    assert items.shape == (2, 8, 4)
    want = latent * vae.latents_std.view(1, 8, 1, 1) + vae.latents_mean.view(1, 8, 1, 1)
    assert torch.equal(items, torch.stack([want[0, :, 0], want[0, :, 1]]))


def test_rounding_stays_at_the_floor_of_fp32():
    """fp32 against the same weights in float64: a few times 1e-6 at this size, 1.5e-5 at most (fixture README)."""
    vae = load_audio_vae(random_weights(WHOLE))
    latent = vae.encode(sound(2, 40))
    waveform = vae.decode(latent)
    with torch.no_grad():
        exact = vae.double()
        mean = exact.posterior_mean(sound(2, 40).double().reshape(2, 1, 40))
        wide_latent = ((mean - exact.latents_mean[:, None]) / exact.latents_std[:, None]).transpose(0, 1)[None]
        wide = exact.decoder(exact.dec_in_proj(exact.denormalised_items(latent))).reshape(1, 2, -1)
    assert (latent - wide_latent).norm() / wide_latent.norm() < 1.5e-5
    assert (waveform - wide).norm() / wide.norm() < 3e-6


def test_folding_gives_back_what_torch_s_weight_norm_computes():
    for layer, dim in ((torch.nn.Conv1d(3, 5, 7), 0), (torch.nn.ConvTranspose1d(4, 2, 9), 0)):
        normed = torch.nn.utils.parametrizations.weight_norm(layer, dim=dim)
        parts = normed.parametrizations.weight
        folded = fold_weight_norm(parts.original0 * 2, parts.original1)
        torch.testing.assert_close(folded, 2 * normed.weight)


def test_stereo_of_stereo_is_itself():
    waveform = sound(2, 5)
    assert as_stereo(waveform) is waveform or torch.equal(as_stereo(waveform), waveform)
