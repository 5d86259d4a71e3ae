"""Names and shapes of the real files, and their sizes to the byte."""

import json

import pytest
import torch

from h3runtime.checkpoint import layouts, storage
from h3runtime.checkpoint.layouts import (
    AudioVaeSizes,
    EncoderSizes,
    TransformerSizes,
    VideoVaeSizes,
    audio_vae_shapes,
    encoder_shapes,
    transformer_shapes,
    video_vae_shapes,
)
from h3runtime.checkpoint.storage import Storage, pack, stored_layout
from h3runtime.checkpoint.synthetic import transformer
from h3runtime.checkpoint.writer import encode_header, in_order
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


@pytest.mark.parametrize(
    ("shapes", "stored_as", "metadata", "tensors", "size"),
    [
        (transformer_shapes(TransformerSizes()), storage.TRANSFORMER_NVFP4, None, 1132, 12_528_636_800),
        (transformer_shapes(TransformerSizes()), storage.TRANSFORMER_BF16, {"format": "pt"}, 532, 40_225_724_176),
        (encoder_shapes(EncoderSizes()), storage.ENCODER_NVFP4_AWQ, None, 2054, 15_687_142_551),
    ],
    ids=["pruned_nvfp4", "pruned_bf16", "nvfp4_awq"],
)
def test_the_published_files_to_the_byte(
    shapes: layouts.Shapes, stored_as: Storage, metadata: dict[str, str] | None, tensors: int, size: int
) -> None:
    """checkpoint-formats §1: names, dtypes, shapes, markers and header all count."""
    layout = in_order(stored_layout(shapes, stored_as))
    data = sum(torch.Size(shape).numel() * dtype.itemsize for dtype, shape in layout.values())
    assert len(layout) == tensors
    assert len(encode_header(layout, metadata)) + data == size


@pytest.mark.parametrize("stored_as", [storage.TRANSFORMER_NVFP4, storage.TRANSFORMER_BF16])
@pytest.mark.parametrize("curve", [(33, 8), None])
def test_what_is_packed_is_what_was_laid_out(stored_as: Storage, curve: tuple[int, int] | None) -> None:
    sizes = TransformerSizes(hidden=48, layers=1, refiner_layers=1, heads=1, ffn=80, text_dim=32, curve=curve)
    sizes = layouts.TransformerSizes(
        **{f: getattr(sizes, f) for f in sizes.__slots__} | {"time_hidden": 40, "time_dim": 24}
    )
    shapes = transformer_shapes(sizes)
    packed = pack(transformer().weights(shapes), stored_as)
    assert {name: (t.dtype, tuple(t.shape)) for name, t in packed.items()} == stored_layout(shapes, stored_as)
    if curve:
        assert bytes(
            pack(transformer().weights(shapes), storage.TRANSFORMER_NVFP4)["blocks.0.mlp.fc1.comfy_quant"]
        ) == (b'{"format": "nvfp4"}')
