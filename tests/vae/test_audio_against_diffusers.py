"""Live comparison with diffusers' MiniMax H3 audio VAE on small random models, fp32, rel. L2 <= 1e-4.

Measured: 1.7e-7 to 5e-7; the bound that is asserted is 1e-5.
"""

import warnings

import pytest
import torch

from h3runtime.vae.audio_weight_norm import fold_weight_norm
from tests.parity.fixture import rel_l2
from tests.vae.audio_loading import load_audio_vae

BOUND = 1e-5
SIZES = [
    {
        "encoder_dim": 4, "encoder_rates": (2, 4, 5), "latent_dim": 64, "latent_channels": 8, "decoder_dim": 32,
        "decoder_rates": (5, 2, 2, 2), "decoder_kernel_sizes": (9, 4, 4, 4),
    },
    {
        "encoder_dim": 6, "encoder_rates": (5, 2, 5), "latent_dim": 96, "latent_channels": 12, "num_attention_heads": 4,
        "decoder_dim": 16, "decoder_rates": (5, 5, 2), "decoder_kernel_sizes": (9, 9, 4),
        "resblock_kernel_sizes": (3, 7), "resblock_dilation_sizes": ((1, 3, 5), (1, 3)),
    },
]  # fmt: skip


def theirs(size, seed=0):
    from diffusers.models.autoencoders.autoencoder_kl_minimax_h3_audio import AutoencoderKLMiniMaxH3Audio

    torch.manual_seed(seed)
    with warnings.catch_warnings():
        # torch's old weight_norm announces its end.
        warnings.simplefilter("ignore")
        model = AutoencoderKLMiniMaxH3Audio(**size).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "decoder.conv_post.weight_g":
                parameter.mul_(0.3)  # keeps the sound off the final clamp
            elif name.endswith("weight_g"):
                parameter.mul_(torch.empty_like(parameter).uniform_(0.8, 1.6))
            elif name.startswith("encoder") and name.endswith("alpha"):
                parameter.uniform_(0.3, 2)
            elif parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def our_weights(model, mean, std):
    """Their names are ours but for weight norm; statistics live in their config."""
    state = model.state_dict()
    weights = {"latents_mean": mean, "latents_std": std}
    for name, tensor in state.items():
        if name.endswith("weight_g"):
            weights[name[:-2]] = fold_weight_norm(tensor, state[f"{name[:-1]}v"])
        elif not name.endswith("weight_v"):
            weights[name] = tensor
    return weights


@pytest.fixture(scope="module", params=range(len(SIZES)))
def pair(request):
    size = SIZES[request.param]
    model = theirs(size, request.param)
    channels = size["latent_channels"]
    mean, std = torch.randn(channels), torch.rand(channels) + 0.5
    ours = load_audio_vae(
        our_weights(model, mean, std),
        heads=size.get("num_attention_heads", 8),
        block_dilations=size.get("resblock_dilation_sizes"),
    )
    return model, ours, mean, std


@pytest.mark.parametrize("samples", [2000, 2071])
def test_encode(pair, samples):
    model, ours, mean, std = pair
    waveform = 0.5 * torch.randn(1, 2, samples)
    with torch.no_grad():
        want = model.encode(waveform.transpose(0, 1)).latent_dist.mode()
    want = ((want - mean[:, None]) / std[:, None]).transpose(0, 1)[None]
    got = ours.encode(waveform, "pad")
    assert rel_l2(got, want) <= BOUND


def test_decode(pair):
    model, ours, mean, std = pair
    latent = torch.randn(1, len(mean), 2, 23)
    z = (latent * std.view(1, -1, 1, 1) + mean.view(1, -1, 1, 1)).transpose(1, 2)[0]
    with torch.no_grad():
        want = model.decode(z).sample.transpose(0, 1)
    got = ours.decode(latent)
    assert want.std() > 0.01
    assert want.abs().max() < 1, "clamped: the comparison would hide differences"
    assert rel_l2(got, want) <= BOUND
