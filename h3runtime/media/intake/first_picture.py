"""When the first picture of a file is shown, as its packets tell it: the zero of its clock, for pictures and sound.

`clip_pictures`, `sound_pieces` and `packet_measure` ask; all must agree, or sound and picture would drift apart.

Not simply the smallest time of all packets, for two reasons. A file that was cut out of another may begin with pictures
that need one from before the cut: they come after the first key picture, are to be shown before it, and are never
decoded. And a file whose edit list begins in the middle of a group of pictures holds packets that are decoded and not
shown; those say so themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import av

from h3runtime.media.intake.containers import opened_medium, picture_stream

REORDERED = 64
"""Packets among which the first picture is, where it need not be a key picture: decoders reorder 16 pictures at most
(H.264, A.3.1)."""
HIDDEN = 4096
"""Most packets before it that are decoded and not shown."""


def first_picture_time(path: Path, field: str) -> Fraction | None:
    """Seconds on the file's own clock; None for a file without pictures, or one that tells no times."""
    with opened_medium(path, field) as container:
        stream = picture_stream(container)
        return None if stream is None else first_shown(container.demux(stream))


def first_shown(packets: Iterable[av.Packet[Any]]) -> Fraction | None:
    """The first picture's time, from the packets of one stream in the order of decoding."""
    times: list[Fraction] = []
    follows_hidden = False
    for packet in islice((packet for packet in packets if packet.size), HIDDEN):
        time = time_of(packet)
        if packet.is_discard:
            follows_hidden = True
        elif time is not None:
            if packet.is_keyframe and not follows_hidden:
                return time
            times.append(time)
        if len(times) == REORDERED:
            break
    return min(times, default=None)


def time_of(packet: av.Packet[Any]) -> Fraction | None:
    """When it is shown, in seconds on the file's clock."""
    ticks = shown_ticks(packet.pts, packet.dts, packet.stream.container.format.name)
    return None if ticks is None or packet.time_base is None else ticks * packet.time_base


def shown_ticks(pts: int | None, dts: int | None, container: str) -> int | None:
    """The time of showing of a packet or a picture, or that of decoding where there is no other. AVI knows the latter
    only; the former is FFmpeg's guess there, and wrong where pictures are reordered."""
    return dts if pts is None or container == "avi" else pts
