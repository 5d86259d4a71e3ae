"""What a file's SHA-256 ought to be, as far as anybody beside it has said so.

    SHA256SUMS beside the file        sha256sum's own format, or its --tag; what makes a check of a copy possible
    a Hugging Face download           <folder>/.cache/huggingface/download/<path>.metadata, second line; the folder is
                                      any above the file
    the Hugging Face cache            the file is a link to blobs/<digest>
    the published files               by name and size (`published_files`): a derivative may have both by chance, so
                                      that a difference is worth a warning and no more

Nothing is hashed here. Read by `verify`; `write_sums` is for whoever makes files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from h3runtime.checkpoint import published_files
from h3runtime.checkpoint.hashing import HEX
from h3runtime.checkpoint.header import FILE
from h3runtime.checkpoint.tensor_file import checkpoint_error, reason
from h3runtime.checkpoint.writer import write_whole
from h3runtime.errors import Offence

SUMS_NAME = "SHA256SUMS"
MAX_SUMS_BYTES = 1 << 20
DOWNLOADS = Path(".cache", "huggingface", "download")
"""Below the folder that `hf download --local-dir` was told; huggingface_hub documents the layout."""
LINE = re.compile(r"(?P<escaped>\\?)(?P<digest>[0-9a-fA-F]{64}) [ *](?P<name>.+)")
TAGGED = re.compile(r"(?P<escaped>\\?)SHA256 \((?P<name>.+)\) = (?P<digest>[0-9a-fA-F]{64})")
ESCAPES = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}

PUBLISHED: Mapping[tuple[str, int], str] = {
    (file.name, file.bytes): file.sha256 for file in published_files.PUBLISHED if file.sha256 is not None
}
"""By name and size in bytes."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """digest: SHA-256 in small hex. source: who says so, for people. binding: a difference is an error."""

    digest: str
    source: str
    binding: bool = True


def expectations(path: Path, size: int) -> tuple[Expectation, ...]:
    """Everything that is said of the file at `path`. CheckpointError for a SHA256SUMS that is there and can't be read:
    who put it there wants it read."""
    found = [said for place in _places(path) for said in (*_from_sums(place), *_from_download(place))]
    found += _from_hub_cache(path)
    if (digest := PUBLISHED.get((path.name, size))) is not None:
        found.append(Expectation(digest, "the published file of this name and size", binding=False))
    return tuple(found)


def write_sums(folder: Path, digests: Mapping[str, str]) -> Path:
    """`folder`/SHA256SUMS for files in it, so that a copy of them can be told from a damaged one.

    Lines for other files stay; names may hold anything but a line break.
    """
    path = folder / SUMS_NAME
    kept = {name: digest for name, digest in _listed(path) if name not in digests}
    lines = [f"{digest}  {name}\n" for name, digest in sorted({**kept, **digests}.items())]
    write_whole(path, "".join(lines).encode("utf-8", "surrogateescape"))
    return path


def _places(path: Path) -> list[Path]:
    """Where the file lies, and where it really lies if that is a link."""
    with suppress(OSError, RuntimeError):
        return list(dict.fromkeys((path.absolute(), path.resolve())))
    return [path.absolute()]


def _from_sums(path: Path) -> Iterator[Expectation]:
    for name, digest in _listed(path.parent / SUMS_NAME):
        if name == path.name:
            yield Expectation(digest, SUMS_NAME)


def _listed(sums: Path) -> Iterator[tuple[str, str]]:
    """(name relative to the folder of the list, digest) of every line that is one."""
    for line in _content(sums).replace("\r\n", "\n").split("\n"):
        if (match := LINE.fullmatch(line) or TAGGED.fullmatch(line)) is not None:
            name = re.sub(r"\\[\\nr]", lambda m: ESCAPES[m[0]], match["name"]) if match["escaped"] else match["name"]
            yield str(PurePosixPath(name)), match["digest"].lower()


def _from_download(path: Path) -> Iterator[Expectation]:
    for folder in path.parents:
        metadata = folder / DOWNLOADS / path.relative_to(folder)
        lines = _text(metadata.with_name(f"{path.name}.metadata")).splitlines()
        if len(lines) > 1 and HEX.fullmatch(lines[1].strip()):
            yield Expectation(lines[1].strip(), f"its download from Hugging Face ({DOWNLOADS}/...metadata)")
            return


def _from_hub_cache(path: Path) -> Iterator[Expectation]:
    with suppress(OSError, RuntimeError):
        there = path.resolve()
        if there.parent.name == "blobs" and HEX.fullmatch(there.name):
            yield Expectation(there.name, "the Hugging Face cache, which names it so")


def _content(sums: Path) -> str:
    """Empty if there is no list. File names are bytes, so that it may hold anything."""
    try:
        if sums.stat().st_size > MAX_SUMS_BYTES:
            raise checkpoint_error(sums, [Offence(FILE, f"is longer than {MAX_SUMS_BYTES} bytes")])
        return sums.read_bytes().decode("utf-8", "surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise checkpoint_error(sums, [Offence(FILE, f"can't be read: {reason(error)}")]) from None


def _text(path: Path) -> str:
    """Empty for a file that isn't there or isn't text of a sensible size."""
    with suppress(OSError, ValueError):
        if path.is_file() and path.stat().st_size <= MAX_SUMS_BYTES:
            return path.read_text(encoding="utf-8")
    return ""
