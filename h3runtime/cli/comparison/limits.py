"""Thresholds for scripts: which of them a comparison breaks, and which it can't have.

`--min-psnr` is about all frames together, `--min-ssim` about their mean, `--max-rel-l2` about every stream (then the
whole holds as well), `--max-log-mel` about the sound.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields

from h3runtime.cli.comparison.found import Found, Kind
from h3runtime.errors import Offence, invalid


@dataclass(frozen=True, slots=True)
class Limits:
    """dB, -1..1, a ratio, dB; None where nothing is asked for."""

    min_psnr: float | None = None
    min_ssim: float | None = None
    max_rel_l2: float | None = None
    max_log_mel: float | None = None

    @property
    def given(self) -> dict[str, float]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


RANGES = {"min_psnr": (0, math.inf), "min_ssim": (-1, 1), "max_rel_l2": (0, math.inf), "max_log_mel": (0, math.inf)}
STREAM_OF = {"min_psnr": "video", "min_ssim": "video", "max_log_mel": "audio"}
TENSORS_HAVE = frozenset({"max_rel_l2"})
FRAMES_HAVE = frozenset({"min_psnr", "min_ssim", "max_rel_l2"})


def require_legal(limits: Limits, kind: Kind) -> None:
    """InvalidRequest for a value out of range, or a limit on what inputs of this kind don't have."""
    has = {"latents": TENSORS_HAVE, "steps": TENSORS_HAVE, "frames": FRAMES_HAVE}.get(kind, frozenset(RANGES))
    offences = []
    for name, value in limits.given.items():
        low, high = RANGES[name]
        if not (math.isfinite(value) and low <= value <= high):
            legal = f"a number from {low}" + (f" to {high}" if high < math.inf else "")
            offences.append(Offence(name, f"{value} is out of range", legal))
        elif name not in has:
            offences.append(Offence(name, f"{kind} have no such figure", ", ".join(sorted(has))))
    if offences:
        raise invalid(offences)


def require_streams(limits: Limits, streams: Collection[str]) -> None:
    """InvalidRequest for a limit on a stream, `video` or `audio`, that these clips don't have."""
    absent = [name for name in limits.given if name in STREAM_OF and STREAM_OF[name] not in streams]
    if absent:
        legal = "limits on what the inputs hold: " + ", ".join(streams)
        raise invalid([Offence(name, f"the inputs have no {STREAM_OF[name]}", legal) for name in absent])


def broken(limits: Limits, found: Found) -> tuple[str, ...]:
    """A clause for each limit that is broken: what, its value, the limit."""
    return tuple(_broken(limits, found))


def _broken(limits: Limits, found: Found) -> Iterator[str]:
    if limits.min_psnr is not None and found.psnr is not None and found.psnr < limits.min_psnr:
        yield f"psnr {found.psnr:.6g} is below --min-psnr {limits.min_psnr:g}"
    if limits.min_ssim is not None and found.ssim < limits.min_ssim:
        yield f"ssim {found.ssim:.6g} is below --min-ssim {limits.min_ssim:g}"
    if limits.max_rel_l2 is not None:
        for name, sums in found.streams.items():
            if sums.rel_l2 is None or sums.rel_l2 > limits.max_rel_l2:
                value = "infinite" if sums.rel_l2 is None else f"{sums.rel_l2:.6g}"
                yield f"rel_l2 of {name} {value} is above --max-rel-l2 {limits.max_rel_l2:g}"
    if limits.max_log_mel is not None and found.log_mel_db is not None and found.log_mel_db > limits.max_log_mel:
        yield f"log_mel_db {found.log_mel_db:.6g} is above --max-log-mel {limits.max_log_mel:g}"
