"""Every storage of the transformer against the same weights decoded to BF16 by hand, through the whole sampling run."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.dequant import DequantLinear, dense
from h3runtime.checkpoint import rules
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.load import load_module
from h3runtime.checkpoint.synthetic import published
from h3runtime.checkpoint.synthetic.storage import Scheme, Storage
from h3runtime.checkpoint.synthetic.synthesis import Order, plan
from h3runtime.checkpoint.writer import write_file
from h3runtime.core import Latents, SamplerSettings, TextFeatures
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.dit import Dit
from h3runtime.packing.layout import pack

CPU = torch.device("cpu")
BOUND = 1e-6
"""Stated relative L2. The linear decodes in FP32 and rounds once, as the BF16 file was made: measured 0."""


def mixed(*schemes: Scheme) -> Storage:
    """The published layout with these, one for each of the four linears of a block."""
    leaves = (published.QKV, published.OUT, published.FC1, published.FC2)
    layers = [part for leaf, scheme in zip(leaves, schemes, strict=True) for part in published.in_blocks(scheme, leaf)]
    return replace(published.TRANSFORMER_NVFP4, layers=tuple(layers))


MXFP8, FP8, FP8_WIDE = Scheme("mxfp8"), Scheme("float8_e4m3fn"), Scheme("float8_e5m2")
NVFP4, INT8, INT8_64 = Scheme("nvfp4"), Scheme("int8_tensorwise"), Scheme("int8_tensorwise", convrot=64)
STORAGES = {
    "nvfp4": (published.TRANSFORMER_NVFP4, True),
    "nvfp4, full": (published.TRANSFORMER_NVFP4_FULL, False),
    "int8_convrot": (published.TRANSFORMER_INT8, True),
    "int8_convrot, full": (published.TRANSFORMER_INT8_FULL, False),
    "fp8_scaled": (published.TRANSFORMER_FP8, True),
    "fp8_scaled, full": (published.TRANSFORMER_FP8_FULL, False),
    "mxfp8": (mixed(MXFP8, MXFP8, MXFP8, MXFP8), True),
    "hybrid": (mixed(INT8_64, FP8, NVFP4, NVFP4), True),
    "hybrid, told by metadata": (replace(mixed(INT8, MXFP8, FP8_WIDE, NVFP4), told_by="metadata"), True),
}


@pytest.fixture(params=STORAGES)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    storage, pruned = STORAGES[request.param]
    transformer = plan(Order("nvfp4", pruned=pruned))[0]
    replace(transformer, storage=storage).write(tmp_path)
    return tmp_path / transformer.name


def load(path: Path) -> Dit:
    with CheckpointFile(path) as file:
        with torch.device("meta"):
            model = Dit(DitConfig.from_shapes(file.shapes), dtype=torch.bfloat16)
        load_module(model, file, linear=DequantLinear(), device=CPU, rule=rules.TRANSFORMER)
    return model


def decoded_to_bf16(path: Path, target: Path) -> None:
    """The same transformer as a plain BF16 file."""
    model = load(path)
    linears = {f"{n}.weight": m.resident for n, m in model.named_modules() if isinstance(m, BackendLinear)}
    with CheckpointFile(path) as file:
        plain = {name: file.read(name) for name in file.shapes if name.removesuffix(".weight") not in file.layers}
        quantised = {f"{name}.weight": dense(linears[f"{name}.weight"], torch.bfloat16) for name in file.layers}
    assert len(quantised) >= 4 * model.config.layers
    write_file(target, plain | quantised)


def sample(model: Dit, seed: int) -> Latents:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(1, 9, model.config.text_dim, generator=generator)
    tags = torch.ones(9, dtype=torch.int64).numpy()
    layout = pack(7, 8, 12, 37, tags)
    settings = SamplerSettings(steps=6, seed=seed)
    return denoise(model, layout, TextFeatures(hidden, tags), (), (), settings, device=CPU, dtype=torch.bfloat16)


def distance(a: Latents, b: Latents) -> float:
    pairs = ((a.video, b.video), (a.audio, b.audio))
    return max(float((x - y).norm() / y.norm()) for x, y in pairs)


def test_a_quantised_transformer_is_its_own_weights(made: Path, tmp_path: Path) -> None:
    decoded_to_bf16(made, tmp_path / "bf16.safetensors")
    packed, plain = load(made), load(tmp_path / "bf16.safetensors")
    reference = sample(plain, seed=3)
    error = distance(sample(packed, seed=3), reference)
    assert error <= BOUND
    assert distance(sample(packed, seed=4), reference) >= 10 * max(error, BOUND)
