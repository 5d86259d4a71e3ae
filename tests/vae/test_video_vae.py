import pytest
import torch

from h3runtime.backends.linear.dequant import install_plain
from h3runtime.backends.vit.definition import rotate
from h3runtime.errors import CheckpointError, InvalidRequest, JobCancelled, SettingsError
from h3runtime.vae.chunks import decoded_frames, plan
from h3runtime.vae.tiling import Tiling
from h3runtime.vae.video_config import STRIDES, DecoderConfig, EncoderConfig, EncoderLevel, VideoVaeConfig
from h3runtime.vae.video_decoder import coordinates, rotary_table, unpatchify
from h3runtime.vae.video_encoder import CausalConv3d, FrameGroupNorm
from h3runtime.vae.video_pixels import PIXEL_MEAN, PIXEL_STD, denormalise, normalise, to_bytes
from h3runtime.vae.video_statistics import LATENTS_MEAN, LATENTS_STD
from h3runtime.vae.video_vae import VideoVae
from tests.parity.fixture import DIRECTORY, Fixture


def small_config(width: int = 32, head_dim: int = 16) -> VideoVaeConfig:
    channels = (32, 32, 64, 64, 32)
    levels = tuple(
        EncoderLevel(channels[max(i - 1, 0)], channels[i], 1, STRIDES[i] if i < 4 else None) for i in range(5)
    )
    decoder = DecoderConfig(24, width, 2, width, head_dim, 2 * width, 4)
    return VideoVaeConfig(24, EncoderConfig(32, levels, 48), decoder, stored_statistics=False)


def small_vae(dtype=torch.float32, tiling=None, width: int = 32, head_dim: int = 16) -> VideoVae:
    """Random weights, the same on every call; the decoder's are lively enough that every token matters."""
    generator = torch.Generator().manual_seed(1)
    vae = VideoVae(small_config(width, head_dim), dtype, tiling or Tiling(48, 16)).requires_grad_(False)
    for name, parameter in vae.named_parameters():
        fan_in = parameter[0].numel() if parameter.ndim > 1 else 1
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(noise / fan_in**0.5 if parameter.ndim > 1 else noise * 0.3 + (0 if "bias" in name else 1))
    return vae.to(dtype)


@pytest.fixture(scope="module")
def vae() -> VideoVae:
    return small_vae()


def latents_of(frames: int, height: int = 2, width: int = 2) -> torch.Tensor:
    return torch.randn(1, 24, frames, height, width, generator=torch.Generator().manual_seed(frames))


