"""Names and shapes of every tensor in the four kinds of ComfyUI files, for any sizes (checkpoint-formats §2.3, §5).

Logical shapes only: how a tensor is stored is for `storage`. The default sizes are the published model's. Fed with
sizes by `made_files` and the tests; it makes no values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]
Shapes = dict[str, Shape]

VECTORS, FINAL_VECTORS, MODALITIES, PATCH_AREA = 6, 2, 3, 4
"""AdaLN vectors of a block and of the final layer, modalities, latent pixels of one DiT patch (dit-contract §1)."""
VIDEO_PATCH = 3 * 4 * 16 * 16
"""Values the video decoder makes of one latent: channels, frames, rows, columns (conditioning contract §4.1)."""


@dataclass(frozen=True, slots=True)
class TransformerSizes:
    """curve: grid and rank of the pruned AdaLN's table, or None for the full form with its timestep network."""

    hidden: int = 5376
    layers: int = 50
    refiner_layers: int = 2
    heads: int = 56
    head_dim: int = 128
    ffn: int = 14336
    channels: int = 24
    audio_channels: int = 32
    text_dim: int = 5120
    rope_freqs: int = 16
    curve: tuple[int, int] | None = (1025, 8)
    sinusoid: int = 256
    time_hidden: int = 5376
    time_dim: int = 2688


@dataclass(frozen=True, slots=True)
class EncoderSizes:
    vocab: int = 151936
    hidden: int = 5120
    intermediate: int = 25600
    layers: int = 50
    heads: int = 64
    kv_heads: int = 8
    head_dim: int = 128
    vision_hidden: int = 1152
    vision_intermediate: int = 4304
    vision_depth: int = 27
    positions: int = 2304
    taps: int = 3


@dataclass(frozen=True, slots=True)
class VideoVaeSizes:
    """encoder_widths: channels of each of the levels, the first of which leave `conv_in` too."""

    channels: int = 24
    encoder_widths: tuple[int, ...] = (128, 256, 256, 512, 512, 1024)
    blocks: int = 2
    downsampled: int = 4
    width: int = 2048
    inner: int = 2048
    ffn: int = 8192
    layers: int = 36
    registers: int = 4


@dataclass(frozen=True, slots=True)
class AudioVaeSizes:
    """encoder_widths: before, between and after the stages; decoder_widths: after `conv_pre` and after each stage."""

    channels: int = 32
    encoder_widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    strides: tuple[int, ...] = (2, 4, 4, 5, 5)
    mlp: int = 64
    decoder_in: int = 2048
    decoder_widths: tuple[int, ...] = (1024, 512, 256, 128, 64, 32, 16, 8)
    up_kernels: tuple[int, ...] = (9, 9, 4, 4, 4, 4, 4)
    block_kernels: tuple[int, ...] = (3, 7, 11)
    dilations: int = 3
    taps: int = 12


@dataclass(frozen=True, slots=True)
class UpscalerSizes:
    """blocks: residual ones before and after the resize; after every second, from the first on, a temporal one."""

    latent_channels: int = 24
    channels: int = 512
    embedding: int = 64
    blocks: tuple[int, int] = (12, 12)
    kernel: int = 5


def transformer_shapes(sizes: TransformerSizes) -> Shapes:
    """The DiT: 532 tensors pruned, 535 full at the published sizes."""
    time_dim = sizes.curve[1] if sizes.curve else sizes.time_dim
    video_row = sizes.channels * PATCH_AREA
    shapes: Shapes = {
        **_linear("video_patch_proj", sizes.hidden, video_row),
        **_linear("audio_patch_proj", sizes.hidden, sizes.audio_channels),
        **_linear("condition_proj", sizes.hidden, sizes.text_dim),
        "rope.inv_freq": (sizes.rope_freqs,),
        **_clock(sizes),
    }
    for i in range(sizes.refiner_layers):
        shapes |= _block(f"token_refiner.blocks.{i}", sizes)
    shapes["token_refiner.final_norm.weight"] = (sizes.hidden,)
    for i in range(sizes.layers):
        shapes |= _block(f"blocks.{i}", sizes)
        shapes |= _linear(f"blocks.{i}.adaln_proj.linear", MODALITIES * VECTORS * sizes.hidden, time_dim)
    shapes["final_layer.norm.weight"] = (sizes.hidden,)
    shapes |= _linear("final_layer.adaln_proj.linear", FINAL_VECTORS * sizes.hidden, time_dim)
    shapes |= _linear("final_layer.video_out", video_row, sizes.hidden)
    return shapes | _linear("final_layer.audio_out", sizes.audio_channels, sizes.hidden)


