import json
from dataclasses import replace

import pytest
import torch

from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.errors import CheckpointError
from tests.conditioning import small
from tests.parity.fixture import DIRECTORY

OVERRIDES = {"vision_num_heads": 2, "deepstack_visual_indexes": [0, 1, 3]}


def shapes_of(config: TextEncoderConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(t.shape) for name, t in TextEncoder(config).state_dict().items()}


def test_sizes_survive_the_way_through_shapes() -> None:
    assert TextEncoderConfig.from_shapes(shapes_of(small.CONFIG), OVERRIDES) == small.CONFIG


def test_the_published_file_needs_no_override() -> None:
    path = DIRECTORY / "full_size_keys.json"
    if not path.is_file():
        pytest.skip("no recorded key lists")
    recorded = json.loads(path.read_text())["text_encoder"]
    shapes = {name: tuple(shape) for name, (shape, _) in recorded.items()}
    config = TextEncoderConfig.from_shapes(shapes)
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (50, 64, 8, 128)
    assert (config.mrope_section, config.rope_theta, config.assumed) == ((24, 20, 20), 5e6, ())
    assert (config.vision.heads, config.vision.taps, config.vision.depth) == (16, (8, 16, 24), 27)
    assert shapes_of(config) == shapes


def test_what_nothing_told_is_named() -> None:
    config = TextEncoderConfig.from_shapes(shapes_of(small.CONFIG))
    assert set(config.assumed) == {"vision_num_heads", "deepstack_visual_indexes"}
    assert (config.vision.heads, config.vision.taps) == (2, (0, 1, 2))


def test_all_absent_tensors_are_listed() -> None:
    shapes = shapes_of(small.CONFIG)
    gone = {"model.layers.0.self_attn.q_norm.weight", "visual.pos_embed.weight", "model.embed_tokens.weight"}
    with pytest.raises(CheckpointError) as caught:
        TextEncoderConfig.from_shapes({n: s for n, s in shapes.items() if n not in gone}, OVERRIDES)
    assert gone <= {o.field for o in caught.value.offences}


def test_a_gap_between_layers_is_named() -> None:
    shapes = {n: s for n, s in shapes_of(small.CONFIG).items() if not n.startswith("model.layers.2.")}
    with pytest.raises(CheckpointError, match=r"model\.layers\.2 is absent"):
        TextEncoderConfig.from_shapes(shapes, OVERRIDES)


def test_an_empty_file_is_one_typed_error() -> None:
    with pytest.raises(CheckpointError, match="not an H3 text encoder"):
        TextEncoderConfig.from_shapes({})


@pytest.mark.parametrize(
    "name,shape,field",
    [
        ("model.layers.0.self_attn.q_proj.weight", (100, 48), "self_attn.q_proj.weight"),
        ("model.layers.0.self_attn.k_proj.weight", (96, 48), "self_attn.k_proj.weight"),
        ("visual.pos_embed.weight", (35, 32), "visual.pos_embed.weight"),
        ("visual.patch_embed.proj.weight", (32, 3, 2, 14, 14), "visual.patch_embed.proj.weight"),
        ("visual.merger.linear_fc1.weight", (64, 64), "visual.merger.linear_fc1.weight"),
        ("visual.merger.linear_fc2.weight", (47, 128), "visual.merger.linear_fc2.weight"),
    ],
)
def test_contradicting_sizes_are_named(name, shape, field) -> None:
    with pytest.raises(CheckpointError) as caught:
        TextEncoderConfig.from_shapes(shapes_of(small.CONFIG) | {name: shape}, OVERRIDES)
    assert field in {o.field for o in caught.value.offences}


@pytest.mark.parametrize(
    "name,value",
    [
        ("vision_num_heads", 3),
        ("vision_num_heads", "2"),
        ("vision_num_heads", True),
        ("deepstack_visual_indexes", [0, 1]),
        ("deepstack_visual_indexes", [0, 1, 4]),
        ("deepstack_visual_indexes", [1, 0, 2]),
        ("deepstack_visual_indexes", "012"),
        ("mrope_section", [6, 5]),
        ("mrope_section", [0, 8, 8]),
        ("rope_theta", 0),
    ],
)
def test_illegal_overrides_are_named(name, value) -> None:
    with pytest.raises(CheckpointError) as caught:
        TextEncoderConfig.from_shapes(shapes_of(small.CONFIG), {**OVERRIDES, name: value})
    assert name in {o.field for o in caught.value.offences}


def test_other_sizes_build_and_match_their_shapes() -> None:
    vision = replace(small.VISION, hidden=64, heads=4, depth=5, taps=(1, 4))
    config = replace(small.CONFIG, layers=2, head_dim=64, mrope_section=(12, 10, 10), vision=vision)
    overrides = {"vision_num_heads": 4, "deepstack_visual_indexes": (1, 4)}
    assert TextEncoderConfig.from_shapes(shapes_of(config), overrides) == config
