"""The upscaler's file: judged with everything that is wrong with it, read when it is first asked for, kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from h3runtime.checkpoint.embedded.masters import UPSCALER
from h3runtime.checkpoint.embedded.packaged import FOLDER
from h3runtime.checkpoint.embedded.sets import embedded_set
from h3runtime.core import RefinePass
from h3runtime.engine import create
from h3runtime.engine.refine_upscaler import UpscalerShelf, upscaler_path
from h3runtime.errors import CheckpointChanged, CheckpointError
from h3runtime.settings import Settings, default_cache_dir
from tests.engine.refining import upscaler_file, weights
from tests.tiny_set import tiny_paths

CPU = torch.device("cpu")
ANY = RefinePass(64, 64, 1.5, 1, 0.5)


def judged(path: Path, channels: int = 24) -> UpscalerShelf:
    shelf = UpscalerShelf(Settings(upscaler_path=path), CPU)
    shelf.judge(tiny_paths()["video_vae_path"], channels)
    return shelf


@pytest.mark.parametrize("prefix", ["", "upscaler.", "model.", "model.upscaler."])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_under_any_prefix_are_kept_in_fp32_from_the_first_use_on(tmp_path, prefix, dtype) -> None:
    named = {f"{prefix}{name}": tensor for name, tensor in weights().items()}
    shelf = judged(upscaler_file(tmp_path / "up.safetensors", named, dtype))
    assert shelf.facts is not None and shelf.bytes == 0 and shelf.bytes_with(None) == 0
    model = shelf.take(ANY)
    assert model is shelf.take(ANY)
    stored = 4 * sum(tensor.numel() for tensor in weights().values())
    assert shelf.bytes == shelf.bytes_with(None) == shelf.bytes_with(ANY) == shelf.facts.bytes == stored
    assert torch.equal(model.conv_in.weight, weights()["conv_in.weight"].to(dtype).float())
    assert (shelf.facts.embedded, shelf.facts.format) == (False, {torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype])


def test_everything_that_is_wrong_is_told_at_once(tmp_path) -> None:
    spoilt = weights()
    del spoilt["norm_out.bias"]
    spoilt["conv_out.bias"] = torch.zeros(7)
    spoilt["stranger"] = torch.zeros(1)
    with pytest.raises(CheckpointError) as caught:
        judged(upscaler_file(tmp_path / "up.safetensors", spoilt), channels=16)
    told = {offence.field for offence in caught.value.offences}
    assert told == {"norm_out.bias", "conv_out.bias", "stranger", "conv_in.weight"}
    assert "up.safetensors" in caught.value.message


def test_another_component_is_refused_by_name(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="conv_in"):
        judged(tiny_paths()["audio_vae_path"])
    (tmp_path / "torn.safetensors").write_bytes(b"\x01")
    with pytest.raises(CheckpointError, match="torn"):
        judged(tmp_path / "torn.safetensors")


def test_a_file_that_changes_after_the_start_is_not_used(tmp_path) -> None:
    path = upscaler_file(tmp_path / "up.safetensors")
    shelf = judged(path)
    upscaler_file(path, weights(seed=1))
    with pytest.raises(CheckpointChanged):
        shelf.take(ANY)
    with pytest.raises(CheckpointChanged, match="was taken with"):
        judged(path).take(RefinePass(64, 64, 1.5, 1, 0.5, upscaler="00" * 32))


def test_an_upscaler_belongs_to_its_video_vae(tmp_path) -> None:
    """The embedded model's own comes with the embedded VAE, in whatever set, and with no other; to a server by name."""
    own = embedded_set(default_cache_dir()).video_vae
    assert upscaler_path(Settings(), own) == FOLDER / UPSCALER
    assert upscaler_path(Settings(), tiny_paths()["video_vae_path"]) is None
    assert upscaler_path(Settings(upscaler_path=tmp_path / "x"), own) == tmp_path / "x"
    assert upscaler_path(Settings(), own, masters=tmp_path) is None
    assert upscaler_path(Settings(), own, own=False) is None
    assert upscaler_path(Settings(upscaler_path="embedded"), own, own=False) == FOLDER / UPSCALER
    with pytest.raises(CheckpointError, match="H3_UPSCALER_PATH"):
        upscaler_path(Settings(upscaler_path="embedded"), tiny_paths()["video_vae_path"], own=False)
    shelf = UpscalerShelf(Settings(), CPU)
    shelf.judge(own, 24)
    assert shelf.facts is not None and shelf.facts.embedded and shelf.take(ANY).config.channels == 32
    without = UpscalerShelf(Settings(), CPU)
    without.judge(tiny_paths()["video_vae_path"], 24)
    assert without.facts is None
    with pytest.raises(CheckpointChanged):
        without.take(ANY)


@pytest.mark.parametrize(("named", "has_one"), [(None, False), ("embedded", True)])
def test_a_server_has_the_upscaler_that_its_operator_named(tmp_path, named: str | None, has_one: bool) -> None:
    engine = create(Settings(device="cpu", data_dir=tmp_path, upscaler_path=named), threads=1)
    engine.upscaler.judge(embedded_set(default_cache_dir()).video_vae, 24)
    assert (engine.upscaler.facts is not None) == has_one
