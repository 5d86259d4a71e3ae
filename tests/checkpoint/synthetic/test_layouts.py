"""Names and shapes of the real files, and their sizes to the byte."""

import json
from collections import Counter

import pytest
import torch

from h3runtime.checkpoint.synthetic import published
from h3runtime.checkpoint.synthetic.layouts import (
    AudioVaeSizes,
    EncoderSizes,
    TransformerSizes,
    VideoVaeSizes,
    audio_vae_shapes,
    encoder_shapes,
    transformer_shapes,
    video_vae_shapes,
)
from h3runtime.checkpoint.synthetic.recipes.transformer import transformer
from h3runtime.checkpoint.synthetic.storage import Scheme, Storage, pack, stored_layout
from h3runtime.checkpoint.writer import NAMES, encode_header, in_order
from tests.parity.fixture import DIRECTORY


def recorded(*keys: str) -> dict[str, tuple[int, ...]]:
    path = DIRECTORY / "full_size_keys.json"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    table = json.loads(path.read_text())
    merged = {name: tuple(shape) for key in keys for name, (shape, _dtype) in table[key].items()}
    if "dit_pruned_curve" in keys:
        merged = {name: shape for name, shape in merged.items() if name not in table["dit_pruned_curve_absent"]}
    return merged


def test_the_real_model_s_names_and_shapes() -> None:
    assert transformer_shapes(TransformerSizes(curve=None)) == recorded("dit")
    assert transformer_shapes(TransformerSizes()) == recorded("dit", "dit_pruned_curve")
    assert encoder_shapes(EncoderSizes()) == recorded("text_encoder")
    assert video_vae_shapes(VideoVaeSizes()) == recorded("video_vae")
    assert audio_vae_shapes(AudioVaeSizes()) == recorded("audio_vae")


