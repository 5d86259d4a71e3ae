"""Packets to pictures, and when a damaged stream is given up.

`clip_pictures` asks. FFmpeg's decoders rather show something than nothing: they paint over what they can't decode and
say so in their log only. `decoded` takes what they give; `decoded_strictly` listens to the log, and refuses.

Damage is told by: an error of the decoder, a picture that it marks as corrupt, its words, or the loss of more than half
of the pictures. HEVC, VP8 and VP9 streams carry nothing by which a decoder could notice a few wrong bytes.

Whatever comes before the first key picture of a file that was cut out of another is left out, errors included.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import av
import av.container
import av.logging

from h3runtime.media.intake.containers import bad_medium

THREADS = 4
"""Pictures that a decoder may work on at once; each of them is in memory."""
DAMAGE = re.compile(r"error while decoding|crc mismatch|invalid as first byte|corrupt|invalid nal unit", re.IGNORECASE)
"""In the words of FFmpeg's H.264, MPEG, FFV1, Matroska and other code, of level `error`."""


def decoded(container: av.container.InputContainer, stream: av.VideoStream) -> Generator[av.VideoFrame, None, None]:
    """All pictures in the order of showing. `av.FFmpegError` where the decoder gives up."""
    stream.thread_type = "AUTO"
    stream.codec_context.thread_count = THREADS
    for _, frames in _by_packet(container, stream):
        yield from frames


def decoded_strictly(
    container: av.container.InputContainer, stream: av.VideoStream, field: str
) -> Generator[av.VideoFrame, None, None]:
    """As `decoded`, and `BadMedia` naming `field` for damage that the decoder hides.

    Only for a process in which nothing else decodes: see `_listening`.
    """
    stream.codec_context.thread_count = 1
    packets = pictures = 0
    with _listening() as words:
        for packet, frames in _by_packet(container, stream):
            if any(frame.is_corrupt for frame in frames) or any(DAMAGE.search(message) for _, _, message in words):
                raise bad_medium(field, "its pictures are damaged")
            words.clear()
            packets += bool(packet.size and not packet.is_discard)
            pictures += len(frames)
            yield from frames
    if 2 * pictures < packets:
        raise bad_medium(field, f"only {pictures} of its {packets} pictures can be decoded")


def _by_packet(
    container: av.container.InputContainer, stream: av.VideoStream
) -> Generator[tuple[av.Packet[Any], list[av.VideoFrame]], None, None]:
    """Packets from the first key picture on, with the pictures that each brought out of the decoder."""
    has_key = False
    for packet in container.demux(stream):
        has_key = has_key or packet.is_keyframe
        try:
            yield packet, packet.decode()
        except av.error.InvalidDataError:
            if has_key:
                raise


@contextmanager
def _listening() -> Iterator[list[tuple[int, str, str]]]:
    """FFmpeg's words, as they come. A decoder with threads of its own can't be closed meanwhile: they would wait for
    Python to hear them, and Python for them."""
    av.logging.set_skip_repeated(False)
    av.logging.set_level(av.logging.ERROR)
    try:
        with av.logging.Capture() as words:
            yield words
    finally:
        av.logging.set_level(None)
