"""NVFP4 against the same weights decoded to BF16 by hand, from files, through the whole sampling run."""

from pathlib import Path

import torch

from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.dequant import DequantLinear, dense
from h3runtime.checkpoint import rules
from h3runtime.checkpoint.embedded import embedded_set
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.load import load_module
from h3runtime.checkpoint.writer import write_file
from h3runtime.core import Latents, SamplerSettings, TextFeatures
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.denoise import denoise
from h3runtime.denoiser.dit import Dit
from h3runtime.packing.layout import pack
from h3runtime.settings import default_cache_dir

CPU = torch.device("cpu")
BOUND = 1e-6
"""Stated relative L2. The linear decodes in FP32 and rounds once, as the BF16 file was made: measured 0."""


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
        plain = {name: file.read(name) for name in file.shapes if f"{name.removesuffix('.weight')}" not in file.layers}
        quantised = {f"{name}.weight": dense(linears[f"{name}.weight"], torch.bfloat16) for name in file.layers}
    assert len(quantised) == 4 * model.config.layers
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


def test_nvfp4_is_its_own_weights(tmp_path: Path) -> None:
    path = embedded_set(default_cache_dir()).transformer
    decoded_to_bf16(path, tmp_path / "bf16.safetensors")
    packed, plain = load(path), load(tmp_path / "bf16.safetensors")
    reference = sample(plain, seed=3)
    error = distance(sample(packed, seed=3), reference)
    assert error <= BOUND
    assert distance(sample(packed, seed=4), reference) >= 10 * max(error, BOUND)
