"""What the quality levels promise and what they may choose from: one table, and the candidates of one machine.

    exact     BF16 GEMM and attention; needs no evidence and isn't in the table
    high      8-bit or FP4 GEMM and 8-bit attention
    medium    high, and sparse attention or step reuse
    low       medium, with thresholds as wide as its own bounds let them be        (service-contract, `quality`)

A level is a promise about the clip first: SSIM and distance of the sound to the exact clip. What it takes is the
fastest of its candidates that keeps the promise where it was measured. Where the loaded weights serve nothing narrower
than 16 bits, or the device has no such attention, the candidates are what is there, and the evidence names them.

Fed with an engine's facts by `calibrate`; `shelf` reads what a level promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Final, Literal

from h3runtime.core import BackendChoice, CacheMode, EngineFacts

LevelName = Literal["high", "medium", "low"]


@dataclass(frozen=True, slots=True)
class Level:
    """ssim: least mean over clips. audio_db: most mean log-mel distance of the sound. sparse: attention backends that
    leave out keys. reuse: cache modes."""

    name: LevelName
    ssim: float
    audio_db: float
    sparse: tuple[str, ...] = ()
    reuse: tuple[CacheMode, ...] = ()


REUSE: Final[tuple[CacheMode, ...]] = ("easycache", "h3_cache", "first_block")
SPARSE: Final = ("sol_attn", "vsa", *(f"{family}_topk_{p}" for family in ("sla8", "sla") for p in (10, 25, 50, 75)))
LEVELS: Final[Mapping[str, Level]] = {
    "high": Level("high", 0.97, 1.0),
    "medium": Level("medium", 0.90, 1.5, SPARSE, REUSE),
    "low": Level("low", 0.80, 2.0, SPARSE, REUSE),
}
"""SSIM: issue 8.6. Sound: a listener tells apart two broadband sounds whose levels differ by about 1 dB (Zwicker and
Fastl, Psychoacoustics, 7.1), so `high` may not differ by more on the average over 64 mels, `medium` by half as much
again and `low` by twice as much. For comparison, h3-nano at 128x128x22 and 12 steps: `int8` 0.2 dB, `fp8` 0.7 dB,
`nvfp4_emulated` 1.3 dB, and 3.2 dB between two exact clips of one prompt and two seeds."""

NARROW_LINEARS: Final = ("fp8", "int8", "nvfp4", "nvfp4_emulated")
NARROW_ATTENTIONS: Final = ("h3_attn8", "cudnn_fp8", "sage3", "sage2", "ck_int8", "sage1")
"""8-bit or narrower products of q and k, each kernel once: the `kj_sage` names are other spellings of `sage`."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a level sets in a request, by the names that the request has for it; None leaves the server's own value."""

    attention: str
    linear: str
    cache_mode: CacheMode | Literal["none"] = "none"
    cache_threshold: float | None = None

    def fields(self) -> dict[str, Any]:
        """As a request would have them."""
        told = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in told.items() if value is not None}

    @property
    def told(self) -> str:
        reuse = "" if self.cache_mode == "none" else f" {self.cache_mode} {self.cache_threshold}"
        return f"{self.linear} {self.attention}{reuse}"


def exact_choice(facts: EngineFacts) -> Choice | None:
    """What `quality: exact` means here; None where the loaded weights serve nothing exact."""
    linear, attention = _exact(facts.linear), _exact(facts.attention)
    return Choice(attention[0], linear[0]) if linear and attention else None


def bases(level: Level, facts: EngineFacts) -> tuple[Choice, ...]:
    """Every linear with every attention that the level may take, without reuse."""
    linears = _among(NARROW_LINEARS, facts.linear) or _distinct(facts.linear)
    dense = _among(NARROW_ATTENTIONS, facts.attention) or _exact(facts.attention) or (facts.attention.default,)
    attentions = (*dense, *_among(level.sparse, facts.attention))
    return tuple(Choice(attention, linear) for linear, attention in product(linears, attentions))


def _among(names: tuple[str, ...], choice: BackendChoice) -> tuple[str, ...]:
    return tuple(name for name in names if name in choice.available)


def _distinct(choice: BackendChoice) -> tuple[str, ...]:
    """Of the exact ones only the first: they give the same numbers, the default in the least time."""
    inexact = (name for name in choice.available if name not in _exact(choice))
    return (*_exact(choice)[:1], *inexact)


def _exact(choice: BackendChoice) -> tuple[str, ...]:
    """The default first, if it is exact; then as `quality: exact` has them."""
    plain = (name for name in choice.available if choice.grades.get(name) == "reference")
    names = dict.fromkeys([*choice.exact, *plain])
    return tuple(sorted(names, key=lambda name: name != choice.default))
