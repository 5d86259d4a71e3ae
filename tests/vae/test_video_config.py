import json
from dataclasses import replace

import pytest
import torch

from h3runtime.checkpoint.synthetic.constants import VIDEO_LATENTS_MEAN, VIDEO_LATENTS_STD
from h3runtime.errors import CheckpointError
from h3runtime.vae.video_config import DecoderConfig, EncoderConfig, EncoderLevel, VideoVaeConfig
from h3runtime.vae.video_statistics import LATENTS_MEAN, LATENTS_STD
from h3runtime.vae.video_vae import VideoVae
from tests.parity.fixture import DIRECTORY
from tests.vae.test_video_vae import small_config, small_vae

REAL = VideoVaeConfig(
    latent_channels=24,
    encoder=EncoderConfig(
        channels=128,
        levels=(
            EncoderLevel(128, 128, 2, (1, 2, 2)),
            EncoderLevel(128, 256, 2, (2, 2, 2)),
            EncoderLevel(256, 256, 2, (2, 2, 2)),
            EncoderLevel(256, 512, 2, (1, 2, 2)),
            EncoderLevel(512, 512, 2, None),
            EncoderLevel(512, 1024, 2, None),
        ),
        moments=48,
    ),
    decoder=DecoderConfig(
        latent_channels=24, width=2048, layers=36, inner=2048, head_dim=64, feed_forward=8192, registers=4
    ),
    stored_statistics=True,
)


def shapes_of(vae: VideoVae) -> dict[str, tuple[int, ...]]:
    return {name: tuple(t.shape) for name, t in vae.state_dict().items()}


def test_the_real_file_gives_the_real_sizes_and_every_name() -> None:
    if not DIRECTORY.is_dir():
        pytest.skip("no fixtures")
    listed = json.loads((DIRECTORY / "full_size_keys.json").read_text())["video_vae"]
    shapes = {name: tuple(shape) for name, (shape, _) in listed.items()}
    config = VideoVaeConfig.from_shapes(shapes)
    assert config == REAL
    assert config.decoder is not None and config.decoder.heads == 32
    with torch.device("meta"):
        assert shapes_of(VideoVae(config)) == shapes


def test_an_official_file_has_no_statistics_and_560_tensors() -> None:
    with torch.device("meta"):
        shapes = shapes_of(VideoVae(REAL))
    for name in ("latents_mean", "latents_std"):
        del shapes[name]
    config = VideoVaeConfig.from_shapes(shapes)
    assert not config.stored_statistics
    with torch.device("meta"):
        assert len(VideoVae(config).state_dict()) == 560


def test_sizes_survive_the_way_through_shapes() -> None:
    assert VideoVaeConfig.from_shapes(shapes_of(small_vae()), {"vae_head_dim": 16, "other": 1}) == small_config()


@pytest.mark.parametrize("half", ["encoder", "decoder"])
def test_half_a_file_gives_half_a_model(half) -> None:
    conv = {"encoder": "quant_conv.", "decoder": "post_quant_conv."}[half]
    shapes = {n: s for n, s in shapes_of(small_vae()).items() if n.startswith((f"{half}.", conv))}
    config = VideoVaeConfig.from_shapes(shapes, {"vae_head_dim": 16})
    assert (config.encoder is None, config.decoder is None) == (half == "decoder", half == "encoder")
    with torch.device("meta"):
        assert shapes_of(VideoVae(config)) == shapes


def test_the_head_width_is_64_unless_the_file_says_otherwise() -> None:
    shapes = shapes_of(small_vae(width=128, head_dim=64))
    decoder = VideoVaeConfig.from_shapes(shapes).decoder
    assert decoder is not None and (decoder.heads, decoder.head_dim) == (2, 64)
    decoder = VideoVaeConfig.from_shapes(shapes, {"vae_head_dim": 32}).decoder
    assert decoder is not None and (decoder.heads, decoder.head_dim) == (4, 32)


@pytest.mark.parametrize("value", [0, -64, 12, 64.0, "64", True, None])
def test_an_illegal_head_width_is_refused(value) -> None:
    with pytest.raises(CheckpointError, match="vae_head_dim"):
        VideoVaeConfig.from_shapes(shapes_of(small_vae()), {"vae_head_dim": value})


def test_rows_that_do_not_divide_into_heads_are_refused() -> None:
    with pytest.raises(CheckpointError, match="to_qkv") as error:
        VideoVaeConfig.from_shapes(shapes_of(small_vae()), {})
    assert "vae_head_dim" in error.value.offences[0].legal


def test_all_missing_tensors_are_named_at_once() -> None:
    shapes = shapes_of(small_vae())
    del shapes["decoder.x_embedder.weight"]
    shapes["decoder.register_tokens"] = (4, 32)
    with pytest.raises(CheckpointError) as error:
        VideoVaeConfig.from_shapes(shapes, {"vae_head_dim": 16})
    assert [o.field for o in error.value.offences] == ["decoder.x_embedder.weight", "decoder.register_tokens"]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("decoder.proj_out.weight", (3071, 32)),
        ("quant_conv.weight", (46, 46, 1, 1, 1)),
        ("encoder.down.2.block.0.conv1.weight", (33, 64, 3, 3, 3)),
        ("post_quant_conv.weight", (16, 16, 1, 1, 1)),
        ("encoder.down.7.block.0.conv1.weight", (32, 32, 3, 3, 3)),
    ],
)
def test_sizes_that_contradict_are_refused(name, shape) -> None:
    with pytest.raises(CheckpointError):
        VideoVaeConfig.from_shapes(shapes_of(small_vae()) | {name: shape}, {"vae_head_dim": 16})


def test_a_file_of_something_else_is_refused() -> None:
    for shapes in ({}, {"weight": (2, 2)}):
        with pytest.raises(CheckpointError, match="encoder"):
            VideoVaeConfig.from_shapes(shapes)


def test_made_up_files_carry_the_statistics_that_files_without_any_get() -> None:
    """The numbers stand twice, since neither package may read the other."""
    assert (VIDEO_LATENTS_MEAN, VIDEO_LATENTS_STD) == (LATENTS_MEAN, LATENTS_STD)


def test_the_real_model_keeps_everything_on_its_device_and_gives_real_shapes() -> None:
    # On the meta device nothing is computed, but a tensor left on the CPU is an error, as it would be on a GPU.
    with torch.device("meta"):
        vae = VideoVae(replace(REAL, decoder=replace(REAL.decoder, layers=1))).half()
    parts = list(vae.decode_chunks(torch.zeros(1, 24, 7, 20, 32)))
    assert [(tuple(p.shape), p.device.type) for p in parts] == [
        ((17, 320, 512, 3), "meta"),
        ((5, 320, 512, 3), "meta"),
    ]
    latent = vae.encode_image(torch.zeros(1, 320, 512, 3, dtype=torch.uint8))
    assert (tuple(latent.shape), latent.dtype, latent.device.type) == ((1, 24, 1, 20, 32), torch.float32, "meta")
