"""Media of a request: where they are, whether they are what they should be, and a copy of our own of each.

Everything is judged here, before a job exists: a bad picture is a refused request, never a failed job. The engine reads
the copies, so nothing that a client or the media root does later can change a job that waits.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from h3runtime.api.request import MediaBody
from h3runtime.core import MediaFile
from h3runtime.errors import H3Error, Offence, invalid
from h3runtime.media.data_url import parse_data_url
from h3runtime.media.pictures import measure_picture
from h3runtime.packing.geometry import Size


@dataclass(frozen=True, slots=True)
class OpenedPicture:
    """file: our copy. size: upright, in pixels."""

    file: MediaFile
    size: Size


@dataclass(frozen=True, slots=True)
class MediaSource:
    """What a request may draw on. uploads: by part name. root: of paths, None where there is none. Bytes."""

    uploads: Mapping[str, Path]
    root: Path | None
    max_bytes: int


def open_picture(field: str, medium: MediaBody, source: MediaSource, folder: Path) -> OpenedPicture:
    """Copy a picture into `folder` and measure it. `InvalidRequest` or `BadMedia` naming the field."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / field
    if medium.data is not None:
        copy.write_bytes(parse_data_url(medium.data, f"{field}.data", source.max_bytes).data)
    else:
        shutil.copyfile(_file_of(field, medium, source), copy)
    facts = measure_picture(copy, field)
    return OpenedPicture(MediaFile(copy, field), Size(facts.width, facts.height))


def _file_of(field: str, medium: MediaBody, source: MediaSource) -> Path:
    if medium.upload is not None:
        if medium.upload not in source.uploads:
            parts = ", ".join(sorted(source.uploads)) or "none in this request"
            raise _refused(f"{field}.upload", f"there is no part {ascii(medium.upload)[:60]}", f"file parts: {parts}")
        return source.uploads[medium.upload]
    assert medium.path is not None
    return _path_below(source, medium.path, f"{field}.path")


def _path_below(source: MediaSource, name: str, field: str) -> Path:
    """A regular file below the media root, wherever links lead."""
    if source.root is None:
        raise _refused(field, "this server has no media root, so it takes no paths", "upload or data")
    legal = "a regular file below the media root, by its relative path"
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise _refused(field, f"{ascii(name)[:60]} is not a path below the media root", legal)
    try:
        path = (source.root / name).resolve(strict=True)
        is_inside = path.is_relative_to(source.root.resolve())
        facts = path.stat()
    except (OSError, RuntimeError):
        raise _refused(field, f"there is no file {ascii(name)[:60]}", legal) from None
    if not is_inside or not stat.S_ISREG(facts.st_mode):
        raise _refused(field, f"there is no file {ascii(name)[:60]}", legal)
    if facts.st_size > source.max_bytes:
        raise _refused(field, f"{ascii(name)[:60]} is larger than {source.max_bytes} bytes", legal)
    return path


def _refused(field: str, why: str, legal: str) -> H3Error:
    return invalid([Offence(field, why, legal)])
