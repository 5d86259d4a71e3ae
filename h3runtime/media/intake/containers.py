"""Opening a clip or a sound that somebody sent: only files of kinds that are meant, and why one is refused.

Does: refuse playlists, pictures, text and everything else that FFmpeg would open but nobody means by a clip or a sound,
before a demuxer sees it; choose the streams. Does not: decode. `packet_measure`, `full_measure`, `clip_pictures` and
`sound_pieces` open files here. (`probe` opens our own.)

A demuxer that opens other files, or addresses, is never offered one: concat, hls, dash, image2 and the like aren't on
the list, and no protocol but `file` can be reached from those that are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import av.container
from av.stream import Disposition

from h3runtime.errors import BadMedia, bad_media

LEGAL = (
    "a whole clip or sound: MP4, MOV, Matroska, WebM, AVI, MPEG, WMV, FLV, MXF, animated WebP, GIF, PNG or AVIF, "
    "WAV, FLAC, MP3, AAC, Ogg, Opus, AIFF, CAF, AU, AMR or AC-3"
)
FORMATS = (
    *("mov", "matroska", "webm", "avi", "flv", "mpegts", "mpeg", "asf", "mxf"),
    *("ogg", "mp3", "aac", "flac", "wav", "w64", "aiff", "caf", "au", "amr", "ac3", "eac3"),
)
"""Names of FFmpeg's demuxers. None of them opens a second file as used here (`enable_drefs` is off unless set)."""
TAGS: Mapping[str, Any] = {"metadata_errors": "ignore"} if int(av.__version__.split(".")[0]) < 19 else {}
"""Titles in no known encoding are no fault of a clip. PyAV before 19 refuses them unless told not to, later ones never
do."""
HEAD_BYTES = 4096
UTF16_MARKS = b"\xff\xfe<", b"\xfe\xff\x00"
"""A web page or subtitles as Windows writes them. The mark alone may begin a sound."""
TEXT_CONTROLS = frozenset(b"\t\n\r\f\x1b")


@contextmanager
def opened_medium(path: Path, field: str) -> Iterator[av.container.InputContainer]:
    """An open container. `BadMedia` naming `field` for a file of another kind and for every fault of the file that
    shows itself while the context lasts."""
    _refuse_text(path, field)
    try:
        with _opened(path, field) as container:
            yield container
    except MemoryError as error:
        raise bad_medium(field, "it takes more memory than one medium may") from error
    except (av.FFmpegError, OSError, ValueError, ArithmeticError) as error:
        raise bad_medium(field, "it is damaged or cut short") from error


def picture_stream(container: av.container.InputContainer) -> av.VideoStream | None:
    """The first stream of pictures that can be decoded and is more than a cover."""
    for stream in container.streams.video:
        is_cover = bool(stream.disposition & (Disposition.attached_pic | Disposition.timed_thumbnails))
        if not is_cover and stream.codec_context is not None and stream.width and stream.height:
            return stream
    return None


def sound_stream(container: av.container.InputContainer) -> av.AudioStream | None:
    """The first stream of sound that can be decoded."""
    return next((s for s in container.streams.audio if s.codec_context is not None and s.rate and s.channels), None)


def bad_medium(field: str, why: str) -> BadMedia:
    return bad_media(field, why, LEGAL)


def _opened(path: Path, field: str) -> av.container.InputContainer:
    options = {"protocol_whitelist": "file", "format_whitelist": ",".join(FORMATS)}
    try:
        container: av.container.InputContainer = av.open(str(path.absolute()), options=options, **TAGS)
        return container
    except (av.FFmpegError, OSError, ValueError) as error:
        if isinstance(error, MemoryError):
            raise
        raise bad_medium(field, "it is not a whole clip or sound of a known kind") from error


def _refuse_text(path: Path, field: str) -> None:
    """Web pages, playlists and subtitles by their first bytes, so that the answer can say so."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise bad_medium(field, "it can't be opened") from error
    if not head:
        raise bad_medium(field, "it is empty")
    if head.startswith(UTF16_MARKS) or _is_text(head):
        raise bad_medium(field, "it is text (a web page, a playlist or subtitles), not a clip or a sound")


def _is_text(head: bytes) -> bool:
    return all(byte >= 32 or byte in TEXT_CONTROLS for byte in head)