def pixels_of(frames: int, height: int = 32, width: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(frames)
    return torch.randint(0, 256, (frames, height, width, 3), generator=generator, dtype=torch.uint8)


# --- decode ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("frames", [2, 3, 7, 8, 12, 14])
def test_streaming_equals_the_whole_decode_bit_for_bit(frames, dtype) -> None:
    vae, latents, p = small_vae(dtype), latents_of(frames), plan(frames)
    z = vae.denormalised(latents)
    z = torch.cat([z, z[:, :, -1:].repeat(1, 1, p.padding, 1, 1)], 2)
    whole = torch.zeros(1, 3, 17 * p.chunks + 5, 32, 32, dtype=dtype)
    for i in range(p.chunks):
        piece = vae.decode_piece(z[:, :, 5 * i : 5 * i + 7])
        fresh = torch.cat([piece[:, :, 3:20], piece[:, :, 23:]], 2)
        if i:
            for k in range(5):
                weight = torch.tensor(k, dtype=dtype) / 5
                fresh[:, :, k] = whole[:, :, 17 * i + k] * (1 - weight) + fresh[:, :, k] * weight
        whole[:, :, 17 * i : 17 * i + 22] = fresh
    got = torch.cat(list(vae.decode_chunks(latents)))
    assert torch.equal(got, denormalise(whole[:, :, : p.frames]))
    assert got.dtype == torch.float32


def test_a_picture_is_the_last_of_four_frames(vae) -> None:
    latents = latents_of(1, 3, 4)
    [frames] = vae.decode_chunks(latents)
    assert frames.shape == (1, 48, 64, 3)
    assert torch.equal(frames, denormalise(vae.decode_piece(vae.denormalised(latents))[:, :, 3:]))


@pytest.mark.parametrize("frames", [1, 2, 7, 12, 13])
def test_frames_are_in_range_and_as_many_as_promised(vae, frames) -> None:
    parts = list(vae.decode_chunks(latents_of(frames, 2, 4)))
    assert sum(map(len, parts)) == decoded_frames(frames)
    assert all(part.shape[1:] == (32, 64, 3) and to_bytes(part).is_contiguous() for part in parts)
    assert all(part.min() >= 0 and part.max() <= 1 for part in parts)


def test_a_piece_depends_on_its_own_latents_only(vae) -> None:
    latents = latents_of(17)
    changed = latents.clone()
    changed[:, :, 12:] += 1
    before, after = (torch.cat(list(vae.decode_chunks(x))) for x in (latents, changed))
    # Latent 12 is first read by the piece that starts at frame 34; its fade begins with weight 0.
    assert torch.equal(before[:35], after[:35])
    assert not torch.equal(before[35], after[35])


def test_the_two_blend_rules_differ_on_tiles_only(vae) -> None:
    one, many = latents_of(2, 3, 3), latents_of(2, 5, 5)
    for latents, same in ((one, True), (many, False)):
        raw, blended = (torch.cat(list(vae.decode_chunks(latents, blend=rule))) for rule in ("raw", "blended"))
        assert torch.equal(raw, blended) is same


def test_a_decode_is_repeatable(vae) -> None:
    first, second = (torch.cat(list(vae.decode_chunks(latents_of(12, 4, 5)))) for _ in range(2))
    assert torch.equal(first, second)


def test_progress_counts_chunks_as_they_come(vae) -> None:
    seen: list[tuple[int, int]] = []
    parts = vae.decode_chunks(latents_of(17), on_chunk=lambda done, total: seen.append((done, total)))
    assert seen == []
    next(parts)
    assert seen == [(1, 3)]
    list(parts)
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_stop_is_seen_between_tiles(vae) -> None:
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked == 3

    with pytest.raises(JobCancelled):
        list(vae.decode_chunks(latents_of(2, 5, 5), should_stop=should_stop))
    assert asked == 3
    with pytest.raises(JobCancelled):
        vae.encode_image(pixels_of(1), should_stop=lambda: True)


def test_linears_may_be_swapped_for_a_backend() -> None:
    plain, swapped = small_vae(), small_vae()
    install_plain(swapped)
    latents = latents_of(7)
    assert all(map(torch.equal, plain.decode_chunks(latents), swapped.decode_chunks(latents)))


def test_linears_kept_in_another_dtype_still_work_behind_a_backend() -> None:
    vae = small_vae(torch.float16)
    vae.decoder.transformer_blocks.float()
    for block in vae.decoder.transformer_blocks:
        block.norm1.half()
        block.norm2.half()
        block.scale1.data, block.scale2.data = block.scale1.half(), block.scale2.half()
    install_plain(vae)
    expected = torch.cat(list(small_vae(torch.float16).decode_chunks(latents_of(2))))
    assert torch.equal(torch.cat(list(vae.decode_chunks(latents_of(2)))), expected)


def test_nan_from_attention_becomes_zero_and_infinity_does_not() -> None:
    vae = small_vae()
    attention = vae.decoder.transformer_blocks[0].attn
    x, table = torch.randn(1, 6, 32), rotary_table(torch.zeros(6, 3), 16)
    attention.to_qkv.bias[-1] = float("nan")
    assert attention(x, *table).values.isfinite().all()
    attention.to_qkv.bias[-1] = float("inf")
    assert not attention(x, *table).values.isfinite().all()


def test_a_meta_built_model_works_once_loaded(vae) -> None:
    with torch.device("meta"):
        built = VideoVae(vae.config, torch.float32, vae.tiling)
    built.load_state_dict(vae.state_dict(), strict=True, assign=True)
    latents = latents_of(7)
    assert all(map(torch.equal, vae.decode_chunks(latents), built.decode_chunks(latents)))
    assert torch.equal(vae.encode_image(pixels_of(1)), built.encode_image(pixels_of(1)))


def test_stored_statistics_win_over_the_built_in_ones() -> None:
    config = small_config()
    stored = VideoVaeConfig(24, config.encoder, config.decoder, stored_statistics=True)
    vae = VideoVae(stored, torch.float16)
    vae.latents_mean, vae.latents_std = torch.full((24,), 0.3), torch.full((24,), 1.7)
    z = vae.denormalised(torch.ones(1, 24, 1, 1, 1))
    assert z.dtype == torch.float16
    assert torch.equal(z, torch.full_like(z, 1.7) + torch.full_like(z, 0.3))


def test_built_in_statistics_are_used_where_none_are_stored() -> None:
    vae = small_vae()
    z = vae.denormalised(torch.ones(1, 24, 1, 1, 1)).flatten()
    assert torch.equal(z, torch.tensor(LATENTS_STD) + torch.tensor(LATENTS_MEAN))


def test_built_in_statistics_are_those_of_the_recorded_files() -> None:
    files = sorted(DIRECTORY.glob("video_vae_*.safetensors"))
    if not files:
        pytest.skip("no fixtures")
    weights = Fixture(files[0]).under("w.")
    assert torch.equal(weights["latents_mean"], torch.tensor(LATENTS_MEAN))
    assert torch.equal(weights["latents_std"], torch.tensor(LATENTS_STD))


@pytest.mark.parametrize(
    "shape", [(24, 7, 2, 2), (2, 24, 7, 2, 2), (1, 16, 7, 2, 2), (1, 24, 0, 2, 2), (1, 24, 7, 0, 2)]
)
def test_latents_of_another_shape_are_refused_before_work(vae, shape) -> None:
    with pytest.raises(InvalidRequest, match="latents"):
        vae.decode_chunks(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int8])
