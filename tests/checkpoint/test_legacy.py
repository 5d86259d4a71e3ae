"""Files with `scaled_fp8` say in other words what today's files say (checkpoint-formats §2.5)."""

from pathlib import Path

import pytest
import torch
from torch import nn

from h3runtime.backends.linear.dequant import DequantLinear, dense
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.load import load_module, storage_format
from h3runtime.checkpoint.rules import LoadRule
from h3runtime.errors import CheckpointError
from h3runtime.quant import fp8
from h3runtime.quant.stored import Fp8Weight, PlainWeight
from tests.checkpoint.conftest import Write

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(32, 48)
        self.fc2 = nn.Linear(48, 32, bias=False)
        self.norm = nn.LayerNorm(32)


def legacy(dtype: torch.dtype = E4M3, root: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    """fc1 with a static scale of 1, fc2 with one of 0.5; everything else BF16."""
    generator = torch.Generator().manual_seed(0)
    tensors = {n: torch.randn(t.shape, generator=generator).to(torch.bfloat16) for n, t in Two().state_dict().items()}
    for name, static in (("fc1", 1.0), ("fc2", 0.5)):
        q = fp8.quantize(tensors[f"{name}.weight"].float(), dtype)
        tensors |= {f"{name}.weight": q.codes, f"{name}.scale_weight": q.scale.reshape(1)}
        tensors[f"{name}.scale_input"] = torch.tensor(static)
    return tensors | {"scaled_fp8": torch.empty(0, dtype=dtype) if root is None else root}


def load(path: Path) -> Two:
    with torch.device("meta"):
        module = Two()
    with CheckpointFile(path) as file:
        assert "scaled_fp8" not in file.entries and not [n for n in file.entries if "scale_weight" in n]
        load_module(module, file, linear=DequantLinear(), device=torch.device("cpu"), rule=LoadRule())
        assert storage_format(file) in ("fp8_scaled", "fp8_e5m2_scaled")
    return module


def refused(path: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        load(path)
    return caught.value


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_weights_and_scales_are_found_under_their_old_names(write: Write, prefix: str, dtype: torch.dtype) -> None:
    tensors = legacy(dtype)
    module = load(write({prefix + name: t for name, t in tensors.items()}))
    for name, static in (("fc1", None), ("fc2", 0.5)):
        found = module.get_submodule(name).resident
        assert isinstance(found, Fp8Weight) and found.codes.dtype is dtype and not found.full_precision
        scale = tensors[f"{name}.scale_weight"].item()
        assert torch.equal(dense(found, torch.float32), tensors[f"{name}.weight"].float() * scale)
        assert (None if found.input_scale is None else found.input_scale.item()) == static
    assert torch.equal(module.fc1.resident.bias, tensors["fc1.bias"])


@pytest.mark.parametrize(("elements", "full_precision"), [(0, False), (1, False), (2, True), (3, False)])
def test_two_elements_forbid_quantised_activations(write: Write, elements: int, full_precision: bool) -> None:
    module = load(write(legacy(root=torch.zeros(elements, dtype=E4M3))))
    assert module.fc1.resident.full_precision is module.fc2.resident.full_precision is full_precision


def test_raw_bytes_are_of_the_root_s_dtype(write: Write) -> None:
    for dtype, root in ((E5M2, torch.zeros(1, dtype=E5M2)), (E4M3, torch.zeros(1))):
        tensors = legacy(dtype, root)
        raw = {n: t.view(torch.uint8) if n in ("fc1.weight", "fc2.weight") else t for n, t in tensors.items()}
        found = load(write(raw)).fc1.resident
        assert found.codes.dtype is dtype and torch.equal(found.codes.float(), tensors["fc1.weight"].float())


def test_a_layer_without_a_scale_is_plain(write: Write) -> None:
    tensors = legacy()
    del tensors["fc1.scale_weight"], tensors["fc1.scale_input"]
    module = load(write(tensors))
    assert isinstance(module.fc1.resident, PlainWeight) and module.fc1.resident.weight.dtype is E4M3


def test_today_s_markers_may_stand_beside(write: Write) -> None:
    tensors = legacy()
    text = b'{"format": "float8_e4m3fn"}'
    tensors["fc1.comfy_quant"] = torch.tensor(list(text), dtype=torch.uint8)
    assert isinstance(load(write(tensors)).fc1.resident, Fp8Weight)
    tensors["fc1.comfy_quant"] = torch.tensor(list(b'{"format": "float8_e5m2"}'), dtype=torch.uint8)
    assert "contradicts" in refused(write(tensors)).message


def test_without_the_root_the_old_names_are_unmarked(write: Write) -> None:
    tensors = legacy()
    del tensors["scaled_fp8"]
    error = refused(write(tensors))
    assert [o.field for o in error.offences] == ["fc1.weight", "fc2.weight"] and "no marker" in error.message


def test_a_scale_beside_a_weight_that_isn_t_fp8_is_refused(write: Write) -> None:
    tensors = legacy()
    tensors["fc1.weight"] = tensors["fc1.weight"].to(torch.bfloat16)
    assert refused(write(tensors)).offences[0].field == "fc1.weight"


def test_a_tensor_under_both_names_is_refused(write: Write) -> None:
    tensors = legacy()
    tensors["fc1.weight_scale"] = torch.tensor(1.0)
    (offence,) = refused(write(tensors)).offences
    assert offence.field == "fc1.scale_weight" and "both names" in offence.message


@pytest.mark.parametrize("scale", [torch.ones(3), torch.tensor(1, dtype=torch.int32), torch.ones(1, 1)])
def test_a_scale_that_can_t_be_one_is_judged_like_any(write: Write, scale: torch.Tensor) -> None:
    tensors = legacy()
    tensors["fc1.scale_input"] = scale
    assert refused(write(tensors)).offences[0].field == "fc1.input_scale"


def test_orphans_under_old_names_are_unexpected(write: Write) -> None:
    tensors = legacy()
    tensors["norm.scale_input"] = torch.tensor(0.5)
    assert refused(write(tensors)).offences[0].field == "norm.input_scale"
