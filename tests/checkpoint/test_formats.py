"""Every linear of a transformer in every published storage is, once loaded, bit for bit what its reference says."""

import json
from dataclasses import fields
from itertools import cycle
from pathlib import Path

import pytest
import torch
from torch import nn

from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.dequant import DequantLinear, dense
from h3runtime.checkpoint import load as loading
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.load import LoadReport, load_module
from h3runtime.checkpoint.rules import TRANSFORMER, LoadRule, video_vae
from h3runtime.checkpoint.synthetic.layouts import (
    TransformerSizes,
    VideoVaeSizes,
    transformer_shapes,
    video_vae_shapes,
)
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.errors import CheckpointError
from h3runtime.quant import int8
from h3runtime.quant.stored import Fp8Weight, Int8Weight, PlainWeight, StoredWeight
from h3runtime.vae.video_config import VideoVaeConfig
from h3runtime.vae.video_vae import VideoVae
from tests.checkpoint.conftest import Write
from tests.checkpoint.packed_layers import PACKERS, Packed

CPU = torch.device("cpu")
FULL = TransformerSizes(
    hidden=64,
    layers=2,
    refiner_layers=1,
    heads=1,
    ffn=128,
    channels=16,
    audio_channels=64,
    text_dim=64,
    curve=None,
    sinusoid=64,
    time_hidden=64,
    time_dim=64,
)
"""Every linear has a K that is a multiple of 64, so that each may be in any format."""
QUANTISED = [name for name in PACKERS if name not in ("plain", "bare fp8")]


def values(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) / 8 for name, shape in shapes.items()}


def linears(module: nn.Module) -> list[str]:
    return [name for name, child in module.named_modules() if isinstance(child, nn.Linear)]


def dit(sizes: TransformerSizes = FULL) -> Dit:
    with torch.device("meta"):
        return Dit(DitConfig.from_shapes(transformer_shapes(sizes)))


def packed(
    weights: dict[str, torch.Tensor], kinds: dict[str, str]
) -> tuple[dict[str, Packed], dict[str, torch.Tensor]]:
    """(layers by name, all tensors of a file that keeps those of `kinds` so and the rest in BF16)."""
    layers = {layer: PACKERS[kind](weights[f"{layer}.weight"]) for layer, kind in kinds.items()}
    rest = {n: t.to(torch.bfloat16) for n, t in weights.items() if n.removesuffix(".weight") not in kinds}
    return layers, rest | {n: t for layer, p in layers.items() for n, t in p.named(layer).items()}


def load(path: Path, module: nn.Module, rule: LoadRule = TRANSFORMER) -> LoadReport:
    with CheckpointFile(path) as file:
        report = load_module(module, file, linear=DequantLinear(), device=CPU, rule=rule)
    assert not any(t.is_meta for t in (*module.parameters(), *module.buffers()))
    return report


def same(found: StoredWeight, wanted: StoredWeight) -> None:
    """The same class, field by field, and the same numbers in three dtypes."""
    assert type(found) is type(wanted)
    for field in fields(wanted):
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        if field.name == "bias":
            continue
        if isinstance(other, torch.Tensor):
            assert one.dtype in (other.dtype, torch.uint8) and one.shape == other.shape, field.name
            assert torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (one, other))), field.name
        else:
            assert one == other, field.name
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert torch.equal(dense(found, dtype), dense(wanted, dtype))


@pytest.mark.parametrize("kind", PACKERS)
def test_a_whole_transformer_in_one_format(write: Write, kind: str) -> None:
    weights = values(transformer_shapes(FULL))
    layers, tensors = packed(weights, dict.fromkeys(linears(dit()), kind))
    module = dit()
    load(write(tensors), module)
    assert len(layers) == 20
    for name, layer in layers.items():
        found = module.get_submodule(name)
        assert isinstance(found, BackendLinear)
        same(found.resident, layer.stored)
        bias = tensors.get(f"{name}.bias")
        assert (found.resident.bias is None) == (bias is None)
        assert bias is None or torch.equal(found.resident.bias, bias)