def _clock(sizes: TransformerSizes) -> Shapes:
    if sizes.curve:
        return {"adaln_t_table": sizes.curve}
    return _linear("time_embedder.proj_in", sizes.time_hidden, sizes.sinusoid) | _linear(
        "time_embedder.proj_out", sizes.time_dim, sizes.time_hidden
    )


def _block(name: str, sizes: TransformerSizes) -> Shapes:
    inner = sizes.heads * sizes.head_dim
    return {
        f"{name}.norm1.weight": (sizes.hidden,),
        f"{name}.norm2.weight": (sizes.hidden,),
        f"{name}.attn.q_norm.weight": (sizes.head_dim,),
        f"{name}.attn.k_norm.weight": (sizes.head_dim,),
        f"{name}.attn.qkv_proj.weight": (3 * inner, sizes.hidden),
        f"{name}.attn.out_proj.weight": (sizes.hidden, inner),
        f"{name}.mlp.fc1.weight": (2 * sizes.ffn, sizes.hidden),
        f"{name}.mlp.fc2.weight": (sizes.hidden, sizes.ffn),
    }


def encoder_shapes(sizes: EncoderSizes) -> Shapes:
    """The text encoder: 902 tensors at the published sizes."""
    shapes: Shapes = {"model.embed_tokens.weight": (sizes.vocab, sizes.hidden)}
    for i in range(sizes.layers):
        shapes |= _language_layer(f"model.layers.{i}", sizes)
    return shapes | _vision(sizes)


def _language_layer(name: str, sizes: EncoderSizes) -> Shapes:
    query, key, hidden = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim, sizes.hidden
    return {
        f"{name}.input_layernorm.weight": (hidden,),
        f"{name}.post_attention_layernorm.weight": (hidden,),
        f"{name}.self_attn.q_norm.weight": (sizes.head_dim,),
        f"{name}.self_attn.k_norm.weight": (sizes.head_dim,),
        f"{name}.self_attn.q_proj.weight": (query, hidden),
        f"{name}.self_attn.k_proj.weight": (key, hidden),
        f"{name}.self_attn.v_proj.weight": (key, hidden),
        f"{name}.self_attn.o_proj.weight": (hidden, query),
        f"{name}.mlp.gate_proj.weight": (sizes.intermediate, hidden),
        f"{name}.mlp.up_proj.weight": (sizes.intermediate, hidden),
        f"{name}.mlp.down_proj.weight": (hidden, sizes.intermediate),
    }


def _vision(sizes: EncoderSizes) -> Shapes:
    hidden, merged = sizes.vision_hidden, 4 * sizes.vision_hidden
    shapes: Shapes = {
        **_conv("visual.patch_embed.proj", hidden, 3, 2, 16, 16),
        "visual.pos_embed.weight": (sizes.positions, hidden),
    }
    for i in range(sizes.vision_depth):
        name = f"visual.blocks.{i}"
        shapes |= _norm(f"{name}.norm1", hidden) | _norm(f"{name}.norm2", hidden)
        shapes |= _linear(f"{name}.attn.qkv", 3 * hidden, hidden) | _linear(f"{name}.attn.proj", hidden, hidden)
        shapes |= _linear(f"{name}.mlp.linear_fc1", sizes.vision_intermediate, hidden)
        shapes |= _linear(f"{name}.mlp.linear_fc2", hidden, sizes.vision_intermediate)
    mergers = {"visual.merger": hidden} | {f"visual.deepstack_merger_list.{j}": merged for j in range(sizes.taps)}
    for name, normed in mergers.items():
        shapes |= _norm(f"{name}.norm", normed)
        shapes |= _linear(f"{name}.linear_fc1", merged, merged) | _linear(f"{name}.linear_fc2", sizes.hidden, merged)
    return shapes


