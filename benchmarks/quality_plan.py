"""What is compared: variants of the path from a prompt to a clip, each a way to compute and a schedule.

    way        format of the weights | linear backend | attention backend | step reuse        `EXACT` is the reference
    schedule   forwards | sampler | scheduler

A clip is compared with the exact one of its own schedule, so that a way's error stands alone; the anchor, exact and of
many forwards, tells it from what the schedule does. Fed and read by `quality`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final, get_args

from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear
from h3runtime.core import REUSE_THRESHOLDS, CacheMode, Forecast, StepReuse

W4A4 = "nvfp4_w4a4"
"""The NVFP4 set with emulated 4-bit activations."""
FORMATS = ("bf16", "nvfp4", W4A4, "int8_convrot", "fp8_scaled")
TRUTH_STEPS = (4, 8, 12, 20, 50)
SAMPLERS = ("euler", "res_multistep")
SCHEDULERS = ("beta", "simple", "linear")
CACHES: Final = ("none", *get_args(CacheMode))
FORECASTS: Final[tuple[Forecast, ...]] = get_args(Forecast)


@dataclass(frozen=True, slots=True)
class Way:
    """cache: how steps are reused, as `MODE:THRESHOLD[:FORECAST][:START:END]`; "" computes them all."""

    format: str = "bf16"
    linear: str = "dequant"
    attention: str = "sdpa"
    cache: str = ""

    @property
    def name(self) -> str:
        return "/".join(filter(None, (self.format, self.linear, self.attention, self.cache)))

    @property
    def reuse(self) -> StepReuse | None:
        return reuse_of(self.cache)

    @property
    def label(self) -> str:
        """Without what goes without saying."""
        told = (self.format, *(name for name in (self.linear, self.attention) if name not in _USUAL))
        return " ".join(filter(None, (*told, self.cache)))


@dataclass(frozen=True, slots=True)
class Schedule:
    steps: int = 12
    sampler: str = "res_multistep"
    scheduler: str = "beta"

    @property
    def name(self) -> str:
        return f"{self.steps} {self.sampler} {self.scheduler}"


@dataclass(frozen=True, slots=True)
class Size:
    width: int
    height: int
    frames: int

    @property
    def name(self) -> str:
        return f"{self.width}x{self.height}x{self.frames}"


EXACT = Way()
_USUAL = (EXACT.linear, EXACT.attention, Nvfp4EmulatedLinear.name)


def ways_of(
    formats: Iterable[str], linears: Iterable[str], attentions: Iterable[str], caches: Iterable[str] = ("",)
) -> tuple[Way, ...]:
    """All combinations, each once and the exact one first. The emulated format has a linear backend of its own."""
    found = [
        Way(form, Nvfp4EmulatedLinear.name if form == W4A4 else linear, attention, cache)
        for form, linear, attention, cache in product(formats, linears, attentions, caches)
    ]
    return tuple(dict.fromkeys([EXACT, *found]))


def caches_of(modes: Iterable[str], thresholds: Sequence[float], forecasts: Sequence[Forecast]) -> tuple[str, ...]:
    """All combinations, each once; a mode's own threshold where none is given. Only latents are forecast."""
    found = []
    for mode in modes:
        for threshold in thresholds or [REUSE_THRESHOLDS.get(mode, 0.0)]:  # type: ignore[call-overload]
            found += [
                "" if mode == "none" else f"{mode}:{threshold:g}{_told(forecast)}"
                for forecast in (forecasts if mode != "first_block" else FORECASTS[-1:])
            ]
    return tuple(dict.fromkeys(found))


def _told(forecast: Forecast) -> str:
    return "" if forecast == "taylor" else f":{forecast}"


def reuse_of(text: str) -> StepReuse | None:
    """What a way's `cache` says. ValueError otherwise."""
    if not text:
        return None
    found = re.fullmatch(rf"(\w+):([\d.]+)(?::({'|'.join(FORECASTS)}))?(?::([\d.]+):([\d.]+))?", text)
    if found is None:
        raise ValueError(f"{text!r} is not MODE:THRESHOLD[:FORECAST][:START:END]")
    mode, threshold, forecast, start, end = found.groups()
    reuse = StepReuse(mode, float(threshold))  # type: ignore[arg-type]
    if forecast is not None:
        reuse = replace(reuse, forecast=forecast)  # type: ignore[arg-type]
    return reuse if start is None else replace(reuse, start=float(start), end=float(end))


def named_way(text: str) -> tuple[str, Way]:
    """`NAME=FORMAT/LINEAR/ATTENTION[/CACHE]`, the way as its own name tells it. ValueError otherwise; backends are
    known where they run."""
    name, _, told = text.partition("=")
    parts = told.split("/")
    if not name or len(parts) not in (3, 4) or parts[0] not in FORMATS:
        raise ValueError(f"{text!r} is not NAME=FORMAT/LINEAR/ATTENTION[/CACHE], formats {', '.join(FORMATS)}")
    mode = parts[3].partition(":")[0] if parts[3:] else CACHES[1]
    if mode not in CACHES[1:]:
        raise ValueError(f"{text!r} reuses steps by none of {', '.join(CACHES[1:])}")
    way = Way(*parts)
    reuse_of(way.cache)
    return name, way


def schedules_of(steps: Sequence[int], samplers: Sequence[str], schedulers: Sequence[str]) -> tuple[Schedule, ...]:
    return tuple(dict.fromkeys(Schedule(*each) for each in product(steps, samplers, schedulers)))


def size_of(text: str) -> Size:
    """`192x192x39`. ValueError otherwise."""
    found = re.fullmatch(r"(\d+)x(\d+)x(\d+)", text)
    if found is None:
        raise ValueError(f"{text!r} is not WIDTHxHEIGHTxFRAMES")
    return Size(*map(int, found.groups()))


def schedule_of(text: str) -> Schedule:
    """`50`, `50:euler` or `50:euler:linear`. ValueError otherwise."""
    steps, *rest = text.split(":")
    if len(rest) > 2:
        raise ValueError(f"{text!r} is not STEPS[:SAMPLER[:SCHEDULER]]")
    return Schedule(int(steps), *rest)
