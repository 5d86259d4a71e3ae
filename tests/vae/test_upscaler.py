"""The latent upscaler: its layout is the published file's, its arithmetic the documented one."""

from dataclasses import replace
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from h3runtime.checkpoint.synthetic.layouts import UpscalerSizes, upscaler_shapes
from h3runtime.errors import CheckpointError, InvalidRequest
from h3runtime.packing.geometry import Size, upscaled_canvas
from h3runtime.vae.upscaler import CHUNK, LatentUpscaler, upscale, upscaled_size
from h3runtime.vae.upscaler_config import UpscalerConfig

SIZES = UpscalerSizes(latent_channels=4, channels=16, embedding=8, blocks=(1, 2), kernel=3)


def built(sizes: UpscalerSizes = SIZES) -> LatentUpscaler:
    torch.manual_seed(0)
    return LatentUpscaler(UpscalerConfig.from_shapes(upscaler_shapes(sizes))).eval()


def test_the_layout_is_the_published_file_s():
    shapes = upscaler_shapes(UpscalerSizes())
    # minimax_h3_latent_upscaler_3d_conv_v1_fp16.safetensors has 690,592,672 bytes, of which 32,240 are its header.
    assert 2 * sum(map(prod, shapes.values())) == 690_592_672 - 32_240
    assert len(shapes) == 322
    config = UpscalerConfig.from_shapes(shapes)
    assert (config.channels, config.embedding, config.kernel, config.groups) == (512, 64, 5, 32)
    assert config.inner == config.outer == ("residual", "temporal", "residual") * 6
    with torch.device("meta"):
        model = LatentUpscaler(config)
    assert {n: tuple(t.shape) for n, t in model.state_dict().items()} == shapes


def test_a_prefix_changes_nothing_and_a_small_file_has_wide_groups():
    shapes = upscaler_shapes(SIZES)
    prefixed = {f"upscaler.{name}": shape for name, shape in shapes.items()}
    assert UpscalerConfig.from_shapes(prefixed) == UpscalerConfig.from_shapes(shapes)
    assert UpscalerConfig.from_shapes(shapes).groups == 1
    assert {n: tuple(t.shape) for n, t in built().state_dict().items()} == shapes


@pytest.mark.parametrize(
    ("spoilt", "named"),
    [
        ({"conv_in.weight": None}, "conv_in.weight"),
        ({"conv_in.weight": (20, 4, 3, 3, 3)}, "conv_in.weight"),
        ({"in_blocks.0.in_layers.2.weight": None}, "in_blocks.0"),
        ({"in_blocks.1.dwconv.weight": (16, 1, 4, 1, 1)}, "dwconv"),
        ({"embed.0.weight": (8,)}, "embed.0.weight"),
    ],
)
def test_other_files_are_refused_by_name(spoilt: dict[str, tuple[int, ...] | None], named: str):
    shapes = {name: shape for name, shape in (upscaler_shapes(SIZES) | spoilt).items() if shape is not None}
    with pytest.raises(CheckpointError, match=named):
        UpscalerConfig.from_shapes(shapes)