def video_vae_shapes(sizes: VideoVaeSizes) -> Shapes:
    """The video VAE with its latent statistics: 562 tensors at the published sizes."""
    moments, deepest = 2 * sizes.channels, sizes.encoder_widths[-1]
    return {
        "latents_mean": (sizes.channels,),
        "latents_std": (sizes.channels,),
        **_conv("encoder.conv_in", sizes.encoder_widths[0], 3, 3, 3, 3),
        **dict(_video_levels(sizes)),
        **_norm("encoder.norm_out", deepest),
        **_conv("encoder.conv_out", moments, deepest, 3, 3, 3),
        **_conv("quant_conv", moments, moments, 1, 1, 1),
        **_conv("post_quant_conv", sizes.channels, sizes.channels, 1, 1, 1),
        **_video_decoder(sizes),
    }


def _video_levels(sizes: VideoVaeSizes) -> Iterator[tuple[str, Shape]]:
    channels = sizes.encoder_widths[0]
    for level, width in enumerate(sizes.encoder_widths):
        for block in range(sizes.blocks):
            name = f"encoder.down.{level}.block.{block}"
            yield from (_norm(f"{name}.norm1", channels) | _norm(f"{name}.norm2", width)).items()
            yield from _conv(f"{name}.conv1", width, channels, 3, 3, 3).items()
            yield from _conv(f"{name}.conv2", width, width, 3, 3, 3).items()
            if channels != width:
                yield from _conv(f"{name}.nin_shortcut", width, channels, 1, 1, 1).items()
            channels = width
        if level < sizes.downsampled:
            yield from _conv(f"encoder.down.{level}.downsample.conv", width, width, 3, 3, 3).items()


def _video_decoder(sizes: VideoVaeSizes) -> Shapes:
    width = sizes.width
    shapes: Shapes = {
        "decoder.register_tokens": (1, sizes.registers, width),
        "decoder.mask_token": (1, 1, width),
        **_linear("decoder.x_embedder", width, sizes.channels),
        **_norm("decoder.norm_out", width),
        **_linear("decoder.proj_out", VIDEO_PATCH, width),
    }
    for i in range(sizes.layers):
        name = f"decoder.transformer_blocks.{i}"
        shapes |= {f"{name}.{leaf}": (width,) for leaf in ("norm1.weight", "norm2.weight", "scale1", "scale2")}
        shapes |= _linear(f"{name}.attn.to_qkv", 3 * sizes.inner, width) | _linear(
            f"{name}.attn.to_out", width, sizes.inner
        )
        shapes |= _linear(f"{name}.ff.w1", 2 * sizes.ffn, width) | _linear(f"{name}.ff.w2", width, sizes.ffn)
    return shapes


def audio_vae_shapes(sizes: AudioVaeSizes) -> Shapes:
    """The audio VAE with folded weight norm: 917 tensors at the published sizes."""
    channels = sizes.channels
    shapes: Shapes = {"latents_mean": (channels,), "latents_std": (channels,), **_audio_encoder(sizes)}
    for name in ("mean_proj", "logs_proj"):
        shapes |= _conv(name, channels, channels, 1)
    return shapes | _conv("dec_in_proj", sizes.decoder_in, channels, 1) | _audio_decoder(sizes)


def _audio_encoder(sizes: AudioVaeSizes) -> Shapes:
    widths, last = sizes.encoder_widths, len(sizes.strides) + 1
    shapes = _conv("encoder.block.0", widths[0], 1, 7)
    for stage, stride in enumerate(sizes.strides, start=1):
        name, width = f"encoder.block.{stage}.block", widths[stage - 1]
        for unit in range(3):
            shapes |= {f"{name}.{unit}.block.{leaf}.alpha": (1, width, 1) for leaf in (0, 2)}
            shapes |= _conv(f"{name}.{unit}.block.1", width, width, 7) | _conv(
                f"{name}.{unit}.block.3", width, width, 1
            )
        shapes |= {f"{name}.3.alpha": (1, width, 1)} | _conv(f"{name}.4", widths[stage], width, 2 * stride)
    shapes |= {f"encoder.block.{last}.alpha": (1, widths[-1], 1)}
    return shapes | _conv(f"encoder.block.{last + 1}", widths[-1], widths[-1], 3) | _audio_projection(sizes)


