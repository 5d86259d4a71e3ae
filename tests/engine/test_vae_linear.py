"""The video decoder's linears in another backend than the file's own form, and nothing else of the VAE."""

from __future__ import annotations

import pytest
import torch

from benchmarks.vae import psnr
from h3runtime.backends.linear.base import BackendLinear
from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.backends.linear.int8 import Int8Linear
from h3runtime.core import Task
from h3runtime.engine.load import Loader
from h3runtime.engine.paths import VAE_PATHS, model_paths
from h3runtime.errors import InvalidRequest
from h3runtime.settings import Settings
from h3runtime.vae.video_pixels import to_bytes
from h3runtime.vae.video_vae import VideoVae
from tests.tiny_set import tiny_paths

CPU = torch.device("cpu")


def loaded(vae_linear: str) -> VideoVae:
    settings = Settings(device="cpu", vae_linear=vae_linear, **tiny_paths())
    return Loader(settings, model_paths(settings, (), VAE_PATHS), CPU, DequantLinear(), lambda _: None).vaes().video


@torch.no_grad()
def test_8_bits_are_the_blocks_alone_and_near_the_definition() -> None:
    exact, source = loaded("auto"), torch.Generator().manual_seed(0)
    latents = torch.randn(1, exact.config.latent_channels, 2, 6, 8, generator=source)

    def decoded(vae: VideoVae) -> torch.Tensor:
        return torch.cat([to_bytes(part) for part in vae.decode_chunks(latents)])

    wanted = decoded(exact)
    for name in ("int8", "fp8"):
        vae = loaded(name)
        linears = {n: part for n, part in vae.named_modules() if isinstance(part, BackendLinear)}
        changed = {n for n, part in linears.items() if part.backend.name == name}
        assert changed == {n for n in linears if ".transformer_blocks." in n}
        found = psnr(decoded(vae), wanted)
        assert 25 < found < 90, f"{name}: {found:.1f} dB"


def test_a_backend_that_no_vae_has_is_refused_before_a_file_is_opened() -> None:
    with pytest.raises(InvalidRequest, match="vae_linear"):
        loaded("nvfp4")


def test_a_job_is_told_that_its_pictures_are_not_those_of_fp16(engine, monkeypatch) -> None:
    exact = engine._warnings(Task.T2VA)
    monkeypatch.setattr(engine, "_vae_linear", (Int8Linear(), "asked for by name"))
    (found,) = set(engine._warnings(Task.T2VA)) - set(exact)
    assert "int8" in found
