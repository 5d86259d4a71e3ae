"""What an adapter's file says of itself: kinds that are refused, alphas, layouts, contracts, and what doesn't fit."""

import json
from pathlib import Path

import pytest
import torch

from h3runtime.checkpoint.lora.contracts import contract_of
from h3runtime.checkpoint.lora.layout import layout_of
from h3runtime.checkpoint.lora.scales import scales_of
from h3runtime.checkpoint.lora.stored import StoredAdapter, StoredPair, read_stored
from h3runtime.checkpoint.sources import open_source
from h3runtime.checkpoint.synthetic.adapters import LAYOUTS, adapter
from h3runtime.core import AdapterContract
from h3runtime.errors import CheckpointError
from tests.checkpoint.lora.models import FULL, PRUNED, bound, target, write

Tensors = dict[str, torch.Tensor]
LAYER = "blocks.0.attn.out_proj"
"""[64, 64] of the tiny transformer."""
THIRD = "transformer_blocks.0.attn.to_q"


def pair(layer: str = LAYER, rank: int = 4, rows: int = 64, columns: int = 64) -> Tensors:
    return {f"{layer}.lora_A.weight": torch.ones(rank, columns), f"{layer}.lora_B.weight": torch.ones(rows, rank)}


def read(path: Path) -> StoredAdapter:
    source = open_source(path)
    try:
        return read_stored(source)
    finally:
        source.close()


def stored(tmp_path: Path, tensors: Tensors, **metadata: str) -> StoredAdapter:
    return read(write(tmp_path / "a.safetensors", tensors, metadata))


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({f"{LAYER}.dora_scale": torch.ones(64)}, "DoRA"),
        ({f"{LAYER}.lora_magnitude_vector.weight": torch.ones(64)}, "DoRA"),
        ({f"{LAYER}.lora_magnitude_vector.default.weight": torch.ones(64)}, "DoRA"),
        ({f"{LAYER}.lora_magnitude_vector": torch.ones(64)}, "DoRA"),
        ({f"{LAYER}.lora_B.bias": torch.ones(64)}, "a bias inside a pair"),
        ({f"{LAYER}.diff_b": torch.ones(64, 1)}, "a bias has one dimension"),
        ({f"{LAYER}.hada_w1_a": torch.ones(4, 4)}, "LoHa"),
        ({f"{LAYER}.lokr_w1": torch.ones(4, 4)}, "LoKr"),
        ({f"{LAYER}.lora_mid.weight": torch.ones(4, 4)}, "LoCon"),
        ({f"{LAYER}.lora_A.weight_scale": torch.ones(4)}, "quantised themselves"),
        ({"blocks.1.attn.out_proj.lora_A.weight": torch.ones(4, 64)}, "no other half"),
        ({"blocks.1.mlp.fc2.lora_A.weight": torch.ones(4, 48, dtype=torch.int8)}, "int8"),
        (pair("blocks.1.attn.out_proj") | {"blocks.1.attn.out_proj.lora_B.weight": torch.ones(64, 3)}, "has rank 3"),
        ({f"{LAYER}.alpha": torch.tensor(-1.0)}, "is no alpha"),
        ({"whatever": torch.ones(3)}, "no kind that is known"),
        ({f"{LAYER}.lora_down.weight": torch.ones(4, 64)}, "twice"),
        ({f"{LAYER}.lora_A.comfy_quant": torch.ones(4, dtype=torch.uint8)}, "quantised themselves"),
    ],
)
def test_a_kind_that_cannot_be_applied_is_refused_by_its_tensor(tmp_path: Path, extra: Tensors, told: str) -> None:
    with pytest.raises(CheckpointError, match=r"a\.safetensors") as raised:
        stored(tmp_path, pair() | extra)
    (offence,) = raised.value.offences
    assert told in offence.message and offence.field in extra


def test_matrices_of_int8_are_refused_one_by_one(tmp_path: Path) -> None:
    """checkpoint-formats §6: rzgar's and t8star's."""
    halves = {name: tensor.to(torch.int8) for name, tensor in pair().items()}
    with pytest.raises(CheckpointError) as raised:
        stored(tmp_path, halves | {f"{name[: -len('.weight')]}.weight_scale": torch.ones(1) for name in halves})
    assert {o.field for o in raised.value.offences} >= set(halves)
    assert "int8" in raised.value.message and "BF16, F16, F32" in raised.value.message