def test_other_dtypes_are_refused_by_name(dtype) -> None:
    with pytest.raises(SettingsError, match=str(dtype).removeprefix("torch.")) as error:
        VideoVae(small_config(), dtype)
    assert error.value.offences[0].legal == "float16 or float32"


# --- encode ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frames", [1, 2, 5, 17, 20, 22])
def test_clips_give_the_promised_latents(vae, frames) -> None:
    latent = vae.encode_clip(pixels_of(frames))
    assert latent.shape == (1, 24, 1 if frames == 1 else 5 * -(-frames // 17) - 3, 2, 2)
    assert latent.dtype == torch.float32


def test_a_constant_clip_of_17_frames_is_five_latents_and_two_are_kept(vae) -> None:
    pixels = torch.full((17, 32, 32, 3), 0.25)
    assert vae.encode_moments(pixels).shape[2] == 5
    assert vae.encode_clip(pixels[:5]).shape[2] == 2


@pytest.mark.parametrize("frames", [3, 17, 22, 25])
def test_the_short_last_clip_equals_the_padded_one(vae, frames) -> None:
    pixels = pixels_of(frames)
    padded = torch.cat([pixels, pixels[-1:].repeat(-frames % 17, 1, 1, 1)])
    moments = torch.cat([vae.encode_moments(clip) for clip in padded.split(17)], 2)[:, :24, :-3]
    mean, std = (torch.tensor(s).view(1, -1, 1, 1, 1) for s in (LATENTS_MEAN, LATENTS_STD))
    torch.testing.assert_close(vae.encode_clip(pixels), (moments - mean) / std, rtol=1e-4, atol=1e-5)


def test_bytes_and_fractions_encode_alike(vae) -> None:
    pixels = pixels_of(5)
    assert torch.equal(vae.encode_clip(pixels), vae.encode_clip(pixels.float() / 255))


def test_encoding_tiles_matters_and_is_repeatable() -> None:
    pixels = pixels_of(1, 80, 96)
    tiled, again, whole = small_vae(), small_vae(), small_vae(tiling=Tiling())
    assert torch.equal(tiled.encode_image(pixels), again.encode_image(pixels))
    assert not torch.equal(tiled.encode_image(pixels), whole.encode_image(pixels))


def test_fp16_encodes_near_fp32_and_returns_fp32() -> None:
    exact, half = (small_vae(dtype).encode_image(pixels_of(1)) for dtype in (torch.float32, torch.float16))
    assert half.dtype == torch.float32
    assert 0 < (half - exact).norm() / exact.norm() < 5e-3


@pytest.mark.parametrize(
    "pixels",
    [
        torch.zeros(1, 33, 32, 3),
        torch.zeros(1, 16, 32, 3),
        torch.zeros(1, 32, 32, 4),
        torch.zeros(32, 32, 3),
        torch.zeros(0, 32, 32, 3),
        torch.zeros(1, 32, 32, 3, dtype=torch.int64),
        torch.zeros(2, 32, 32, 3),
    ],
)
def test_unusable_pixels_are_refused(vae, pixels) -> None:
    with pytest.raises(InvalidRequest, match="pixels"):
        vae.encode_image(pixels)


@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_a_half_that_is_not_there_is_named(half) -> None:
    config = small_config()
    kept = VideoVaeConfig(
        24, None if half == "encoder" else config.encoder, None if half == "decoder" else config.decoder, False
    )
    vae = VideoVae(kept, torch.float32)
    with pytest.raises(CheckpointError, match=f"no {half}"):
        vae.encode_image(pixels_of(1)) if half == "encoder" else vae.decode_chunks(latents_of(2))


# --- the parts -------------------------------------------------------------------------------------------------------


def test_a_causal_convolution_never_looks_ahead() -> None:
    torch.manual_seed(0)
    conv = CausalConv3d(2, 2).requires_grad_(False)
    x = torch.randn(1, 2, 6, 4, 4)
    changed = x.clone()
    changed[:, :, 3:] += 1
    assert torch.equal(conv(x)[:, :, :3], conv(changed)[:, :, :3])
    # One frame meets the last temporal tap alone.
    single = torch.nn.functional.conv2d(
        torch.nn.functional.pad(x[:, :, 0], (1, 1, 1, 1), mode="reflect"), conv.weight[:, :, 2], conv.bias
    )
    torch.testing.assert_close(conv(x[:, :, :1])[:, :, 0], single)


def test_a_halving_convolution_pads_right_and_bottom_only() -> None:
    conv = CausalConv3d(1, 1, (1, 2, 2)).requires_grad_(False)
    conv.weight.zero_()
    conv.bias.zero_()
    conv.weight[0, 0, 2, 0, 0] = 1
    x = torch.arange(16.0).view(1, 1, 1, 4, 4)
    assert torch.equal(conv(x)[0, 0, 0], x[0, 0, 0, ::2, ::2])
    assert conv(x.expand(1, 1, 17, 4, 4)).shape == (1, 1, 17, 2, 2)
    assert CausalConv3d(1, 1, (2, 2, 2))(x.expand(1, 1, 17, 4, 4)).shape == (1, 1, 9, 2, 2)


def test_group_norm_takes_one_frame_at_a_time() -> None:
    torch.manual_seed(0)
    norm, x = FrameGroupNorm(64), torch.randn(1, 64, 3, 4, 4)
    assert torch.allclose(norm(x)[:, :, 1:2], norm(x[:, :, 1:2]), atol=1e-6)


def test_a_full_tile_has_1797_tokens_centred_on_zero() -> None:
    positions = coordinates((7, 16, 16), 5, torch.float32, torch.device("cpu"))
    assert positions.shape == (1797, 3)
    assert torch.equal(positions[-5:], torch.zeros(5, 3))
    assert torch.allclose(positions.mean(0), torch.zeros(3), atol=1e-6)
    assert positions[0].tolist() == pytest.approx([1 / 7 - 1, 1 / 16 - 1, 1 / 16 - 1])
    assert positions[1].tolist() == pytest.approx([1 / 7 - 1, 1 / 16 - 1, 3 / 16 - 1])


def test_rotary_turns_three_quarters_of_a_head_and_leaves_the_suffix() -> None:
    positions = coordinates((1, 2, 2), 5, torch.float32, torch.device("cpu"))
    cos, sin = rotary_table(positions, 64)
    assert cos.shape == (9, 1, 24)
    x = torch.randn(1, 9, 2, 64)
    turned = rotate(x, cos, sin)
    assert torch.equal(turned[..., 48:], x[..., 48:])
    assert torch.equal(turned[:, 4:], x[:, 4:])
    # Row 0 of the second axis: 2 pi * -0.5 * 1 on pair (8, 32).
    assert turned[0, 0, 0, 8] == pytest.approx(float(-x[0, 0, 0, 8]), abs=1e-5)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_unpatchify_puts_every_value_in_its_place() -> None:
    t, h, w = 2, 3, 2
    video = torch.arange(3.0 * 4 * t * 16 * h * 16 * w).view(1, 3, 4 * t, 16 * h, 16 * w)
    tokens = [
        video[0, :, 4 * a : 4 * a + 4, 16 * b : 16 * b + 16, 16 * c : 16 * c + 16].flatten()
        for a in range(t)
        for b in range(h)
        for c in range(w)
    ]
    assert torch.equal(unpatchify(torch.stack(tokens)[None], (t, h, w)), video)


def test_bytes_are_truncated_and_clamped() -> None:
    frames = torch.tensor([0.0, 0.999, 1.0, 1.5, -0.5, 0.5, 254.999 / 255])
    assert to_bytes(frames).tolist() == [0, 254, 255, 255, 0, 127, 254]
    assert to_bytes(frames).dtype == torch.uint8


def test_planes_become_the_bytes_that_pixels_become() -> None:
    planes = torch.rand(3, 2, 5, 7).permute(1, 2, 3, 0)
    pixels = to_bytes(planes)
    assert pixels.is_contiguous() and torch.equal(pixels, to_bytes(planes.contiguous()))


def test_pixels_survive_the_round_trip() -> None:
    pixels = torch.rand(3, 32, 32, 3)
    assert torch.allclose(denormalise(normalise(pixels, torch.float32)), pixels, atol=1e-6)


def test_fp16_pixels_are_rounded_before_they_are_normalised() -> None:
    pixels = torch.rand(1, 32, 32, 3)
    unit = ((pixels * 2 - 1).half() + 1) / 2
    mean, std = torch.tensor(PIXEL_MEAN).half(), torch.tensor(PIXEL_STD).half()
    assert torch.equal(normalise(pixels, torch.float16)[0].permute(1, 2, 3, 0), (unit - mean) / std)


def test_fp16_frames_use_rounded_constants_in_fp32() -> None:
    decoded = torch.randn(1, 3, 2, 4, 4).half()
    mean, std = torch.tensor(PIXEL_MEAN).half().float(), torch.tensor(PIXEL_STD).half().float()
    expected = (decoded.float()[0].permute(1, 2, 3, 0) * std + mean).clamp(0, 1)
    assert torch.equal(denormalise(decoded), expected)
