"""The table of public files beside the headers that we can make ourselves."""

from __future__ import annotations

import hashlib

import pytest

from h3runtime.checkpoint.hashing import HEX
from h3runtime.checkpoint.partition import contradicts
from h3runtime.checkpoint.published_files import NVFP4, PUBLISHED, TOKENIZER, TRAILING, published_as
from h3runtime.checkpoint.synthetic.made_files import MadeFile
from h3runtime.checkpoint.synthetic.published import FORMATS
from h3runtime.checkpoint.synthetic.synthesis import Order, plan

KNOWN_HEADER = "b62e4dffa5e111a50c42132e0c200fdebbd499b33ab7f81670cde0b498524354"
"""SHA-256 of the length and the header of the public NVFP4 transformers (utensils/mold #1290)."""


def made(kind: str, *, pruned: bool = True) -> dict[str, MadeFile]:
    order = Order(kind, pruned, full_size=True, partitions=("fl2va", "ref2va"))  # type: ignore[arg-type]
    return {file.name: file for file in plan(order)}


def test_every_file_is_told_once_and_every_digest_with_its_source() -> None:
    every = (*PUBLISHED, *TOKENIZER)
    assert len({(file.name, file.bytes) for file in every}) == len(every)
    for file in every:
        assert file.repository.count("/") == 1 and file.path.endswith(file.name)
        assert file.sha256 is None or (HEX.fullmatch(file.sha256) and file.source)
    assert len({file.sha256 for file in every}) == len(every)


def test_a_name_tells_the_role() -> None:
    for file in PUBLISHED:
        assert published_as(file.role, file.format) is file
        assert file.format in file.name
    for partition, other in (("fl2va", "ref2va"), ("ref2va", "fl2va")):
        from pathlib import Path

        name = Path(published_as(partition, "pruned_nvfp4").name)  # type: ignore[arg-type]
        assert contradicts(name, other) and not contradicts(name, partition)


@pytest.mark.parametrize("pruned", [True, False])
@pytest.mark.parametrize("kind", FORMATS)
def test_sizes_are_those_of_the_layouts_that_we_write(kind: str, pruned: bool) -> None:
    """Data is equal to the byte; what is left are headers with other metadata or in another order: at most 5 kB."""
    ours = made(kind, pruned=pruned)
    told = [file for file in PUBLISHED if file.name in ours]
    assert len(told) >= 3
    for file in told:
        assert abs(ours[file.name].size() - file.bytes) < 5_000, file.name


def test_the_nvfp4_header_is_the_published_one_to_the_byte() -> None:
    ours = made("nvfp4")
    for partition in ("fl2va", "ref2va"):
        file = published_as(partition, "pruned_nvfp4")  # type: ignore[arg-type]
        assert file.repository == NVFP4 and ours[file.name].size() == file.bytes
        assert hashlib.sha256(ours[file.name].header()).hexdigest() == KNOWN_HEADER


def test_known_files_with_trailing_bytes_are_longer_by_these() -> None:
    for file in TRAILING:
        assert file.bytes - file.extra == published_as("fl2va", "pruned_nvfp4").bytes
