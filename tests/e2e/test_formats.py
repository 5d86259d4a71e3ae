"""Clips from files of our own in every storage this delivery reads, named by the settings as an operator names them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.synthetic import layouts, published, tiny
from h3runtime.checkpoint.synthetic.byte_tokenizer import tokenizer_files
from h3runtime.checkpoint.synthetic.made_files import MadeFile
from h3runtime.checkpoint.synthetic.recipes.audio_vae import audio_vae
from h3runtime.checkpoint.synthetic.recipes.recipe import Recipe
from h3runtime.checkpoint.synthetic.recipes.text_encoder import text_encoder
from h3runtime.checkpoint.synthetic.recipes.transformer import transformer
from h3runtime.checkpoint.synthetic.recipes.video_vae import video_vae
from h3runtime.checkpoint.synthetic.storage import Storage
from h3runtime.checkpoint.writer import write_file
from h3runtime.core import GenerateSpec, GuideInput, MediaFile, SamplerSettings, Task
from h3runtime.engine.resident import ResidentEngine
from h3runtime.errors import CheckpointError, SettingsError
from h3runtime.media.probe import read_frames
from h3runtime.settings import Settings

PRUNED = tiny.TRANSFORMER
FULL = replace(PRUNED, curve=None, sinusoid=32, time_hidden=64, time_dim=32)
COARSE = replace(PRUNED, curve=(257, 16))


def plain(dtype: torch.dtype) -> Storage:
    """Everything in one dtype, but for the transformer's fp32 islands."""
    return replace(published.TRANSFORMER_BF16, dtype=dtype)


def transformer_file(
    folder: Path,
    sizes: layouts.TransformerSizes = PRUNED,
    stored: Storage = published.TRANSFORMER_BF16,
    prefix: str = "",
) -> Path:
    return _write(folder, "transformer", layouts.transformer_shapes(sizes), transformer(1), stored, prefix)


def encoder_file(folder: Path, stored: Storage = published.ENCODER_BF16) -> Path:
    return _write(folder, "encoder", layouts.encoder_shapes(tiny.TEXT_ENCODER), text_encoder(1), stored)


def video_vae_file(folder: Path, stored: Storage = published.VIDEO_VAE_FP16) -> Path:
    return _write(folder, "video_vae", layouts.video_vae_shapes(tiny.VIDEO_VAE), video_vae(1), stored)


def audio_vae_file(folder: Path) -> Path:
    shapes = layouts.audio_vae_shapes(tiny.AUDIO_VAE)
    return _write(folder, "audio_vae", shapes, audio_vae(1), published.AUDIO_VAE_FP32)


