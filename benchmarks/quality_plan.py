"""What is compared: variants of the path from a prompt to a clip, each a way to compute and a schedule.

    way        format of the weights | linear backend | attention backend        `EXACT` is the reference
    schedule   forwards | sampler | scheduler

A clip is compared with the exact one of its own schedule, so that a way's error stands alone; the anchor, exact and of
many forwards, tells it from what the schedule does. Fed and read by `quality`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from h3runtime.backends.linear.nvfp4_emulated import Nvfp4EmulatedLinear

W4A4 = "nvfp4_w4a4"
"""The NVFP4 set with emulated 4-bit activations."""
FORMATS = ("bf16", "nvfp4", W4A4, "int8_convrot", "fp8_scaled")
TRUTH_STEPS = (4, 8, 12, 20, 50)
SAMPLERS = ("euler", "res_multistep")
SCHEDULERS = ("beta", "simple", "linear")


@dataclass(frozen=True, slots=True)
class Way:
    format: str = "bf16"
    linear: str = "dequant"
    attention: str = "sdpa"

    @property
    def name(self) -> str:
        return "/".join((self.format, self.linear, self.attention))

    @property
    def label(self) -> str:
        """Without what goes without saying."""
        told = (self.format, *(name for name in (self.linear, self.attention) if name not in _USUAL))
        return " ".join(told)


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


def ways_of(formats: Iterable[str], linears: Iterable[str], attentions: Iterable[str]) -> tuple[Way, ...]:
    """All combinations, each once and the exact one first. The emulated format has a linear backend of its own."""
    found = [
        Way(form, Nvfp4EmulatedLinear.name if form == W4A4 else linear, attention)
        for form, linear, attention in product(formats, linears, attentions)
    ]
    return tuple(dict.fromkeys([EXACT, *found]))


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
