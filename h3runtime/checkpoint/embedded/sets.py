"""Sets of the embedded model in a folder: what isn't there in its known bytes is derived, everything else left alone.

    <cache>/embedded/<identity>/       files of every format that was asked for, tokenizer/, SHA256SUMS

A file's bytes are known before it is made (`listing`): one that would get others never appears, one that has lost its
own is made anew. At a start a file is known by its remembered digest (`hashing`), so that no weights are read; a file
that is new, was written to or replaced is hashed. Every file appears whole or not at all; two processes that race write
the same bytes, and whoever renames last changes nothing.

Fed by `engine` with the user's cache, by the command line and the benchmarks with a format.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from h3runtime.checkpoint.checkpoint_set import CheckpointSet
from h3runtime.checkpoint.embedded import deriving
from h3runtime.checkpoint.embedded.formats import DEFAULT, DerivedFile, SetFormat, derived_files
from h3runtime.checkpoint.embedded.listing import REMEDY, Listing, read_listing
from h3runtime.checkpoint.embedded.masters import TOKENIZER, TOKENIZER_FILES, read_known, read_weights
from h3runtime.checkpoint.embedded.packaged import FOLDER, NAME
from h3runtime.checkpoint.expected import SUMS_NAME, write_sums
from h3runtime.checkpoint.hashing import identity_of, remember, sha256_of
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.model_name import MASTERS_KEY
from h3runtime.checkpoint.tensor_file import checkpoint_error
from h3runtime.checkpoint.writer import write_file, write_whole
from h3runtime.errors import Offence

OnFile = Callable[[Path, str], None]
"""Called with every file that was written, and its SHA-256."""


def embedded_set(
    cache_dir: Path, kind: SetFormat = DEFAULT, *, full: bool = False, folder: Path = FOLDER
) -> CheckpointSet:
    """The set below `cache_dir`, completed if it isn't whole. full: hash every byte, whatever is remembered.

    folder: of the masters. CheckpointError for masters that are damaged, for bytes that came out otherwise than listed
    and for a cache that can't be written.
    """
    listing = read_listing(folder)
    target, files = cache_dir / "embedded" / listing.identity, derived_files(kind)
    try:
        _complete(target, files, kind, listing, cache_dir, full=full)
    except OSError as error:
        why = os.strerror(error.errno).lower() if error.errno else "input/output error"
        message = f"the embedded model can't be written to the cache: {why}"
        raise checkpoint_error(target, [Offence(FILE, message, "a writable XDG_CACHE_HOME")]) from None
    fl2va, ref2va, text_encoder, video_vae, audio_vae = (target / file.name for file in files)
    return CheckpointSet(fl2va, ref2va, text_encoder, video_vae, audio_vae, target / TOKENIZER)


def is_embedded(metadata: Mapping[str, str]) -> bool:
    """Whether a file of that metadata was derived from the package's masters, in whatever format."""
    trained = metadata.get(MASTERS_KEY)
    return trained is not None and trained == read_listing(FOLDER).trained


def write_files(
    folder: Path, files: Sequence[DerivedFile], listed: Mapping[str, str], listing: Listing, on_file: OnFile
) -> None:
    """Derive `files` and write them, replacing what is there. listed: the SHA-256 of each; empty: whatever they get.

    A master is read and packed once, however many files it fills.
    """
    for component in dict.fromkeys(file.component for file in files):
        same = [file for file in files if file.component == component]
        weights = read_weights(component, listing)
        packed = deriving.tensors(same[0], weights)
        for file in same:
            told = deriving.metadata(file, weights, listing.trained)
            on_file(folder / file.name, write_file(folder / file.name, packed, told, listed.get(file.name)))


def write_tokenizer(folder: Path, listing: Listing) -> None:
    """The masters' own files, those that aren't there yet."""
    (folder / TOKENIZER).mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        content, path = read_known(listing, f"{TOKENIZER}/{name}"), folder / TOKENIZER / name
        if not path.is_file() or path.read_bytes() != content:
            write_whole(path, content)


def listed_digests(kind: SetFormat, files: Sequence[DerivedFile], listing: Listing) -> dict[str, str]:
    """SHA-256 by name. CheckpointError for a list of another version of the code."""
    listed = listing.sets.get(kind, {})
    if missing := [file.name for file in files if file.name not in listed]:
        raise checkpoint_error(listing.folder / NAME, [Offence(name, "isn't listed", REMEDY) for name in missing])
    return {file.name: listed[file.name] for file in files}


def _complete(
    folder: Path, files: Sequence[DerivedFile], kind: SetFormat, listing: Listing, cache_dir: Path, *, full: bool
) -> None:
    listed = listed_digests(kind, files, listing)
    folder.mkdir(parents=True, exist_ok=True)
    memory = None if full else cache_dir
    missing = [file for file in files if not _has_digest(folder / file.name, listed[file.name], memory)]

    def note(path: Path, digest: str) -> None:
        remember(identity_of(path), digest, cache_dir)

    write_files(folder, missing, listed, listing, note)
    write_tokenizer(folder, listing)
    _list_beside(folder, listed)


def _list_beside(folder: Path, listed: Mapping[str, str]) -> None:
    """Into the list that loading holds the files to; other formats' lines stay."""
    path = folder / SUMS_NAME
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    if not {f"{digest}  {name}" for name, digest in listed.items()} <= set(lines):
        write_sums(folder, listed)


def _has_digest(path: Path, digest: str, memory: Path | None) -> bool:
    return path.is_file() and sha256_of(path, memory) == digest