PRUNED, FULL = transformer_shapes(TransformerSizes()), transformer_shapes(TransformerSizes(curve=None))
ENCODER, VIDEO, AUDIO = (
    encoder_shapes(EncoderSizes()),
    video_vae_shapes(VideoVaeSizes()),
    audio_vae_shapes(AudioVaeSizes()),
)
PUBLISHED = {
    "pruned_bf16": (PRUNED, published.TRANSFORMER_BF16, 532, 40_225_724_176, 0),
    "pruned_int8_convrot": (PRUNED, published.TRANSFORMER_INT8, 932, 20_970_379_616, 0),
    "pruned_nvfp4": (PRUNED, published.TRANSFORMER_NVFP4, 1132, 12_528_636_800, 0),
    "pruned_fp8_scaled": (PRUNED, published.TRANSFORMER_FP8, 1082, 20_958_205_608, 8192),
    "bf16": (FULL, published.TRANSFORMER_BF16, 535, 66_280_487_368, 1024),
    "int8_convrot": (FULL, published.TRANSFORMER_INT8_FULL, 1035, 34_038_892_334, 1024),
    "encoder nvfp4_awq": (ENCODER, published.ENCODER_NVFP4_AWQ, 2054, 15_687_142_551, 0),
    "encoder int8_convrot": (ENCODER, published.ENCODER_INT8, 1602, 27_141_342_152, 1024),
    "encoder bf16": (ENCODER, published.ENCODER_BF16, 902, 51_506_295_256, 1024),
    "video fp16": (VIDEO, published.VIDEO_VAE_FP16, 562, 5_207_808_496, 4096),
    "video int8_convrot": (VIDEO, published.VIDEO_VAE_INT8, 850, 2_811_065_184, 4096),
    "audio fp32": (AUDIO, published.AUDIO_VAE_FP32, 917, 605_254_808, 4096),
}
"""Logical shapes, storage, tensors and bytes of the published files, and how far off in bytes we may be: 0 for those
that checkpoint-formats §1 reproduces to the byte, else what nobody knows of their metadata."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_sizes(name: str) -> None:
    """Names, dtypes, shapes, markers and header all count."""
    shapes, stored_as, tensors, size, off = PUBLISHED[name]
    layout = in_order(stored_layout(shapes, stored_as))
    data = sum(torch.Size(shape).numel() * dtype.itemsize for dtype, shape in layout.values())
    assert len(layout) == tensors
    assert abs(len(encode_header(layout, stored_as.file_metadata(shapes))) + data - size) <= off


CENSUS = {
    "pruned_int8_convrot": {"I8": 200, "BF16": 220, "F16": 102, "F32": 210, "U8": 200},
    "int8_convrot": {"I8": 250, "BF16": 272, "F32": 263, "U8": 250},
    "pruned_nvfp4": {"U8": 400, "F8_E4M3": 200, "BF16": 220, "F16": 102, "F32": 210},
    "pruned_fp8_scaled": {"F8_E4M3": 200, "U8": 200, "BF16": 220, "F16": 102, "F32": 360},
    "encoder nvfp4_awq": {"U8": 701, "F8_E4M3": 350, "F32": 351, "I8": 1, "BF16": 651},
    "encoder int8_convrot": {"I8": 350, "F32": 350, "U8": 350, "BF16": 552},
}
"""Tensors of each dtype (checkpoint-formats §2.6, §5.1)."""


@pytest.mark.parametrize("name", CENSUS)
def test_the_published_census(name: str) -> None:
    shapes, stored_as, *_ = PUBLISHED[name]
    assert Counter(NAMES[dtype] for dtype, _ in stored_layout(shapes, stored_as).values()) == CENSUS[name]


def test_the_published_markers() -> None:
    """Byte strings and lengths of checkpoint-formats §2.5."""
    layout = stored_layout(ENCODER, published.ENCODER_NVFP4_AWQ)
    assert layout["model.layers.7.mlp.up_proj.comfy_quant"][1] == (55,)
    assert layout["model.embed_tokens.comfy_quant"][1] == (29,)
    fp8, int8 = published.TRANSFORMER_FP8, published.TRANSFORMER_INT8_FULL
    found = {leaf: fp8.scheme_of(f"blocks.3.{leaf}.weight", (1, 1)) for leaf in ("mlp.fc1", "mlp.fc2")}
    assert found["mlp.fc1"].marker() == b'{"format": "float8_e4m3fn"}'
    assert found["mlp.fc2"].marker() == b'{"format": "float8_e4m3fn", "full_precision_matrix_mult": true}'
    adaln = int8.scheme_of("blocks.3.adaln_proj.linear.weight", (1, 1))
    assert adaln.marker() == b'{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 64}'
    assert published.TRANSFORMER_INT8.scheme_of("blocks.3.adaln_proj.linear.weight", (1, 1)) is None
    assert int8.scheme_of("final_layer.adaln_proj.linear.weight", (1, 1)) is None


def test_metadata_describes_what_has_no_markers() -> None:
    told = json.loads(published.TRANSFORMER_NVFP4_FULL.file_metadata(FULL)["_quantization_metadata"])
    assert told["format_version"] == "1.0" and len(told["layers"]) == 258
    assert set(map(str, told["layers"].values())) == {"{'format': 'nvfp4'}"}
    assert not [n for n in stored_layout(FULL, published.TRANSFORMER_NVFP4_FULL) if n.endswith(".comfy_quant")]


STORAGES = {
    "bf16": published.TRANSFORMER_BF16,
    "nvfp4": published.TRANSFORMER_NVFP4,
    "nvfp4 full": published.TRANSFORMER_NVFP4_FULL,
    "fp8": published.TRANSFORMER_FP8,
    "mxfp8": Storage(torch.bfloat16, layers=published.in_blocks(Scheme("mxfp8"))),
    "e5m2": Storage(torch.bfloat16, layers=published.in_blocks(Scheme("float8_e5m2"))),
    "int8": Storage(torch.bfloat16, layers=published.in_blocks(Scheme("int8_tensorwise", convrot=16))),
}


@pytest.mark.parametrize("stored_as", STORAGES.values(), ids=STORAGES)
@pytest.mark.parametrize("curve", [(33, 8), None])
def test_what_is_packed_is_what_was_laid_out(stored_as: Storage, curve: tuple[int, int] | None) -> None:
    """Also where rows and columns need padding."""
    sizes = TransformerSizes(
        hidden=48,
        layers=1,
        refiner_layers=1,
        heads=1,
        ffn=80,
        text_dim=32,
        curve=curve,
        time_hidden=40,
        time_dim=24,
    )
    shapes = transformer_shapes(sizes)
    packed = pack(transformer().weights(shapes), stored_as)
    assert {name: (t.dtype, tuple(t.shape)) for name, t in packed.items()} == stored_layout(shapes, stored_as)
