"""Sizes come from shapes alone, for whole files and halves; what is missing or contradictory is a typed error."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from h3runtime.errors import CheckpointError
from h3runtime.vae.audio_config import AudioDecoderConfig, AudioEncoderConfig, AudioVaeConfig
from tests.parity.fixture import DIRECTORY
from tests.vae.audio_loading import shapes_of

ENCODER = AudioEncoderConfig(
    widths=(4, 8, 16), strides=(2, 5), stem_kernel=7, unit_kernels=(7, 7), out_kernel=3, latent_dim=64, mlp_dim=16
)
DECODER = AudioDecoderConfig(
    latent_dim=64,
    widths=(16, 8, 4),
    up_kernels=(9, 4),
    up_strides=(5, 2),
    block_kernels=(3, 7),
    block_dilations=((1, 3, 5), (1, 3, 5)),
    pre_kernel=7,
    post_kernel=7,
    taps=12,
)
WHOLE = AudioVaeConfig(latent_channels=8, encoder=ENCODER, decoder=DECODER)

numbers = st.integers(1, 6)
encoders = st.builds(
    lambda widths, strides, mlp: replace(
        ENCODER, widths=tuple(widths[: len(strides) + 1]), strides=tuple(strides), unit_kernels=(7,) * len(strides),
        mlp_dim=mlp,
    ),
    st.lists(numbers, min_size=5, max_size=5), st.lists(st.integers(1, 5), min_size=1, max_size=4), numbers,
)  # fmt: skip
decoders = st.builds(
    lambda widths, strides, kernels, depth: replace(
        DECODER, widths=tuple(widths[: len(strides) + 1]), up_strides=tuple(strides),
        up_kernels=tuple(2 * stride - stride % 2 for stride in strides), block_kernels=tuple(kernels),
        block_dilations=(tuple(range(1, 2 * depth, 2)),) * len(kernels),
    ),
    st.lists(numbers, min_size=5, max_size=5), st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.lists(st.sampled_from((3, 5, 7, 11)), min_size=1, max_size=3), st.integers(1, 3),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.none() | encoders, st.none() | decoders, numbers)
def test_a_config_is_found_again_in_the_shapes_of_its_model(encoder, decoder, channels):
    config = AudioVaeConfig(latent_channels=channels, encoder=encoder, decoder=decoder)
    if encoder is None and decoder is None:
        with pytest.raises(CheckpointError):
            AudioVaeConfig.from_shapes(shapes_of(config))
    else:
        assert AudioVaeConfig.from_shapes(shapes_of(config)) == config


def test_the_published_file_has_the_contract_s_sizes_and_names():
    path = DIRECTORY / "full_size_keys.json"
    if not path.exists():
        pytest.skip(f"no {path}")
    listed = {name: tuple(entry[0]) for name, entry in json.loads(path.read_text())["audio_vae"].items()}
    config = AudioVaeConfig.from_shapes(listed)
    assert shapes_of(config) == listed
    assert len(listed) == 917
    assert config.encoder is not None
    assert config.decoder is not None
    assert config.encoder.hop == config.decoder.hop == 800
    assert config.encoder.widths == (64, 128, 256, 512, 1024, 2048)
    assert config.decoder.up_strides == (5, 5, 2, 2, 2, 2, 2)


def test_what_no_shape_tells_can_be_given():
    shapes = shapes_of(AudioVaeConfig(8, None, replace(DECODER, up_kernels=(8, 4))))
    config = AudioVaeConfig.from_shapes(shapes, up_strides=(2, 2), block_dilations=((1, 2, 4), (1, 3, 9)))
    assert config.decoder is not None
    assert config.decoder.up_strides == (2, 2)
    assert config.decoder.block_dilations == ((1, 2, 4), (1, 3, 9))


@pytest.mark.parametrize(
    "name",
    [
        "latents_mean",
        "latents_std",
        "encoder.block.0.weight",
        "encoder.block.1.block.4.weight",
        "encoder.block.4.weight",
        "pre_block.mlp.w0.weight",
        "decoder.conv_pre.weight",
        "decoder.conv_post.weight",
        "decoder.ups.0.0.weight",
        "decoder.activation_post.upsample.filter",
    ],
)
def test_an_absent_tensor_is_named(name):
    shapes = shapes_of(WHOLE)
    del shapes[name]
    with pytest.raises(CheckpointError, match="not an H3 audio VAE") as caught:
        AudioVaeConfig.from_shapes(shapes)
    assert [offence.field for offence in caught.value.offences] == [name]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("latents_std", (9,)),
        ("latents_mean", (8, 1)),
        ("encoder.block.2.block.4.weight", (16, 8, 5)),
        ("encoder.block.0.weight", (4, 7)),
        ("decoder.ups.1.0.weight", (8, 4)),
    ],
)
def test_a_contradiction_is_named(name, shape):
    with pytest.raises(CheckpointError, match=name):
        AudioVaeConfig.from_shapes(shapes_of(WHOLE) | {name: shape})


def test_blocks_that_do_not_divide_into_the_stages_are_refused():
    shapes = {name: shape for name, shape in shapes_of(WHOLE).items() if not name.startswith("decoder.resblocks.3.")}
    with pytest.raises(CheckpointError, match="holds 3 blocks"):
        AudioVaeConfig.from_shapes(shapes)


def test_heads_must_divide_the_width():
    with pytest.raises(CheckpointError, match="multiple of 5 heads"):
        AudioVaeConfig.from_shapes(shapes_of(WHOLE), heads=5)


def test_dilations_and_strides_given_must_match_the_file():
    with pytest.raises(CheckpointError, match="one for each"):
        AudioVaeConfig.from_shapes(shapes_of(WHOLE), block_dilations=((1, 3), (1, 3, 5)))
    with pytest.raises(CheckpointError, match="holds 2 stages"):
        AudioVaeConfig.from_shapes(shapes_of(WHOLE), up_strides=(5, 2, 2))
    with pytest.raises(CheckpointError, match="even number"):
        AudioVaeConfig.from_shapes(shapes_of(WHOLE), up_strides=(4, 2))
