"""Streaming: the bytes are the planned ones and nobody's order of threads, and what they decode to is alive.

The published sizes take minutes, so these tests stream files of some megabytes, cut into many chunks.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from h3runtime.backends.linear.dequant import dense
from h3runtime.checkpoint.assemble import assemble
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.synthetic import full_size, layouts, published
from h3runtime.checkpoint.synthetic.full_size import Run, tensor_runs, write_streamed
from h3runtime.checkpoint.synthetic.made_files import MadeFile
from h3runtime.checkpoint.synthetic.recipes.text_encoder import text_encoder
from h3runtime.checkpoint.synthetic.recipes.transformer import transformer
from h3runtime.checkpoint.synthetic.recipes.video_vae import video_vae
from h3runtime.checkpoint.synthetic.storage import Storage
from h3runtime.checkpoint.synthetic.synthesis import Order, plan
from h3runtime.checkpoint.synthetic.tiny import VIDEO_VAE

SIZES = layouts.TransformerSizes(hidden=512, layers=2, heads=4, ffn=768, text_dim=256, time_hidden=256, time_dim=64)
FULL_ADALN = layouts.TransformerSizes(
    hidden=512, layers=2, heads=4, ffn=768, text_dim=256, time_hidden=256, time_dim=64, curve=None
)
STORAGES: dict[str, tuple[Storage, layouts.TransformerSizes]] = {
    "bf16": (published.TRANSFORMER_BF16, SIZES),
    "nvfp4": (published.TRANSFORMER_NVFP4, SIZES),
    "nvfp4 full": (published.TRANSFORMER_NVFP4_FULL, FULL_ADALN),
    "int8": (published.TRANSFORMER_INT8, SIZES),
    "int8 full": (published.TRANSFORMER_INT8_FULL, FULL_ADALN),
    "fp8": (published.TRANSFORMER_FP8, SIZES),
    "fp8 full": (published.TRANSFORMER_FP8_FULL, FULL_ADALN),
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(full_size, "CHUNK", 1 << 16)
    monkeypatch.setattr(full_size, "STREAMED", 1 << 17)
    yield


def transformer_file(name: str) -> MadeFile:
    stored, sizes = STORAGES[name]
    return MadeFile("model.safetensors", layouts.transformer_shapes(sizes), transformer(3), stored, {})


def write(file: MadeFile, folder: Path, threads: int = 2) -> str:
    folder.mkdir(exist_ok=True)
    return write_streamed(file, folder, threads, lambda _: None)


@pytest.mark.parametrize("name", STORAGES)
def test_the_file_is_the_planned_one(tmp_path: Path, name: str) -> None:
    file = transformer_file(name)
    told: list[int] = []
    digest = write_streamed(file, tmp_path, 3, told.append)
    content = (tmp_path / file.name).read_bytes()
    assert content.startswith(file.header()) and len(content) == file.size() == sum(told)
    assert hashlib.sha256(content).hexdigest() == digest
    with CheckpointFile(tmp_path / file.name) as opened:
        found = {n: (e.dtype, e.shape) for n, e in opened.source.entries.items()}
        assert found == file.layout() and not opened.synthetic


def test_any_number_of_threads_makes_the_same_bytes(tmp_path: Path) -> None:
    file = transformer_file("nvfp4")
    assert len({write(file, tmp_path / str(threads), threads) for threads in (1, 2, 5)}) == 1


@pytest.mark.parametrize("name", STORAGES)
def test_decoded_weights_have_a_trained_spread_and_differing_rows(tmp_path: Path, name: str) -> None:
    file = transformer_file(name)
    write(file, tmp_path)
    linears = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2", "adaln_proj.linear")
    with CheckpointFile(tmp_path / file.name) as opened:
        for layer in (f"blocks.1.{leaf}" for leaf in linears):
            weight = decoded(opened, layer)
            wanted = file.recipe.random(f"{layer}.weight", weight.shape)
            assert torch.isfinite(weight).all()
            for part, like in zip(weight.chunk(3), wanted.chunk(3), strict=True):
                assert abs(float(part.std() / like.std()) - 1) < 0.08, layer
                assert abs(float(part.mean())) < 0.02 * float(part.std()), layer


def decoded(file: CheckpointFile, name: str) -> torch.Tensor:
    if name not in file.layers:
        return file.read(f"{name}.weight").float()
    layer = file.layers[name]
    stored = assemble(layer, {n: file.read(n) for n in (f"{name}.weight", *layer.sidecars)}, layer.shape)
    return dense(stored, torch.float32)


def test_small_tensors_are_the_recipe_s(tmp_path: Path) -> None:
    file = transformer_file("int8")
    write(file, tmp_path)
    with CheckpointFile(tmp_path / file.name) as opened:
        for name in (
            "adaln_t_table",
            "blocks.0.norm1.weight",
            "final_layer.video_out.weight",
            "blocks.1.adaln_proj.linear.bias",
        ):
            wanted = file.recipe.tensor(name, file.shapes[name]).to(opened.dtypes[name])
            assert torch.equal(opened.read(name), wanted), name


def test_an_encoder_with_awq_scales(tmp_path: Path) -> None:
    sizes = layouts.EncoderSizes(
        vocab=300, hidden=256, intermediate=512, layers=2, heads=2, kv_heads=1, vision_hidden=64, vision_depth=1
    )
    shapes = layouts.encoder_shapes(sizes)
    file = MadeFile("e.safetensors", shapes, text_encoder(3), published.ENCODER_NVFP4_AWQ, {})
    write(file, tmp_path)
    with CheckpointFile(tmp_path / file.name) as opened:
        scale = opened.read("model.layers.1.mlp.down_proj.pre_quant_scale")
        assert float(scale.min()) > 0 and abs(float(scale.float().mean()) - 1) < 0.1
        assert abs(float(decoded(opened, "model.embed_tokens").std()) - 1) < 0.05


def test_whatever_ends_it_early_leaves_nothing(tmp_path: Path) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_streamed(transformer_file("bf16"), tmp_path, 2, stop)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("pruned", [True, False])
@pytest.mark.parametrize("kind", published.FORMATS)
def test_the_published_sizes_can_all_be_streamed(monkeypatch: pytest.MonkeyPatch, kind: str, pruned: bool) -> None:
    """Every tensor of every set has runs of its size; none of the assertions about what can't be streamed fails."""
    monkeypatch.undo()
    for file in plan(Order(kind, pruned, full_size=True)):
        layout = file.layout()
        runs: dict[str, list[Run]] = {n: r for name in file.shapes for n, r in tensor_runs(file, name).items()}
        assert runs.keys() == layout.keys()
        for name, (dtype, shape) in layout.items():
            assert sum(run.nbytes for run in runs[name]) == dtype.itemsize * torch.Size(shape).numel(), name


def test_an_fp16_vae_has_no_number_out_of_range(tmp_path: Path) -> None:
    shapes = layouts.video_vae_shapes(VIDEO_VAE)
    file = MadeFile("v.safetensors", shapes, video_vae(3), published.VIDEO_VAE_FP16, {})
    write(file, tmp_path)
    with CheckpointFile(tmp_path / file.name) as opened:
        assert all(bool(torch.isfinite(opened.read(name)).all()) for name in opened.entries)