def test_one_replacement_under_two_names_is_refused(tmp_path: Path) -> None:
    layer = "blocks.0.adaln_proj.linear"
    with pytest.raises(CheckpointError, match="is there twice"):
        stored(tmp_path, {f"{layer}.set_weight": torch.ones(4, 4), f"{layer}.weight": torch.ones(4, 4)})


def test_a_checkpoint_is_no_adapter(tmp_path: Path) -> None:
    """A shard of one lies among adapters: all of its layers match."""
    shapes = {name: shape for name, shape in target().shapes.items() if name.endswith((".weight", ".bias"))}
    with pytest.raises(CheckpointError, match="nothing but whole weights"):
        stored(tmp_path, {name: torch.zeros(shape) for name, shape in shapes.items()})


def test_every_offender_is_listed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as raised:
        stored(tmp_path, pair() | {f"blocks.{i}.x.dora_scale": torch.ones(1) for i in range(3)})
    assert [o.field for o in raised.value.offences] == [f"blocks.{i}.x.dora_scale" for i in range(3)]


@pytest.mark.parametrize(
    ("metadata", "ratio"),
    [
        ({}, None),
        ({"alpha": "8"}, 2.0),
        ({"lora_alpha": "8", "lora_rank": "16"}, 0.5),
        ({"training_alpha": "2.0"}, 0.5),
        ({"alpha": "eight"}, None),
        ({"alpha": "-8"}, None),
        ({"alpha": "nan"}, None),
        ({"baked_scale": "0.0625"}, 1.0),
        ({"format": "fastvideo-lora-v2"}, 1.0),
        ({"ss_network_alpha": "8"}, None),
        ({"lora_adapter_metadata": json.dumps({"transformer.lora_alpha": 8, "transformer.r": 4})}, 2.0),
        ({"lora_adapter_metadata": json.dumps({"lora_alpha": 8, "r": 4, "use_rslora": True})}, 4.0),
        ({"lora_adapter_metadata": json.dumps({"lora_alpha": 8, "r": 4, "alpha_pattern": {"out_proj": 1}})}, 0.25),
        ({"lora_adapter_metadata": "{"}, None),
    ],
)
def test_alpha_of_the_metadata(tmp_path: Path, metadata: dict[str, str], ratio: float | None) -> None:
    scales = scales_of(stored(tmp_path, pair(), **metadata))
    assert scales.ratio == ratio and scales.alpha == (None if ratio is None else 4 * ratio)
    assert scales.missing == (() if ratio is not None else (LAYER,))


def test_an_alpha_of_the_request_is_for_layers_without_one(tmp_path: Path) -> None:
    mixed = pair() | pair("blocks.1.attn.out_proj") | {f"{LAYER}.alpha": torch.tensor(2.0)}
    found = stored(tmp_path, mixed)
    assert scales_of(found).missing == ("blocks.1.attn.out_proj",)
    assert scales_of(found, 8.0).by_layer == {LAYER: 0.5, "blocks.1.attn.out_proj": 2.0}


