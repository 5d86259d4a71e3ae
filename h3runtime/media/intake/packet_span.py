"""From when to when a stream's packets reach, and how many pictures they are. One pass, nothing kept but the ends.

`packet_measure` feeds it the packets of a file in the order of decoding.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import av

from h3runtime.media.intake.clip_clock import ClipClock, Stamp
from h3runtime.media.intake.first_picture import time_of

SKIP_BYTES = 10
"""FFmpeg's side data `skip_samples`: samples to leave out at the start and at the end, two reasons."""


@dataclass(slots=True)
class PacketSpan:
    """rate: of a sound, in Hz. shown: packets that are shown. begin: the earliest time, the encoder's lead-in left out.
    last: the latest two packets, each its time and its duration."""

    rate: int | None = None
    shown: int = 0
    begin: Fraction | None = None
    last: list[tuple[Fraction, Fraction]] = field(default_factory=list)

    def take(self, packet: av.Packet[Any]) -> None:
        if packet.is_discard:
            return
        self.shown += 1
        time, duration = time_of(packet), (packet.duration or 0) * (packet.time_base or Fraction(0))
        if time is None:
            time = self.end
        begin = time + self._lead_in(packet)
        self.begin = begin if self.begin is None else min(self.begin, begin)
        self.last = sorted([*self.last, (time, duration)])[-2:]

    @property
    def end(self) -> Fraction:
        return max((time + duration for time, duration in self.last), default=Fraction(0))

    def clock(self, zero: Fraction | None) -> ClipClock:
        """The clock as it stands after the last picture; `zero` is the first one's time."""
        clock = ClipClock()
        clock.show(Stamp(self.begin if zero is None else zero))
        for time, duration in self.last:
            clock.show(Stamp(time, duration))
        return clock

    def _lead_in(self, packet: av.Packet[Any]) -> Fraction:
        if not self.rate or not packet.has_sidedata("skip_samples"):
            return Fraction(0)
        raw = bytes(packet.get_sidedata("skip_samples"))
        return Fraction(struct.unpack("<I", raw[:4])[0], self.rate) if len(raw) == SKIP_BYTES else Fraction(0)