def test_all_formats_in_one_file(write: Write) -> None:
    kinds = dict(zip(linears(dit()), cycle(PACKERS), strict=False))
    assert set(kinds.values()) >= set(PACKERS) - {"awq 32"}
    layers, tensors = packed(values(transformer_shapes(FULL)), kinds)
    module = dit()
    load(write(tensors), module)
    for name, layer in layers.items():
        same(module.get_submodule(name).resident, layer.stored)


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("told", ["", "model.diffusion_model.", "diffusion_model."])
def test_a_hybrid_told_by_metadata_alone(write: Write, prefix: str, told: str) -> None:
    kinds = dict(zip(linears(dit()), cycle(QUANTISED), strict=False))
    layers, tensors = packed(values(transformer_shapes(FULL)), kinds)
    bare = {prefix + name: t for name, t in tensors.items() if not name.endswith(".comfy_quant")}
    markers = {told + name: layer.marker for name, layer in layers.items()}
    module = dit()
    load(write(bare, {"_quantization_metadata": json.dumps({"layers": markers})}), module)
    for name, layer in layers.items():
        same(module.get_submodule(name).resident, layer.stored)


def test_a_transformer_computes_what_its_dequantised_weights_do(write: Write) -> None:
    weights = values(transformer_shapes(FULL))
    kinds = dict(zip(linears(dit()), cycle(QUANTISED), strict=False))
    kinds = {name: kind for name, kind in kinds.items() if kind != "nvfp4 awq"}
    layers, tensors = packed(weights, kinds)
    plain = {n: t for n, t in tensors.items() if n in weights}
    plain |= {f"{name}.weight": dense(layer.stored, torch.bfloat16) for name, layer in layers.items()}
    text = torch.randn(1, 5, FULL.text_dim, generator=torch.Generator().manual_seed(3))
    results = []
    for content in (tensors, plain):
        module = dit()
        load(write(content), module)
        results.append(module.refine(text))
    assert torch.equal(*results) and results[0].abs().sum() > 0


# --- shapes that need padding ---