def _write(folder: Path, name: str, shapes: layouts.Shapes, recipe: Recipe, stored: Storage, prefix: str = "") -> Path:
    made = MadeFile("unprefixed", shapes, recipe, stored, tiny.METADATA)
    made.write(folder)
    with CheckpointFile(folder / made.name) as file:
        path = folder / f"{name}.safetensors"
        write_file(path, {prefix + key: file.read(key) for key in file.entries}, made.metadata())
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A whole BF16 set; the settings that name it."""
    folder = tmp_path_factory.mktemp("base")
    for name, content in tokenizer_files().items():
        (folder / name).write_bytes(content)
    return {
        "model_path": transformer_file(folder),
        "text_encoder_path": encoder_file(folder),
        "video_vae_path": video_vae_file(folder),
        "audio_vae_path": audio_vae_file(folder),
        "tokenizer_path": folder,
    }


def load(paths: dict[str, Path], **changes: object) -> ResidentEngine:
    engine = ResidentEngine(Settings(device="cpu", **paths, **changes), threads=1, warm_up=False)
    engine.load(lambda _: None)
    return engine


def spec(folder: Path, **changes: object) -> GenerateSpec:
    small = GenerateSpec(
        job_id="x",
        task=Task.T2VA,
        prompt="a red ball",
        width=64,
        height=64,
        frames=5,
        sampling=SamplerSettings(steps=2, seed=3),
        output=folder / "clip.mp4",
        scratch=folder,
        overwrite=True,
    )
    return replace(small, **changes)


CASES = {
    "bf16, full AdaLN": ("bf16", lambda at: {"model_path": transformer_file(at, FULL)}),
    "fp16, pruned": ("fp16", lambda at: {"model_path": transformer_file(at, PRUNED, plain(torch.float16))}),
    "fp32 transformer and VAE, full AdaLN": (
        "fp32",
        lambda at: {
            "model_path": transformer_file(at, FULL, plain(torch.float32)),
            "video_vae_path": video_vae_file(at, Storage(torch.float32)),
        },
    ),
    "NVFP4 with another curve, NVFP4-AWQ encoder": (
        "nvfp4",
        lambda at: {
            "model_path": transformer_file(at, COARSE, published.TRANSFORMER_NVFP4),
            "text_encoder_path": encoder_file(at, published.ENCODER_NVFP4_AWQ),
        },
    ),
    "prefixed NVFP4": (
        "nvfp4",
        lambda at: {
            "model_path": transformer_file(at, PRUNED, published.TRANSFORMER_NVFP4, "model.diffusion_model."),
        },
    ),
    "fp16 encoder": ("bf16", lambda at: {"text_encoder_path": encoder_file(at, Storage(torch.float16))}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_storage_gives_a_clip(base: dict[str, Path], tmp_path: Path, case: str) -> None:
    expected, parts = CASES[case]
    engine = load(base | parts(tmp_path))
    assert engine.facts().components[0].format == expected
    clip = engine.generate(spec(tmp_path), lambda _: None, lambda: False)
    assert clip.frames == len(read_frames(clip.output)) == 5
    assert all(clip.checks["latents"].figures[f"{stream}_finite"] for stream in ("video", "audio"))


def test_full_adaln_reacts_to_pictures(base: dict[str, Path], tmp_path: Path) -> None:
    engine = load(base | {"model_path": transformer_file(tmp_path, FULL)})
    hashes = set()
    for shade in (20, 220):
        Image.new("RGB", (64, 64), (shade, 90, 255 - shade)).save(tmp_path / f"{shade}.png")
        picture = MediaFile(tmp_path / f"{shade}.png", "first_frame")
        guide = GuideInput("first_frame", 0, picture=picture, fit="stretch", shown=True)
        asked = spec(tmp_path, task=Task.I2VA, guides=(guide,), diagnostics=True)
        clip = engine.generate(asked, lambda _: None, lambda: False)
        assert clip.diagnostics is not None
        hashes.add(clip.diagnostics["latents_sha256"])
    assert len(hashes) == 2


def test_files_in_the_wrong_place_are_named(base: dict[str, Path]) -> None:
    with pytest.raises(CheckpointError, match=r"audio_vae\.safetensors.*audio VAE.*transformer"):
        load(base | {"model_path": base["audio_vae_path"]})


def test_an_encoder_of_another_width_is_named(base: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"encoder\.safetensors.*64.*48"):
        load(base | {"model_path": transformer_file(tmp_path, replace(PRUNED, text_dim=48))})


def test_half_a_set_of_real_weights_is_refused(base: dict[str, Path], tmp_path: Path) -> None:
    with CheckpointFile(base["model_path"]) as file:
        write_file(tmp_path / "real.safetensors", {name: file.read(name) for name in file.entries})
    half = base | {"model_path": tmp_path / "real.safetensors"}
    del half["audio_vae_path"], half["tokenizer_path"]
    with pytest.raises(SettingsError, match="H3_AUDIO_VAE_PATH, H3_TOKENIZER_PATH"):
        load(half)


def test_a_broken_part_of_a_set_is_named(base: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(base["model_path"].read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"broken\.safetensors"):
        load({"model_path": broken})


def test_the_vae_in_fp32_is_close_to_fp16(base: dict[str, Path], tmp_path: Path) -> None:
    frames = []
    for dtype in ("float16", "float32"):
        clip = load(base, vae_dtype=dtype).generate(spec(tmp_path), lambda _: None, lambda: False)
        frames.append(read_frames(clip.output).astype(float))
    assert 0 < abs(frames[0] - frames[1]).mean() < 4
