"""Our video VAE beside diffusers' on the same random weights, fp32: several tiles, several chunks, raw neighbours."""

import re

import pytest
import torch
from diffusers import AutoencoderKLMiniMaxH3

from h3runtime.vae.tiling import Tiling
from h3runtime.vae.video_config import VideoVaeConfig
from h3runtime.vae.video_pixels import PIXEL_MEAN, PIXEL_STD, denormalise
from h3runtime.vae.video_statistics import LATENTS_MEAN, LATENTS_STD
from h3runtime.vae.video_vae import VideoVae
from tests.parity.fixture import rel_l2

HEADS, HEAD_DIM = 2, 32
# The issue allows 1e-4; measured 7e-8 and 2e-6.
DECODE_BOUND, ENCODE_BOUND = 1e-6, 1e-5

RENAMES = [
    (r"down_blocks\.(\d+)\.resnets", r"down.\1.block"),
    (r"down_blocks\.(\d+)\.downsamplers\.0", r"down.\1.downsample"),
    (r"conv_shortcut", "nin_shortcut"),
    (r"decoder\.proj_in", "decoder.x_embedder"),
    (r"attn\.to_out\.0", "attn.to_out"),
    (r"ff\.net\.2", "ff.w2"),
]


def our_weights(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    ours: dict[str, torch.Tensor] = {}
    for name, tensor in theirs.items():
        if ".ff.net.0.proj." in name:
            value, gate = tensor.chunk(2)
            ours[name.replace("net.0.proj", "w1")] = torch.cat([gate, value])
        elif ".attn.to_q." in name:
            parts = [
                theirs[name.replace("to_q", part)].unflatten(0, (HEADS, HEAD_DIM)) for part in ("to_q", "to_k", "to_v")
            ]
            ours[name.replace("to_q", "to_qkv")] = torch.stack(parts, 1).flatten(0, 2)
        elif ".attn.to_k." not in name and ".attn.to_v." not in name:
            for pattern, new in RENAMES:
                name = re.sub(pattern, new, name)
            ours[name] = tensor
    ours["decoder.mask_token"] = torch.zeros(1, 1, HEADS * HEAD_DIM)
    return ours


@pytest.fixture(scope="module")
def pair() -> tuple[AutoencoderKLMiniMaxH3, VideoVae]:
    torch.manual_seed(0)
    theirs = AutoencoderKLMiniMaxH3(
        block_out_channels=(32, 32, 32, 64, 32, 32),
        layers_per_block=2,
        decoder_num_layers=3,
        decoder_num_attention_heads=HEADS,
        decoder_attention_head_dim=HEAD_DIM,
    ).requires_grad_(False)
    for name, parameter in theirs.named_parameters():
        if parameter.ndim == 1:
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (0 if "bias" in name else 1))
        elif "register" in name:
            parameter.normal_()
    theirs.enable_tiling(48, 48, 16, 16)
    weights = our_weights(theirs.state_dict())
    shapes = {name: tuple(t.shape) for name, t in weights.items()}
    with torch.device("meta"):
        ours = VideoVae(VideoVaeConfig.from_shapes(shapes, {"vae_head_dim": HEAD_DIM}), torch.float32, Tiling(48, 16))
    ours.load_state_dict(weights, strict=True, assign=True)
    return theirs.eval(), ours.requires_grad_(False)


def per_channel(values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values).view(1, -1, 1, 1, 1)


@pytest.mark.parametrize(("frames", "height", "width"), [(7, 5, 6), (12, 3, 5), (17, 5, 2)])
def test_decode(pair, frames, height, width) -> None:
    theirs, ours = pair
    latents = torch.randn(1, 24, frames, height, width, generator=torch.Generator().manual_seed(frames))
    z = latents * per_channel(LATENTS_STD) + per_channel(LATENTS_MEAN)
    want = denormalise(theirs.decode(z).sample)
    got = torch.cat(list(ours.decode_chunks(latents, blend="raw")))
    assert rel_l2(got, want) <= DECODE_BOUND
    assert float((want == 0).float().mean() + (want == 1).float().mean()) < 0.5, "clamping hides the comparison"


@pytest.mark.parametrize(("frames", "height", "width"), [(1, 80, 96), (5, 80, 64), (22, 48, 80), (39, 32, 48)])
def test_encode(pair, frames, height, width) -> None:
    theirs, ours = pair
    pixels = torch.rand(frames, height, width, 3, generator=torch.Generator().manual_seed(frames))
    normalised = (pixels.permute(3, 0, 1, 2)[None] - per_channel(PIXEL_MEAN)) / per_channel(PIXEL_STD)
    mean = theirs.encode(normalised).latent_dist.mean
    want = (mean - per_channel(LATENTS_MEAN)) / per_channel(LATENTS_STD)
    assert rel_l2(ours.encode_clip(pixels), want) <= ENCODE_BOUND