def test_one_alpha_for_the_file_counts_a_fused_layer_as_three(tmp_path: Path) -> None:
    fused = pair("blocks.0.attn.qkv_proj", 12, 192) | pair() | pair("blocks.0.mlp.fc2", 4, 64, 48)
    assert set(scales_of(stored(tmp_path, fused, alpha="8")).by_layer.values()) == {2.0}
    assert set(scales_of(stored(tmp_path, fused), 8.0).by_layer.values()) == {2.0}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_told_by_its_names(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "x.safetensors"
    adapter(layout, PRUNED).write(path)
    assert layout_of(read(path)) == layout.removesuffix("_comfyui")


@pytest.mark.parametrize(
    ("layout", "metadata", "name", "steps"),
    [
        ("comfyui_turbo", {}, "minimax_h3_fl2v_turbo_8step_v1.0_768p_comfyui_bf16", (8,)),
        ("comfyui_turbo", {}, "minimax_h3_fl2v_turbo_8step_v1.0_comfyui_bf16", (8, 4)),
        ("diffusers", {}, "minimax_h3_ref2v_turbo_4step_v0.1", (4,)),
        ("comfyui_turbo", {"source": "minimax_h3_fl2v_turbo_4step_v0.1.safetensors"}, "mine", (4,)),
        ("comfyui_turbo", {}, "mine", None),
        ("bare", {}, "minimax_h3_fl2v_turbo_4step_v0.1", None),
        ("pdd", {}, "mine", (8, 4)),
        ("pdd_comfyui", {}, "mine", (8, 4)),
        ("fasth3", {}, "mine", (4,)),
    ],
)
def test_a_published_adapter_is_known_by_metadata_or_by_name_and_shape(
    tmp_path: Path, layout: str, metadata: dict[str, str], name: str, steps: tuple[int, ...] | None
) -> None:
    made = adapter(layout, PRUNED)
    path = write(tmp_path / "x.safetensors", made.tensors, {**made.metadata, **metadata})
    contract = contract_of(read(path), name)
    assert (contract.steps if contract else None) == steps


def test_the_public_shape_that_nothing_else_has_is_enough() -> None:
    def linear(layer: str, width: int = 5376) -> tuple[str, StoredPair]:
        down, up = (type("Entry", (), {"shape": shape, "name": layer})() for shape in ((64, width), (width, 64)))
        return layer, StoredPair(layer, down, up)

    blocks = [f"blocks.{i}" for i in range(50)] + [f"token_refiner.blocks.{i}" for i in range(2)]
    leaves = ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2")
    pairs = dict(linear(f"{block}.{leaf}") for block in blocks for leaf in leaves)
    pairs |= dict(linear(f"blocks.{i}.adaln_proj.linear", 2688) for i in range(50))
    pairs |= dict([linear("final_layer.adaln_proj.linear", 2688)])
    found = StoredAdapter("", pairs, (), {}, infixed=False)
    contract = contract_of(found, "anything")
    assert isinstance(contract, AdapterContract) and contract.steps == (4, 5, 6, 7, 8)


def test_adaln_of_another_width_is_left_out(tmp_path: Path) -> None:
    adapter("bare", PRUNED).write(tmp_path / "x.safetensors")
    assert bound(tmp_path / "x.safetensors", target(FULL)).fit.skipped == ()
    fit = bound(tmp_path / "x.safetensors", target(PRUNED)).fit
    assert (fit.matched, fit.total, len(fit.skipped)) == (12, 15, 3)
    adapter("pruned_complete", PRUNED).write(tmp_path / "y.safetensors")
    fit = bound(tmp_path / "y.safetensors", target(FULL)).fit
    assert (fit.matched, fit.total, len(fit.skipped)) == (12, 16, 4)


def test_a_prefix_taken_twice_matches_nothing_and_says_so(tmp_path: Path) -> None:
    for prefix, told in (("diffusion_model.", None), ("diffusion_model.diffusion_model.", "prefix twice")):
        tensors = {f"{prefix}{name}": tensor for name, tensor in pair().items()}
        path = write(tmp_path / "x.safetensors", tensors | {f"{prefix}{LAYER}.alpha": torch.tensor(4.0)})
        if told is None:
            assert bound(path, target()).fit.matched == 1
            continue
        with pytest.raises(CheckpointError, match=told):
            bound(path, target())


def test_what_matches_nothing_at_all_is_an_error_with_names(tmp_path: Path) -> None:
    path = write(tmp_path / "x.safetensors", pair("double_blocks.0.img_attn.proj"))
    with pytest.raises(CheckpointError, match=r"none of the transformer's layers.*double_blocks\.0\.img_attn\.proj"):
        bound(path, target())


@pytest.mark.parametrize(
    ("tensors", "field"),
    [
        (pair(columns=65), f"{LAYER}.lora_A.weight"),
        (pair(rows=63), f"{LAYER}.lora_B.weight"),
        (pair() | {"blocks.0.norm1.diff": torch.ones(63)}, "blocks.0.norm1.diff"),
        (pair() | {f"{LAYER}.diff_b": torch.ones(64)}, f"{LAYER}.diff_b"),
        (pair() | {"final_layer.video_out.set_weight": torch.ones(17, 64)}, "final_layer.video_out.set_weight"),
        (pair() | {f"{THIRD}.set_weight": torch.ones(64, 64)}, f"{THIRD}.set_weight"),
        (pair("blocks.0.norm1"), "blocks.0.norm1.lora_A.weight"),
    ],
)  # fmt: skip
def test_a_shape_that_does_not_fit_is_told_by_its_tensor(tmp_path: Path, tensors: Tensors, field: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        bound(write(tmp_path / "x.safetensors", tensors), target())
    assert [o.field for o in raised.value.offences] == [field]
