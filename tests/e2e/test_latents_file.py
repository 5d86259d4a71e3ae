"""Saved latents as files: who may read them, and what a disk that refuses them looks like."""

import os
import resource
from pathlib import Path

import pytest
import torch

from h3runtime.core import Latents
from h3runtime.engine.latents_file import read_latents, write_latents, write_tensors
from h3runtime.errors import CheckpointError

LATENTS = Latents(torch.randn(1, 24, 2, 4, 4), torch.randn(1, 32, 2, 8))


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_they_are_as_readable_as_a_clip(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        (tmp_path / "clip").write_bytes(b"")
        write_latents(tmp_path / "l", LATENTS, {"prompt": "x"})
    finally:
        os.umask(before)
    assert (tmp_path / "l").stat().st_mode == (tmp_path / "clip").stat().st_mode
    back, request = read_latents(tmp_path / "l")
    assert torch.equal(back.video, LATENTS.video) and request == {"prompt": "x"}


@pytest.mark.parametrize("request_text", ["{", "[]", "[" * 100_000])
def test_a_request_that_is_no_object_is_named(tmp_path: Path, request_text: str) -> None:
    write_tensors(tmp_path / "l", {"video": LATENTS.video, "audio": LATENTS.audio}, {"request": request_text})
    with pytest.raises(CheckpointError, match="no JSON object") as caught:
        read_latents(tmp_path / "l")
    assert [offence.field for offence in caught.value.offences] == ["request"]


def test_a_disk_that_takes_no_more_is_an_os_error(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: both come out of the library as an error of its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, hard))
    try:
        with pytest.raises(OSError, match="large"):
            write_tensors(tmp_path / "l", {"x": torch.zeros(1 << 20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