@pytest.mark.parametrize("kind", ["nvfp4", "nvfp4, raw scales, orig_shape", "nvfp4 awq", "mxfp8", "mxfp8 as e8m0"])
@pytest.mark.parametrize("shape", [(37, 50), (200, 176), (16, 8), (130, 33), (1, 1)])
def test_padding_is_cropped_to_the_model(write: Write, kind: str, shape: tuple[int, int]) -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(shape[1], shape[0])

    layer = PACKERS[kind](torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    with torch.device("meta"):
        one = One()
    path = write({**layer.named("fc"), "fc.bias": torch.zeros(shape[0])})
    with CheckpointFile(path) as file:
        assert file.shapes["fc.weight"][0] == shape[0]
        assert file.shapes["fc.weight"] == shape or "orig_shape" not in kind
    load(path, one, LoadRule())
    same(one.fc.resident, layer.stored)
    assert dense(one.fc.resident, torch.float32).shape == shape


def test_a_pre_quant_scale_over_the_padding_is_cropped(write: Write) -> None:
    with torch.device("meta"):
        one = nn.ModuleDict({"fc": nn.Linear(50, 32, bias=False)})
    layer = PACKERS["nvfp4"](torch.ones(32, 50))
    load(write({**layer.named("fc"), "fc.pre_quant_scale": torch.arange(64.0)}), one, LoadRule())
    assert torch.equal(one["fc"].resident.pre_quant_scale, torch.arange(50.0))
    with torch.device("meta"):
        one = nn.ModuleDict({"fc": nn.Linear(50, 32, bias=False)})
    with pytest.raises(CheckpointError, match=r"fc.pre_quant_scale has shape \[49\] \(legal: \[50\]\)"):
        load(write({**layer.named("fc"), "fc.pre_quant_scale": torch.ones(49)}), one, LoadRule())


# --- what a summary says ---


@pytest.mark.parametrize(
    ("kind", "summary"),
    [
        ("plain", "bf16"),
        ("bare fp8", "fp8_e4m3fn"),
        ("nvfp4", "nvfp4"),
        ("nvfp4 awq", "nvfp4_awq"),
        ("int8 rows", "int8"),
        ("int8 convrot 64", "int8_convrot"),
        ("fp8 with input scale", "fp8_scaled"),
        ("fp8 e5m2 as bytes", "fp8_e5m2_scaled"),
        ("mxfp8", "mxfp8"),
        ("int4_tensorwise", "w4a4"),
        ("w4a8", "w4a8"),
        ("awq", "awq_w4a16"),
    ],
)
def test_the_summary_names_the_storage_of_the_linears(write: Write, kind: str, summary: str) -> None:
    _, tensors = packed(values(transformer_shapes(FULL)), dict.fromkeys(linears(dit()), kind))
    assert load(write(tensors), dit()).format == summary


def test_the_summary_of_a_hybrid_puts_the_largest_first(write: Write) -> None:
    kinds = {"blocks.0.mlp.fc2": "nvfp4", "blocks.0.attn.qkv_proj": "int8 convrot 64", "condition_proj": "mxfp8"}
    _, tensors = packed(values(transformer_shapes(FULL)), kinds)
    assert load(write(tensors), dit()).format == "int8_convrot+nvfp4+mxfp8"


# --- the published kinds that have something of their own ---


def test_unpruned_int8_rotates_its_adaln_in_smaller_groups(write: Write) -> None:
    names = linears(dit())
    kinds = {n: "int8 convrot 4" if "adaln_proj" in n else "int8 convrot 64" for n in names if n.startswith("blocks.")}
    layers, tensors = packed(values(transformer_shapes(FULL)), kinds)
    module = dit()
    load(write(tensors), module)
    assert module.blocks[1].adaln_proj.linear.resident.convrot == 4
    assert module.blocks[1].attn.qkv_proj.resident.convrot == 64
    for name, layer in layers.items():
        same(module.get_submodule(name).resident, layer.stored)


def test_what_dense_attention_doesn_t_read_stays_in_the_file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """`to_gate_compress` of an INT8 file: three more tensors a block (checkpoint-formats §2.4)."""
    kinds = {n: "int8 convrot 64" for n in linears(dit()) if n.startswith("blocks.") and "adaln" not in n}
    layers, tensors = packed(values(transformer_shapes(FULL)), kinds)
    gates = [f"blocks.{i}.attn.to_gate_compress" for i in range(FULL.layers)]
    for name in gates:
        tensors |= PACKERS["int8 convrot 64"](torch.randn(128, FULL.hidden)).named(name)
    asked: set[str] = set()
    stream = loading.stream

    def spy(file: CheckpointFile, names: set[str], *rest: object) -> object:
        asked.update(names)
        return stream(file, names, *rest)

    monkeypatch.setattr(loading, "stream", spy)
    path = write(tensors)
    with CheckpointFile(path) as file, torch.device("meta"):
        module = Dit(DitConfig.from_shapes(file.shapes))
    load(path, module)
    assert asked and not [name for name in asked if "to_gate_compress" in name]
    assert not [name for name in module.state_dict() if "to_gate_compress" in name]
    for name, layer in layers.items():
        same(module.get_submodule(name).resident, layer.stored)


def test_a_bank_of_output_heads_loads_beside_quantised_blocks(write: Write) -> None:
    shapes = transformer_shapes(FULL)
    for name in ("final_layer.video_out", "final_layer.audio_out"):
        shapes |= {f"{name}.weight": (4 * shapes[f"{name}.weight"][0], FULL.hidden)}
        shapes |= {f"{name}.bias": (4 * shapes[f"{name}.bias"][0],)}
    _, tensors = packed(values(shapes), {"blocks.0.mlp.fc1": "nvfp4"})
    path = write(tensors)
    with CheckpointFile(path) as file, torch.device("meta"):
        module = Dit(DitConfig.from_shapes(file.shapes))
    load(path, module)
    assert module.config.head_bank == 4


def test_a_quantised_output_head_is_refused_by_name(write: Write) -> None:
    _, tensors = packed(values(transformer_shapes(FULL)), {"final_layer.video_out": "nvfp4"})
    with pytest.raises(CheckpointError, match=r"final_layer.video_out is stored as nvfp4.*there \(legal: plain\)"):
        load(write(tensors), dit())


SMALL_VAE = VideoVaeSizes(
    channels=8,
    encoder_widths=(32, 32, 32, 32, 32, 32),
    blocks=1,
    width=64,
    inner=64,
    ffn=128,
    layers=2,
)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_an_int8_video_vae_keeps_its_scales_while_the_rest_is_cast(write: Write, dtype: torch.dtype) -> None:
    weights = values(video_vae_shapes(SMALL_VAE))

    def vae() -> VideoVae:
        with torch.device("meta"):
            return VideoVae(VideoVaeConfig.from_shapes(video_vae_shapes(SMALL_VAE), {"vae_head_dim": 16}), dtype)

    kinds = {n: "int8 convrot 64" for n in linears(vae()) if n.startswith("decoder.transformer_blocks.")}
    assert len(kinds) == 4 * SMALL_VAE.layers
    layers, tensors = packed(weights, kinds)
    halves = ("encoder.",)
    tensors = {
        n: t.to(torch.float16 if n.startswith(halves) else torch.float32) if t.dtype is torch.bfloat16 else t
        for n, t in tensors.items()
    }
    module = vae()
    report = load(write(tensors), module, video_vae(dtype))
    assert report.format == "int8_convrot"
    for name, layer in layers.items():
        found = module.get_submodule(name).resident
        assert isinstance(found, Int8Weight) and found.scale.dtype is torch.float32 and found.bias.dtype is dtype
        same(found, layer.stored)
    assert {t.dtype for t in module.state_dict().values()} == {dtype}
    assert module.decoder.proj_out.resident.weight.dtype is dtype


def test_bare_fp8_beside_quantised_layers_is_a_plain_number(write: Write) -> None:
    kinds = {n: "bare fp8" if "adaln" in n else "nvfp4" for n in linears(dit()) if n.startswith("blocks.")}
    layers, tensors = packed(values(transformer_shapes(FULL)), kinds)
    module = dit()
    assert load(write(tensors), module).format == "nvfp4"
    found = module.blocks[0].adaln_proj.linear.resident
    assert isinstance(found, PlainWeight)
    stored = layers["blocks.0.adaln_proj.linear"].stored
    assert isinstance(stored, PlainWeight) and torch.equal(found.weight.float(), stored.weight.float())


def test_bare_fp8_outside_of_linears_is_widened_without_loss(write: Write) -> None:
    with torch.device("meta"):
        module = nn.ModuleDict({"embed": nn.Embedding(20, 32, _weight=torch.empty(20, 32))})
    stored = torch.randn(20, 32).to(torch.float8_e5m2)
    load(write({"embed.weight": stored}), module, LoadRule())
    assert module["embed"].weight.dtype is torch.bfloat16
    assert torch.equal(module["embed"].weight.float(), stored.float())


@pytest.mark.parametrize("kind", ["int8 rows", "int8 tensor", "int8 convrot 4"])
def test_an_embedding_table_may_be_int8(write: Write, kind: str) -> None:
    with torch.device("meta"):
        module = nn.ModuleDict({"embed": nn.Embedding(20, 64, _weight=torch.empty(20, 64))})
    layer = PACKERS[kind](torch.randn(20, 64, generator=torch.Generator().manual_seed(0)))
    load(write(layer.named("embed")), module, LoadRule())
    assert isinstance(layer.stored, Int8Weight)
    ids = torch.tensor([[3, 19]])
    assert torch.equal(module["embed"](ids), int8.dequantize_fp32(layer.stored)[ids])


@pytest.mark.parametrize("kind", [k for k in QUANTISED if not k.startswith("int8")])
def test_an_embedding_table_in_another_format_is_refused(write: Write, kind: str) -> None:
    with torch.device("meta"):
        module = nn.ModuleDict({"embed": nn.Embedding(32, 64, _weight=torch.empty(32, 64))})
    layer = PACKERS[kind](torch.randn(32, 64))
    with pytest.raises(CheckpointError, match=r"embed is stored as .*there \(legal: plain, int8_tensorwise\)"):
        load(write(layer.named("embed")), module, LoadRule())


def test_static_scales_and_flags_reach_the_backend(write: Write) -> None:
    kinds = {"blocks.0.mlp.fc1": "fp8 with input scale", "blocks.0.mlp.fc2": "fp8 full precision"}
    _, tensors = packed(values(transformer_shapes(FULL)), kinds)
    module = dit()
    load(write(tensors), module)
    fc1, fc2 = module.blocks[0].mlp.fc1.resident, module.blocks[0].mlp.fc2.resident
    assert isinstance(fc1, Fp8Weight) and isinstance(fc2, Fp8Weight)
    assert fc1.input_scale is not None and fc1.input_scale.shape == () and not fc1.full_precision
    assert fc2.input_scale is None and fc2.full_precision
