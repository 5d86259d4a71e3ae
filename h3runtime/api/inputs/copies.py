"""Media of a request: where they are, and a copy of our own of each, with its hash. What they hold is `opening`'s part.

The engine reads the copies, so nothing that a client, the media root or another job does later can change a job that
waits. Two fields that name the same upload, path or URL share a copy. Files get names that we choose.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from h3runtime.api.inputs.fetching import Fetcher
from h3runtime.api.request import MediaBody
from h3runtime.core import MediaFile
from h3runtime.errors import H3Error, Offence, invalid
from h3runtime.media.data_url import parse_data_url

BLOCK = 1 << 20


def _no_fetcher() -> Fetcher:
    return Fetcher((), 0)


@dataclass(frozen=True, slots=True)
class MediaSource:
    """What a request may draw on. uploads: by part name. root: of paths, None where there is none. max_bytes: of each
    medium.

    is_own: the request comes from this machine's own command line, so paths from `root` on may lead anywhere, and are
    read where they lie.
    """

    uploads: Mapping[str, Path]
    root: Path | None
    max_bytes: int
    fetcher: Fetcher = field(default_factory=_no_fetcher)
    is_own: bool = False


class Intake:
    """Copies the media of one request into `folder`, which is made when the first one comes."""

    def __init__(self, source: MediaSource, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._taken: dict[tuple[str, str], MediaFile] = {}

    def take(self, name: str, medium: MediaBody) -> MediaFile:
        """Our copy of what the field `name` holds. `InvalidRequest` or `BadMedia` naming the field and the place."""
        if medium.data is not None:
            data = parse_data_url(medium.data, f"{name}.data", self._source.max_bytes).data
            copy = self._copy_of(name)
            copy.write_bytes(data)
            return MediaFile(copy, name, hashlib.sha256(data).hexdigest())
        if medium.url is not None:
            return self._once("url", medium.url, name) or self._fetch(name, medium.url)
        if medium.path is not None and self._source.is_own:
            return self._in_place(name, medium.path)
        original = str(_file_of(name, medium, self._source))
        return self._once("file", original, name) or self._copy(name, original)

    def keep(self, name: str, original: Path) -> MediaFile:
        """A file of ours that others may remove meanwhile: the same file under a second name, where that can be."""
        copy = self._copy_of(name)
        try:
            os.link(original, copy)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(original, copy)
        return _hashed(copy, name)

    def _in_place(self, name: str, text: str) -> MediaFile:
        path = (self._source.root or Path.cwd()) / text
        if "\0" in text or not path.is_file():
            raise _refused(f"{name}.path", f"there is no file {ascii(text)[1:-1]}", "a file")
        return _hashed(path, name)

    def _once(self, place: str, key: str, name: str) -> MediaFile | None:
        there = self._taken.get((place, key))
        return None if there is None else replace(there, field=name)

    def _fetch(self, name: str, url: str) -> MediaFile:
        copy = self._copy_of(name)
        taken = MediaFile(copy, name, self._source.fetcher.fetch(url, f"{name}.url", copy))
        self._taken["url", url] = taken
        return taken

    def _copy(self, name: str, original: str) -> MediaFile:
        copy = self._copy_of(name)
        digest = hashlib.sha256()
        with Path(original).open("rb") as source, copy.open("wb") as target:
            while block := source.read(BLOCK):
                digest.update(block)
                target.write(block)
        taken = self._taken["file", original] = MediaFile(copy, name, digest.hexdigest())
        return taken

    def _copy_of(self, name: str) -> Path:
        """`keyframes[1].image` -> `keyframes-1-image`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / re.sub(r"[^a-z0-9_]+", "-", name)


def _hashed(path: Path, name: str) -> MediaFile:
    with path.open("rb") as file:
        return MediaFile(path, name, hashlib.file_digest(file, "sha256").hexdigest())


def _file_of(name: str, medium: MediaBody, source: MediaSource) -> Path:
    if medium.upload is not None:
        if medium.upload not in source.uploads:
            parts = ", ".join(ascii(part)[1:-1] for part in sorted(source.uploads)) or "none in this request"
            raise _refused(f"{name}.upload", f"there is no part {ascii(medium.upload)[:60]}", f"file parts: {parts}")
        return source.uploads[medium.upload]
    assert medium.path is not None
    return _path_below(source, medium.path, f"{name}.path")


def _path_below(source: MediaSource, name: str, at: str) -> Path:
    """A regular file below the media root, wherever links lead."""
    if source.root is None:
        raise _refused(at, "this server has no media root, so it takes no paths", "upload or data")
    legal = "a regular file below the media root, by its relative path"
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise _refused(at, f"{ascii(name)[:60]} is not a path below the media root", legal)
    try:
        path = (source.root / name).resolve(strict=True)
        is_inside = path.is_relative_to(source.root.resolve())
        facts = path.stat()
    except (OSError, RuntimeError):
        raise _refused(at, f"there is no file {ascii(name)[:60]}", legal) from None
    if not is_inside or not stat.S_ISREG(facts.st_mode):
        raise _refused(at, f"there is no file {ascii(name)[:60]}", legal)
    if facts.st_size > source.max_bytes:
        raise _refused(at, f"{ascii(name)[:60]} is larger than {source.max_bytes} bytes", legal)
    return path


def _refused(at: str, why: str, legal: str) -> H3Error:
    return invalid([Offence(at, why, legal)])
