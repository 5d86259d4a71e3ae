"""Masters from a training's folder: fewer bytes, the same text encoder to the bit, the same transformer to 11 bits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from h3runtime.checkpoint.embedded.__main__ import main
from h3runtime.checkpoint.embedded.adopting import NO_WEIGHTS, adopt
from h3runtime.checkpoint.embedded.listing import read_listing
from h3runtime.checkpoint.embedded.masters import TABLE, TOKEN_IDS, UPSCALER, parsed, read_weights
from h3runtime.checkpoint.embedded.packaged import NAME
from h3runtime.errors import CheckpointError

EMPTY = slice(5, 400)
HEAD = "final_layer.video_out.weight"


@pytest.fixture(scope="module")
def run(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a training leaves it: rows that say nothing, heads in F32."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("run") / "out")
    path = folder / "text_encoder.safetensors"
    weights = load_file(path)
    weights[TABLE][EMPTY] = 0
    save_file(weights, path)
    shutil.rmtree(folder / "tokenizer")
    return folder


def test_less_is_kept_and_nothing_is_lost(run: Path, made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "masters"
    shutil.copytree(made / "tokenizer", folder / "tokenizer")
    save_file({"conv_in.weight": torch.ones(2)}, run / UPSCALER)
    assert main([str(folder), "--from", str(run)]) == 0
    (run / UPSCALER).unlink()
    given = parsed(run / "text_encoder.safetensors")
    assert len(given[TABLE]) - len(parsed(folder / "text_encoder.safetensors")[TABLE]) == EMPTY.stop - EMPTY.start
    listing = read_listing(folder)
    assert UPSCALER in listing.masters
    full = read_weights("text_encoder", listing)
    assert torch.equal(full[TABLE][given[TOKEN_IDS].long()], given[TABLE]) and full[TABLE][5:400].any() == 0
    assert all(torch.equal(full[name], given[name]) for name in given.keys() - {TABLE, TOKEN_IDS})
    before, after = parsed(run / "transformer.safetensors"), parsed(folder / "transformer.safetensors")
    assert before.keys() == after.keys() and (before[HEAD].dtype, after[HEAD].dtype) == (torch.float32, torch.float16)
    for name, weight in before.items():
        if weight.dtype is torch.float32 and name not in NO_WEIGHTS:
            torch.testing.assert_close(after[name].float(), weight, rtol=2**-11, atol=2**-25)
        else:
            assert torch.equal(after[name], weight) and after[name].dtype is weight.dtype
    for name in ("video_vae.safetensors", "audio_vae.safetensors"):
        assert (folder / name).read_bytes() == (run / name).read_bytes()


def test_a_run_that_lacks_something_changes_nothing(run: Path, made: Path, tmp_path: Path) -> None:
    poor, folder = shutil.copytree(run, tmp_path / "poor"), shutil.copytree(made, tmp_path / "masters")
    (poor / "audio_vae.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"audio_vae\.safetensors: can't be read"):
        adopt(poor, folder)
    weights = load_file(run / "transformer.safetensors")
    weights[HEAD] = weights[HEAD] + 1e6
    save_file(weights, poor / "transformer.safetensors")
    with pytest.raises(CheckpointError, match=f"{HEAD} doesn't fit into F16"):
        adopt(poor, folder)
    assert all((folder / name).read_bytes() == (made / name).read_bytes() for name in (NAME, "transformer.safetensors"))
