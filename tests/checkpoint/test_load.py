"""Strict loading: everything wrong is one error before any data is read; what is right arrives exactly as stored."""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.embedding import Int8Embedding
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.load import LoadReport, load_module
from h3runtime.checkpoint.rules import AUDIO_VAE, TRANSFORMER, LoadRule, vae_dtype, video_vae
from h3runtime.checkpoint.synthetic.storage import (
    INT8_ROWS,
    NVFP4,
    Scheme,
    Storage,
    marker_tensor,
    pack,
)
from h3runtime.errors import CheckpointError, SettingsError
from h3runtime.quant import int8, nvfp4
from tests.checkpoint.conftest import Write
from tests.checkpoint.packed_layers import PACKERS

CPU = torch.device("cpu")
RULE = LoadRule(ignored=("extra.*", "unused"))


class Toy(nn.Module):
    """One of each kind of tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 32)
        self.fc1 = nn.Linear(32, 48)
        self.fc2 = nn.Linear(48, 32, bias=False)
        self.norm = nn.LayerNorm(32)
        self.conv = nn.Conv1d(32, 4, 3)
        self.register_buffer("table", torch.empty(5, 8))
        self.unused = nn.Parameter(torch.empty(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.fc2(self.fc1(self.embed(ids))))
        return self.conv(x.mT) + self.table.sum()


def toy() -> Toy:
    with torch.device("meta"):
        return Toy()


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(t.shape, generator=generator) for name, t in toy().state_dict().items()}


def load(path: Path, module: nn.Module | None = None, rule: LoadRule = RULE) -> tuple[nn.Module, LoadReport]:
    module = module or toy()
    with CheckpointFile(path) as file:
        report = load_module(module, file, linear=DequantLinear(), device=CPU, rule=rule)
    return module, report


def refused(path: Path, rule: LoadRule = RULE) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        load(path, rule=rule)
    assert "model.safetensors" in caught.value.message
    return caught.value


QUANTISED = Storage(
    torch.bfloat16,
    (("table", torch.float32),),
    (("fc2", Scheme("nvfp4", pre_quant=True)), ("fc?", NVFP4), ("embed", INT8_ROWS)),
)


# --- what is right ---


def test_a_plain_file_arrives_as_stored(write: Write) -> None:
    stored = {name: t.to(torch.float16 if name == "fc1.weight" else torch.bfloat16) for name, t in weights().items()}
    module, report = load(write(stored))
    assert isinstance(module.fc1, BackendLinear) and isinstance(module.embed, nn.Embedding)
    assert (
        torch.equal(module.fc1.resident.weight, stored["fc1.weight"])
        and module.fc1.resident.weight.dtype is torch.float16
    )
    assert torch.equal(module.fc1.resident.bias, stored["fc1.bias"])
    assert module.unused is None
    for name in ("embed.weight", "norm.weight", "conv.weight", "table"):
        found = module.state_dict()[name]
        assert found.dtype is torch.bfloat16 and torch.equal(found, stored[name])
    assert not any(p.requires_grad for p in module.parameters())
    assert report.format == "bf16" and report.bytes == sum(t.nbytes for t in stored.values()) and not report.synthetic
    assert report.seconds > 0


def test_a_quantised_file_computes_what_its_weights_say(write: Write) -> None:
    plain = weights()
    scales = {"fc2": torch.linspace(0.5, 2, 48)}
    stored = pack(plain, QUANTISED, scales)
    module, report = load(write(stored))
    ids = torch.tensor([[1, 19, 4, 4]])
    embedded = int8.dequantize_fp32(int8.quantize(plain["embed.weight"]))[ids]
    assert isinstance(module.embed, Int8Embedding) and torch.equal(module.embed(ids), embedded)
    fc1 = nvfp4.dequantize_fp32(nvfp4.quantize(plain["fc1.weight"]))
    assert torch.equal(module.fc1(embedded), nn.functional.linear(embedded, fc1, stored["fc1.bias"].float()))
    scale = scales["fc2"].to(torch.bfloat16).float()
    fc2 = nvfp4.dequantize_fp32(nvfp4.quantize(plain["fc2.weight"] / scale))
    x = torch.randn(2, 48, generator=torch.Generator().manual_seed(9))
    assert torch.equal(module.fc2(x), nn.functional.linear(x * scale, fc2))
    assert report.format == "nvfp4_awq+int8"


def test_metadata_markers_do_what_tensor_markers_do(write: Write) -> None:
    stored = pack(weights(), QUANTISED)
    bare = {name: t for name, t in stored.items() if not name.endswith(".comfy_quant")}
    layers = {"fc1": {"format": "nvfp4"}, "fc2": "nvfp4", "embed": {"format": "int8_tensorwise"}}
    text = json.dumps({"format_version": "1.0", "layers": layers})
    one, _ = load(write(stored))
    other, _ = load(write(bare, {"_quantization_metadata": text}))
    ids = torch.tensor([[0, 7]])
    assert torch.equal(one.fc2(one.fc1(one.embed(ids))), other.fc2(other.fc1(other.embed(ids))))


@pytest.mark.parametrize("in_metadata", ["", "diffusion_model."])
def test_prefixes_reach_markers_and_metadata_too(write: Write, in_metadata: str) -> None:
    stored = pack(weights(), QUANTISED)
    del stored["fc1.comfy_quant"]
    text = f'{{"layers": {{"{in_metadata}fc1": {{"format": "nvfp4"}}}}}}'
    path = write({f"diffusion_model.{n}": t for n, t in stored.items()}, {"_quantization_metadata": text})
    module, _ = load(path)
    assert module.fc1.resident.format == module.fc2.resident.format == "nvfp4"


def test_padded_layers_are_cropped_to_the_model(write: Write) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = nn.Linear(50, 37, bias=False)

    weight = torch.randn(37, 50, generator=torch.Generator().manual_seed(0))
    stored = pack({"fc1.weight": weight}, QUANTISED)
    assert stored["fc1.weight"].shape == (48, 32) and stored["fc1.weight_scale"].shape == (128, 4)
    with torch.device("meta"):
        odd = Odd()
    module, _ = load(write(stored), odd)
    x = torch.eye(50)
    assert torch.equal(module.fc1(x).T, nvfp4.dequantize_fp32(nvfp4.quantize(weight)))


def test_orig_shape_gives_the_logical_shape(write: Write) -> None:
    stored = pack({"fc1.weight": torch.ones(37, 50)}, QUANTISED)
    stored["fc1.comfy_quant"] = marker_tensor(b'{"format": "nvfp4", "orig_shape": [37, 50], "new_key": 1}\0\0')
    with CheckpointFile(write(stored)) as file:
        assert dict(file.shapes) == {"fc1.weight": (37, 50)}


def test_scales_as_raw_bytes_and_static_input_scale(write: Write) -> None:
    stored = pack(weights(), QUANTISED)
    stored["fc1.weight_scale"] = stored["fc1.weight_scale"].view(torch.uint8)
    stored["fc1.input_scale"] = torch.tensor(0.5)
    stored["fc1.weight_scale_2"] = stored["fc1.weight_scale_2"].reshape(1)
    module, _ = load(write(stored))
    assert module.fc1.resident.block_scale.dtype is torch.float8_e4m3fn
    assert module.fc1.resident.input_scale.shape == module.fc1.resident.tensor_scale.shape == ()


@pytest.mark.parametrize("shape", [(), (1,), (20,), (20, 1)])
def test_int8_scales_of_every_legal_shape(write: Write, shape: tuple[int, ...]) -> None:
    stored = pack(weights(), QUANTISED)
    stored["embed.weight_scale"] = torch.full(shape, 0.25)
    module, _ = load(write(stored))
    assert torch.equal(module.embed(torch.tensor([3])), stored["embed.weight"][3:4].float() * 0.25)


def test_bare_fp8_is_a_plain_number(write: Write) -> None:
    stored = weights()
    stored["fc1.weight"] = stored["fc1.weight"].to(torch.float8_e4m3fn)
    module, _ = load(write(stored))
    x = torch.ones(1, 32)
    assert torch.equal(module.fc1(x), nn.functional.linear(x, stored["fc1.weight"].float(), stored["fc1.bias"]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_cast_reaches_every_floating_tensor(write: Write, dtype: torch.dtype) -> None:
    rule = LoadRule(cast=dtype, ignored=("unused",))
    stored = {n: t.to(torch.bfloat16) for n, t in weights().items() if n != "unused"}
    module, _ = load(write(stored), rule=rule)
    assert {t.dtype for t in module.state_dict().values()} == {dtype}
    assert module.fc1.resident.weight.dtype is module.fc1.resident.bias.dtype is dtype


def test_ignored_names_may_be_there(write: Write) -> None:
    load(write({**weights(), "extra.scale": torch.ones(2)}))


def test_progress_counts_bytes_and_the_file_is_never_mapped(write: Write) -> None:
    path = write(pack(weights(), QUANTISED))
    calls: list[tuple[int, int]] = []

    def on_bytes(done: int, in_all: int) -> None:
        assert str(path) not in Path("/proc/self/maps").read_text()
        calls.append((done, in_all))

    with CheckpointFile(path) as file:
        load_module(toy(), file, linear=DequantLinear(), device=CPU, rule=RULE, on_bytes=on_bytes)
        total = file.data_bytes
    done = [d for d, _ in calls]
    assert done == sorted(done) and calls[-1] == (total, total) and 5 < len(calls) <= 202


def test_loading_twice_gives_the_same(write: Write) -> None:
    path = write(pack(weights(), QUANTISED))
    (one, _), (other, _) = load(path), load(path)
    x = one.embed(torch.tensor([[5, 6, 7]]))
    assert torch.equal(one.fc2(one.fc1(x)), other.fc2(other.fc1(x)))
    assert all(torch.equal(t, other.state_dict()[name]) for name, t in one.state_dict().items())


# --- what is wrong ---


def test_every_offender_is_listed_at_once(write: Write) -> None:
    stored = weights()
    del stored["norm.bias"], stored["fc2.weight"]
    stored["conv.weight"] = torch.zeros(4, 32, 5)
    stored["table"] = torch.zeros(5, 8, dtype=torch.int64)
    stored["fc1.bias"] = torch.zeros(47, dtype=torch.float64)
    stored["surplus"] = torch.zeros(1)
    error = refused(write(stored))
    found = {(o.field, o.message) for o in error.offences}
    assert found == {
        ("norm.bias", "is missing"),
        ("fc2.weight", "is missing"),
        ("conv.weight", "has shape [4, 32, 5]"),
        ("table", "has dtype int64"),
        ("fc1.bias", "has shape [47]"),
        ("fc1.bias", "has dtype float64"),
        ("surplus", "is unexpected: the model has no such tensor"),
    }
    for name in ("norm.bias", "fc2.weight", "conv.weight", "table", "fc1.bias", "surplus"):
        assert name in error.message
    assert "legal: [4, 32, 3]" in error.message


def spoilt() -> Iterator[tuple[str, dict[str, torch.Tensor], str, str]]:
    """(id, stored tensors, the offending field, what the error says)."""
    whole = pack(weights(), QUANTISED)

    def but(**changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
        changed = {**whole, **{k.replace("__", "."): v for k, v in changes.items()}}
        return {k: v for k, v in changed.items() if v is not None}

    def marker(text: bytes) -> torch.Tensor:
        return marker_tensor(text)

    yield "no marker", but(fc1__comfy_quant=None), "fc1.weight", "no marker"
    yield "no int8 marker", but(embed__comfy_quant=None), "embed.weight", "no marker"
    yield "no format", but(fc1__comfy_quant=marker(b'{"convrot": true}')), "fc1.comfy_quant", "no `format`"
    yield "marker isn't JSON", but(fc1__comfy_quant=marker(b"nvfp4")), "fc1.comfy_quant", "isn't JSON"
    yield "marker is a list", but(fc1__comfy_quant=marker(b"[]")), "fc1.comfy_quant", "isn't a JSON object"
    yield "marker isn't bytes", but(fc1__comfy_quant=torch.zeros(19)), "fc1.comfy_quant", "one-dimensional U8"
    yield "unknown format", but(fc1__comfy_quant=marker(b'{"format": "nf4"}')), "fc1", "nf4, which isn't supported"
    convrot = marker(b'{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256}')
    yield "convrot of another size", but(embed__comfy_quant=convrot), "embed.comfy_quant", "convrot_groupsize 256"
    nested = marker(b'{"format": "int8_tensorwise", "params": {"convrot": true, "convrot_groupsize": 64}}')
    yield "nested convrot", but(embed__comfy_quant=nested), "embed.comfy_quant", "convrot_groupsize 64"
    yield "no scale", but(fc1__weight_scale=None), "fc1.weight_scale", "is missing"
    yield "no second scale", but(fc1__weight_scale_2=None), "fc1.weight_scale_2", "is missing"
    yield "no int8 scale", but(embed__weight_scale=None), "embed.weight_scale", "is missing"
    yield "scale shape", but(fc1__weight_scale=torch.zeros(64, 4, dtype=torch.uint8)), "fc1.weight_scale", "shape"
    yield "scale dtype", but(fc1__weight_scale=torch.zeros(128, 4)), "fc1.weight_scale", "dtype float32"
    yield "pre-quant shape", but(fc2__pre_quant_scale=torch.ones(7)), "fc2.pre_quant_scale", "shape"
    yield "weight dtype", but(fc1__weight=torch.zeros(48, 16)), "fc1.weight", "dtype float32"
    yield "weight rank", but(fc1__weight=torch.zeros(48, dtype=torch.uint8)), "fc1.weight", "shape"
    yield "stray marker", but(norm__comfy_quant=marker(NVFP4.marker())), "norm.weight", "has shape"
    yield "nvfp4 embedding", but(embed__comfy_quant=marker(NVFP4.marker())), "embed.weight", "dtype int8"
    yield "int8 linear", but(fc1__comfy_quant=marker(INT8_ROWS.marker())), "fc1.weight", "dtype uint8"
    yield "marker for nothing", but(gone__comfy_quant=marker(NVFP4.marker())), "gone.comfy_quant", "isn't in the file"
    yield "other layer", but(fc1__weight=torch.zeros(64, 16, dtype=torch.uint8)), "fc1.weight", r"has shape \[64, 32\]"
    fp8 = {"fc2.weight": torch.zeros(32, 48).to(torch.float8_e4m3fn), "fc2.weight_scale": torch.tensor(1.0)}
    yield "fp8 with a scale", {**weights(), **fp8}, "fc2.weight", "no marker"
    yield "nan scale", but(fc1__weight_scale_2=torch.tensor(float("nan"))), "fc1.weight_scale_2", "isn't finite"
    yield (
        "inf int8 scale",
        but(embed__weight_scale=torch.full((20, 1), float("inf"))),
        "embed.weight_scale",
        "isn't finite",
    )
    nan_block = torch.full((128, 4), 0x7F, dtype=torch.uint8)
    yield "nan block scale", but(fc1__weight_scale=nan_block), "fc1.weight_scale", "isn't finite"


SPOILT = list(spoilt())


@pytest.mark.parametrize(("stored", "field", "says"), [s[1:] for s in SPOILT], ids=[s[0] for s in SPOILT])
def test_a_spoilt_layer_is_named(write: Write, stored: dict[str, torch.Tensor], field: str, says: str) -> None:
    error = refused(write(stored))
    assert field in [o.field for o in error.offences], error.message
    assert any(re.search(says, o.message) for o in error.offences if o.field == field), error.message


def test_every_spoilt_scale_is_named_wherever_loading_meets_the_first(write: Write) -> None:
    stored = pack(weights(), QUANTISED)
    stored["fc1.weight_scale_2"] = torch.tensor(float("nan"))
    stored["fc2.weight_scale_2"] = torch.tensor(-1.0)
    stored["fc2.pre_quant_scale"][5] = float("-inf")
    stored["embed.weight_scale"][19] = -1e-3
    error = refused(write(stored))
    assert {(o.field, o.message) for o in error.offences} == {
        ("fc1.weight_scale_2", "isn't finite"),
        ("fc2.weight_scale_2", "is negative"),
        ("fc2.pre_quant_scale", "isn't finite"),
        ("embed.weight_scale", "is negative"),
    }


@pytest.mark.parametrize("kind", [k for k in PACKERS if k not in ("plain", "bare fp8")])
def test_no_sidecar_of_any_format_may_be_spoilt(write: Write, kind: str) -> None:
    layer = PACKERS[kind](torch.randn(48, 64, generator=torch.Generator().manual_seed(0)))
    for leaf, tensor in layer.tensors.items():
        if leaf == "weight":
            continue
        spoilt = tensor.clone()
        if tensor.itemsize == 1:
            spoilt.view(torch.uint8).view(-1)[-1] = 0xFF
        else:
            spoilt.view(-1)[-1] = float("nan")
        with torch.device("meta"):
            module = nn.ModuleDict({"fc": nn.Linear(64, 48, bias=False)})
        with pytest.raises(CheckpointError) as caught:
            load(write({**layer.named("fc"), f"fc.{leaf}": spoilt}), module)
        assert [(o.field, o.message) for o in caught.value.offences] == [(f"fc.{leaf}", "isn't finite")]


def test_what_is_signed_may_be_negative(write: Write) -> None:
    layer = PACKERS["w4a8 even"](torch.randn(48, 64, generator=torch.Generator().manual_seed(0)))
    assert (layer.tensors["weight_correction"] < 0).any()
    for leaf in ("weight_correction", "weight_s_channel"):
        with torch.device("meta"):
            module = nn.ModuleDict({"fc": nn.Linear(64, 48, bias=False)})
        tensors = {**layer.named("fc"), f"fc.{leaf}": -layer.tensors[leaf].abs()}
        if leaf == "weight_correction":
            load(write(tensors), module)
        else:
            with pytest.raises(CheckpointError, match=r"fc.weight_s_channel is negative"):
                load(write(tensors), module)


def test_a_format_in_the_wrong_place_is_refused(write: Write) -> None:
    stored = pack(weights(), replace(QUANTISED, layers=(("fc?", NVFP4), ("embed", NVFP4))))
    (offence,) = refused(write(stored)).offences
    assert offence.field == "embed" and "nvfp4" in offence.message and "there" in offence.message
    assert offence.legal == "plain, int8_tensorwise"


def test_all_layers_of_an_unknown_format_are_listed(write: Write) -> None:
    stored = pack(weights(), QUANTISED)
    for layer in ("fc1", "fc2"):
        stored[f"{layer}.comfy_quant"] = marker_tensor(b'{"format": "nf4"}')
    error = refused(write(stored))
    assert [o.field for o in error.offences] == ["fc1", "fc2"] and error.message.count("nf4") == 2
    assert "mxfp8" in error.offences[0].legal


def test_markers_that_contradict_each_other_are_refused(write: Write) -> None:
    text = '{"layers": {"fc1": {"format": "nvfp4", "full_precision_matrix_mult": true}}}'
    error = refused(write(pack(weights(), QUANTISED), {"_quantization_metadata": text}))
    assert error.offences[0].field == "fc1.comfy_quant" and "contradicts" in error.message


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"layers": []}', '{"layers": {"fc1": 7}}', '{"layers": {"fc1": {}}}']
)
def test_metadata_that_can_t_be_understood_is_refused(write: Write, text: str) -> None:
    refused(write(weights(), {"_quantization_metadata": text}))


def test_nothing_is_touched_by_a_refused_load(write: Write) -> None:
    module = toy()
    stored = weights()
    del stored["table"]
    with CheckpointFile(write(stored)) as file, pytest.raises(CheckpointError):
        load_module(module, file, linear=DequantLinear(), device=CPU, rule=RULE)
    assert all(t.is_meta for t in module.state_dict().values()) and isinstance(module.fc1, nn.Linear)


def test_a_file_cut_short_during_the_load_is_an_error(write: Write) -> None:
    path = write(weights())
    with CheckpointFile(path) as file:
        os.truncate(path, path.stat().st_size // 2)
        with pytest.raises(CheckpointError, match="cut short"):
            load_module(toy(), file, linear=DequantLinear(), device=CPU, rule=RULE)


# --- the components' rules ---


def test_the_video_vae_takes_two_dtypes_and_names_the_third() -> None:
    assert video_vae(torch.float32).cast is torch.float32 and vae_dtype("float16") is torch.float16
    for name in ("bfloat16", "float8"):
        with pytest.raises(SettingsError, match=name) as caught:
            vae_dtype(name)
        assert caught.value.offences[0].legal == "float16, float32"


def test_components_keep_or_cast_as_published() -> None:
    assert TRANSFORMER.cast is None and AUDIO_VAE.cast is torch.float32