@torch.no_grad()
def test_the_forward_is_the_documented_one():
    model = built(replace(SIZES, blocks=(1, 1)))
    w = model.state_dict()
    x = torch.randn(2, 4, 3, 4, 6)
    emb = F.linear(torch.tensor([[0.5]]), w["embed.0.weight"], w["embed.0.bias"])
    emb = F.linear(F.silu(emb), w["embed.2.weight"], w["embed.2.bias"])

    def norm(y: torch.Tensor, name: str) -> torch.Tensor:
        wide = (1, -1, 1, 1, 1)
        mean, var = y.mean((1, 2, 3, 4), keepdim=True), y.var((1, 2, 3, 4), keepdim=True, correction=0)
        return (y - mean) / (var + 1e-5).sqrt() * w[f"{name}.weight"].view(wide) + w[f"{name}.bias"].view(wide)

    def conv(y: torch.Tensor, name: str) -> torch.Tensor:
        return F.conv3d(y, w[f"{name}.weight"], w[f"{name}.bias"], padding=1)

    def blocks(y: torch.Tensor, side: str) -> torch.Tensor:
        told = F.linear(F.silu(emb), w[f"{side}.0.emb_layers.1.weight"], w[f"{side}.0.emb_layers.1.bias"])
        inner = norm(conv(F.silu(norm(y, f"{side}.0.in_layers.0")), f"{side}.0.in_layers.2"), f"{side}.0.out_norm")
        inner = inner * (1 + told[:, :16].view(1, 16, 1, 1, 1)) + told[:, 16:].view(1, 16, 1, 1, 1)
        y = y + conv(F.silu(inner), f"{side}.0.out_layers.2")
        padded = F.pad(F.silu(norm(y, f"{side}.1.norm")), (0, 0, 0, 0, 1, 1))
        taps = w[f"{side}.1.dwconv.weight"].view(16, 3)
        late = sum(padded[:, :, k : k + y.shape[2]] * taps[:, k].view(1, 16, 1, 1, 1) for k in range(3))
        late = late + w[f"{side}.1.dwconv.bias"].view(1, 16, 1, 1, 1)
        point = torch.einsum("bcthw,dc->bdthw", late, w[f"{side}.1.pwconv.weight"].view(16, 16))
        return y + point + w[f"{side}.1.pwconv.bias"].view(1, 16, 1, 1, 1)

    y = blocks(conv(x, "conv_in"), "in_blocks")
    frames = F.interpolate(y.transpose(1, 2).flatten(0, 1), size=(6, 9), mode="bilinear", align_corners=False)
    y = blocks(frames.unflatten(0, (2, 3)).transpose(1, 2), "out_blocks")
    wanted = conv(F.silu(norm(y, "norm_out")), "conv_out")
    torch.testing.assert_close(model(x, (6, 9), 1.5), wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_long_clips_run_in_chunks_that_see_their_neighbours():
    model = built()
    x = torch.randn(1, 4, CHUNK + 5, 2, 2)
    made = model(x, (4, 4), 2.0)
    assert made.shape == (1, 4, CHUNK + 5, 4, 4)
    torch.testing.assert_close(made[:, :, :CHUNK], model._together(x[:, :, : CHUNK + 1], (4, 4), 2.0)[:, :, :CHUNK])
    torch.testing.assert_close(made[:, :, CHUNK:], model._together(x[:, :, CHUNK - 1 :], (4, 4), 2.0)[:, :, 1:])


@torch.no_grad()
def test_the_same_size_comes_back_as_it_is():
    x = torch.randn(1, 4, 2, 2, 4)
    assert built()(x, (2, 4), 1.0) is x


@given(st.integers(1, 60).map(lambda n: 2 * n), st.integers(1, 60).map(lambda n: 2 * n), st.floats(1, 4))
def test_new_sizes_are_whole_multiples_of_32_pixels_near_the_scale(h: int, w: int, scale: float):
    rows, columns = upscaled_size(h, w, scale)
    assert rows % 2 == columns % 2 == 0
    assert abs(rows - h * scale) <= 1 and abs(columns - w * scale) <= 1
    assert rows >= h and columns >= w


@given(st.integers(1, 130), st.integers(1, 130), st.floats(1.5, 2))
def test_a_request_s_canvas_is_told_the_size_that_the_upscaler_makes(columns: int, rows: int, scale: float):
    """Admission counts pixels, the upscaler latents: both round halves alike."""
    told = upscaled_canvas(Size(32 * columns, 32 * rows), scale)
    h, w = upscaled_size(2 * rows, 2 * columns, scale)
    assert (told.width, told.height) == (16 * w, 16 * h)


@pytest.mark.parametrize("scale", [0.5, float("nan"), -1.0])
def test_nothing_is_made_smaller(scale: float):
    with pytest.raises(InvalidRequest, match="scale"):
        upscaled_size(8, 8, scale)


def test_latents_are_normalised_a_second_time_and_back():
    model = built()
    mean, std = torch.randn(4), torch.rand(4) + 0.5
    latents = torch.randn(1, 4, 2, 4, 4).half()
    made = upscale(model, latents, mean, std, 1.5)
    wide = (-1, 1, 1, 1)
    with torch.no_grad():
        inner = model((latents.float() - mean.view(wide)) / std.view(wide), (6, 6), 1.5)
    torch.testing.assert_close(made, (inner * std.view(wide) + mean.view(wide)).half())