def _audio_projection(sizes: AudioVaeSizes) -> Shapes:
    width, channels = sizes.encoder_widths[-1], sizes.channels
    return {
        **_norm("pre_block.norm1", width),
        **_norm("pre_block.norm2", channels),
        **_norm("pre_block.norm3", width),
        **{f"pre_block.attn.{leaf}": (width,) for leaf in ("q_bias", "v_bias", "zero_k_bias")},
        "pre_block.attn.qkv.weight": (3 * width, width),
        **_linear("pre_block.attn.proj", channels, channels),
        **_linear("pre_block.proj", channels, width),
        **_norm("pre_block.mlp.norm", channels),
        **_linear("pre_block.mlp.w0", sizes.mlp, channels),
        **_linear("pre_block.mlp.w1", sizes.mlp, channels),
        **_linear("pre_block.mlp.w2", channels, sizes.mlp),
    }


def _audio_decoder(sizes: AudioVaeSizes) -> Shapes:
    widths = sizes.decoder_widths
    shapes = _conv("decoder.conv_pre", widths[0], sizes.decoder_in, 7)
    for stage, kernel in enumerate(sizes.up_kernels):
        width = widths[stage + 1]
        shapes |= {
            f"decoder.ups.{stage}.0.weight": (widths[stage], width, kernel),
            f"decoder.ups.{stage}.0.bias": (width,),
        }
        for j, block_kernel in enumerate(sizes.block_kernels):
            name = f"decoder.resblocks.{stage * len(sizes.block_kernels) + j}"
            for d in range(sizes.dilations):
                shapes |= _conv(f"{name}.convs1.{d}", width, width, block_kernel)
                shapes |= _conv(f"{name}.convs2.{d}", width, width, block_kernel)
            for a in range(2 * sizes.dilations):
                shapes |= _activation(f"{name}.activations.{a}", width, sizes.taps)
    shapes |= _activation("decoder.activation_post", widths[-1], sizes.taps)
    return shapes | {"decoder.conv_post.weight": (1, widths[-1], 7)}


def _activation(name: str, width: int, taps: int) -> Mapping[str, Shape]:
    return {
        f"{name}.act.alpha": (width,),
        f"{name}.act.beta": (width,),
        f"{name}.upsample.filter": (1, 1, taps),
        f"{name}.downsample.lowpass.filter": (1, 1, taps),
    }


def upscaler_shapes(sizes: UpscalerSizes) -> Shapes:
    """The latent upscaler: 322 tensors at the published sizes (checkpoint-formats §6, last lines)."""
    channels, shapes = sizes.channels, _conv("conv_in", sizes.channels, sizes.latent_channels, 3, 3, 3)
    shapes |= _linear("embed.0", sizes.embedding, 1) | _linear("embed.2", sizes.embedding, sizes.embedding)
    for side, count in zip(("in_blocks", "out_blocks"), sizes.blocks, strict=True):
        at = 0
        for block in range(count):
            shapes |= _upscaler_residual(f"{side}.{at}", sizes)
            at += 1
            if block % 2 == 0:
                shapes |= _upscaler_temporal(f"{side}.{at}", sizes)
                at += 1
    return shapes | _norm("norm_out", channels) | _conv("conv_out", sizes.latent_channels, channels, 3, 3, 3)


def _upscaler_residual(name: str, sizes: UpscalerSizes) -> Shapes:
    channels = sizes.channels
    return {
        **_norm(f"{name}.in_layers.0", channels),
        **_conv(f"{name}.in_layers.2", channels, channels, 3, 3, 3),
        **_linear(f"{name}.emb_layers.1", 2 * channels, sizes.embedding),
        **_norm(f"{name}.out_norm", channels),
        **_conv(f"{name}.out_layers.2", channels, channels, 3, 3, 3),
    }


def _upscaler_temporal(name: str, sizes: UpscalerSizes) -> Shapes:
    channels = sizes.channels
    return {
        **_norm(f"{name}.norm", channels),
        **_conv(f"{name}.dwconv", channels, 1, sizes.kernel, 1, 1),
        **_conv(f"{name}.pwconv", channels, channels, 1, 1, 1),
    }


def _linear(name: str, out: int, inputs: int) -> Shapes:
    return {f"{name}.weight": (out, inputs), f"{name}.bias": (out,)}


def _conv(name: str, out: int, inputs: int, *kernel: int) -> Shapes:
    return {f"{name}.weight": (out, inputs, *kernel), f"{name}.bias": (out,)}


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
