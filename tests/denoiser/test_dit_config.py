import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.errors import CheckpointError
from tests.denoiser import tiny
from tests.parity.fixture import DIRECTORY

Shapes = dict[str, tuple[int, ...]]
KEYS = DIRECTORY / "full_size_keys.json"
REAL = DitConfig(
    hidden=5376,
    layers=50,
    refiner_layers=2,
    heads=56,
    head_dim=128,
    ffn=14336,
    channels=24,
    audio_channels=32,
    text_dim=5120,
    time_dim=2688,
    rope_freqs=16,
    sinusoid=256,
    time_hidden=5376,
)
"""dit-contract §1.1."""


def shapes(config: DitConfig = tiny.CONFIG) -> Shapes:
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in Dit(config).state_dict().items()}


def real_keys(pruned: bool) -> Shapes:
    if not KEYS.is_file():
        pytest.skip(f"no {KEYS}")
    recorded = json.loads(KEYS.read_text())
    names = recorded["dit"] | (recorded["dit_pruned_curve"] if pruned else {})
    for absent in recorded["dit_pruned_curve_absent"] if pruned else ():
        del names[absent]
    return {name: tuple(shape) for name, (shape, _) in names.items()}


@pytest.mark.parametrize(
    ("pruned", "want"),
    [(False, REAL), (True, replace(REAL, sinusoid=None, time_hidden=None, curve_grid=1025, time_dim=8))],
)
def test_the_real_model_is_read_and_built_from_its_keys(pruned: bool, want: DitConfig) -> None:
    recorded = real_keys(pruned)
    assert DitConfig.from_shapes(recorded) == want
    assert shapes(want) == recorded


@pytest.mark.parametrize(
    "config",
    [
        tiny.CONFIG,
        tiny.CURVE,
        replace(tiny.CURVE, curve_grid=1001, time_dim=64),
        replace(tiny.CONFIG, head_bank=5),
        replace(tiny.CONFIG, gate_compress=True),
        replace(tiny.CONFIG, refiner_layers=3, layers=1, heads=3),
    ],
)
def test_sizes_survive_the_way_through_names_and_shapes(config: DitConfig) -> None:
    assert DitConfig.from_shapes(shapes(config)) == config


def test_sidecars_of_quantised_layers_are_ignored() -> None:
    extra = {"blocks.0.mlp.fc1.weight_scale": (80, 1), "blocks.0.mlp.fc1.comfy_quant": (72,)}
    assert DitConfig.from_shapes(shapes() | extra) == tiny.CONFIG


def without(*names: str) -> Callable[[Shapes], None]:
    return lambda s: [s.pop(name) for name in names] and None


def put(name: str, *shape: int) -> Callable[[Shapes], None]:
    return lambda s: s.__setitem__(name, shape)


@pytest.mark.parametrize(
    ("spoil", "field"),
    [
        (without("video_patch_proj.weight"), "video_patch_proj.weight"),
        (without("rope.inv_freq"), "rope.inv_freq"),
        (without("time_embedder.proj_in.weight"), "time_embedder.proj_in.weight"),
        (without("blocks.0.attn.q_norm.weight"), "blocks.0.attn.q_norm.weight"),
        (put("video_patch_proj.weight", 48, 26), "video_patch_proj.weight"),
        (put("video_patch_proj.weight", 48), "video_patch_proj.weight"),
        (put("audio_patch_proj.weight", 47, 8), "audio_patch_proj.weight"),
        (put("condition_proj.weight", 40, 24), "condition_proj.weight"),
        (put("time_embedder.proj_in.weight", 24, 15), "time_embedder.proj_in.weight"),
        (put("time_embedder.proj_out.weight", 20, 25), "time_embedder.proj_out.weight"),
        (put("adaln_t_table", 1, 20), "adaln_t_table"),
        (put("adaln_t_table", 33, 21), "blocks.0.adaln_proj.linear.weight"),
        (put("blocks.0.attn.qkv_proj.weight", 191, 48), "blocks.0.attn.qkv_proj.weight"),
        (put("blocks.1.attn.qkv_proj.weight", 96, 48), "blocks.1.attn.qkv_proj.weight"),
        (put("blocks.1.attn.k_norm.weight", 31), "blocks.1.attn.k_norm.weight"),
        (put("blocks.0.mlp.fc1.weight", 81, 48), "blocks.0.mlp.fc1.weight"),
        (put("blocks.1.mlp.fc2.weight", 47, 40), "blocks.1.mlp.fc2.weight"),
        (put("blocks.1.adaln_proj.linear.weight", 18 * 48, 19), "blocks.1.adaln_proj.linear.weight"),
        (put("blocks.1.adaln_proj.linear.weight", 6 * 48, 20), "blocks.1.adaln_proj.linear.weight"),
        (put("blocks.3.norm1.weight", 48), "blocks"),
        (put("token_refiner.blocks.0.attn.out_proj.weight", 40, 64), "token_refiner.blocks.0.attn.out_proj.weight"),
        (put("final_layer.adaln_proj.linear.weight", 95, 20), "final_layer.adaln_proj.linear.weight"),
        (put("final_layer.video_out.weight", 25, 48), "final_layer.video_out.weight"),
        (put("final_layer.audio_out.weight", 16, 48), "final_layer.audio_out.weight"),
        (put("rope.inv_freq", 6), "rope.inv_freq"),
    ],
)
def test_a_size_that_is_missing_or_contradicted_is_named(spoil: Callable[[Shapes], None], field: str) -> None:
    found = shapes()
    spoil(found)
    with pytest.raises(CheckpointError, match=field.replace(".", r"\.")) as error:
        DitConfig.from_shapes(found)
    assert field in {o.field for o in error.value.offences}


def test_one_error_lists_all_offenders() -> None:
    found = shapes()
    put("blocks.0.mlp.fc2.weight", 47, 40)(found)
    put("rope.inv_freq", 6)(found)
    without("final_layer.audio_out.weight")(found)
    with pytest.raises(CheckpointError) as error:
        DitConfig.from_shapes(found)
    names = ["final_layer.audio_out.weight", "blocks.0.mlp.fc2.weight", "rope.inv_freq"]
    assert [o.field for o in error.value.offences] == names


def test_another_models_names_are_refused() -> None:
    with pytest.raises(CheckpointError, match="not an H3 DiT"):
        DitConfig.from_shapes({"double_blocks.0.img_attn.qkv.weight": (9216, 3072)})
