"""Sigma schedules and the clocks that the network reads off a sigma.

Does the scalars of sampling: which sigmas a run visits, and for one sigma the timesteps of every kind of row and the
audio stream's own sigma. Does no tensor of latents. Fed by `SamplerSettings`; read by the sampler, the carry, the
masks and the DiT.

    S_s(b) = s b / (1 + (s - 1) b)          base b in [0, 1] -> sigma of a stream with shift s
    b      = sigma / (s + sigma (1 - s))    its inverse

Sigma 1 is noise and 0 is clean; timestep t = 1 - sigma. Both streams share the base b, so the audio's sigma follows
from the video's (dit-contract §5.1). Tables are fp32 on the CPU, whatever device samples: they are scalars, and must be
the same scalars everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.core import MAX_STEPS, SHIFT_RANGE, SamplerSettings, SegmentKind
from h3runtime.errors import Offence, invalid

TABLE_SIZE: Final = 1000
"""Entries of ComfyUI's discrete sigma table; also the factor between sigma and the timestep it passes (§5.1)."""
MIN_SIGMA: Final = 1e-6
"""Least sigma that the network reads; a smaller one is raised to it (§5.1)."""
BETA_PARAMETER: Final = 0.6
"""Both parameters of the beta distribution behind the `beta` scheduler (§5.1)."""
BETA_TERMS: Final = 60
"""Of a series whose terms halve at least: 2^-60 is below what float64 resolves."""
VISUAL_LEVEL: Final = 0.999
"""Timestep at which visual conditions are held, and the share of clean signal in them (§5.3, §5.7)."""
AUDIO_LEVEL: Final = 1.0
"""The same for audio conditions: clean (§5.3, §5.7)."""
DENOISE_RANGE: Final = (1e-3, 1.0)
FULL_DENOISE: Final = 0.9999
"""Above it ComfyUI treats a run as a whole one."""

NumberT = TypeVar("NumberT", float, torch.Tensor)


def shift_base(base: NumberT, shift: float) -> NumberT:
    """S_s(b): base -> sigma, in the arithmetic of `base` (Python floats: float64; tensors: theirs)."""
    return base * shift / (base * (shift - 1.0) + 1.0)


def unshift(sigma: NumberT, shift: float) -> NumberT:
    """Inverse of `shift_base`."""
    return sigma / (sigma * (1.0 - shift) + shift)


def sigma_table(shift: float) -> torch.Tensor:
    """ComfyUI's discrete table, fp32 [1000], ascending, last entry 1: S_s((i + 1) / 1000) (§5.1)."""
    ticks = torch.arange(1, TABLE_SIZE + 1, dtype=torch.float32) / TABLE_SIZE
    return shift_base(ticks * TABLE_SIZE / TABLE_SIZE, shift)


def _simple(steps: int, shift: float) -> torch.Tensor:
    """Every (1000/steps)-th entry from the top.

    The stride is rounded before it is multiplied, as ComfyUI does: for 9 of the step counts up to 200 (38, 76, 122..)
    that lands one entry away from int(i * 1000 / steps).
    """
    stride = TABLE_SIZE / steps
    picked = torch.tensor([TABLE_SIZE - 1 - int(i * stride) for i in range(steps)])
    return sigma_table(shift)[picked]


def _beta(steps: int, shift: float) -> torch.Tensor:
    """Entries at the quantiles of Beta(.6, .6); equal neighbours count once, so many steps give fewer sigmas."""
    picked = _beta_entries(steps)
    first = np.concatenate(([True], picked[1:] != picked[:-1]))
    return sigma_table(shift)[torch.from_numpy(picked[first])]


def _beta_entries(steps: int) -> NDArray[np.int64]:
    """The table's entries nearest to the quantiles; of two as near, the even one, as rounding leaves it."""
    quantiles = 1.0 - np.linspace(0.0, 1.0, steps, endpoint=False)
    halfway = (np.arange(TABLE_SIZE - 1) + 0.5) / (TABLE_SIZE - 1)
    # Entry k is nearest to q if and only if q lies between k - 1/2 and k + 1/2: the distribution at these points tells
    # it of all quantiles without an inverse, which is all of SciPy's that was needed here and takes 0.2 s to import.
    return np.searchsorted(_beta_distribution(halfway), quantiles, side="right").astype(np.int64)


def _beta_distribution(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(Beta(.6, .6) <= x) for x in [0, 1], to the last digits of float64; 1/2 at 1/2.

    x^a (1 - x)^a / (a B(a, a)) times 1 + (2a)/(a + 1) x + (2a)(2a + 1)/((a + 1)(a + 2)) x^2 + .. below 1/2, where no
    term is more than half of the one before for long; above by symmetry.
    """
    a, low = BETA_PARAMETER, np.minimum(x, 1.0 - x)
    term, series = np.ones_like(low), np.ones_like(low)
    for n in range(BETA_TERMS):
        term = term * low * (2 * a + n) / (a + 1 + n)
        series = series + term
    whole = a * math.gamma(a) ** 2 / math.gamma(2 * a)
    below = (low * (1.0 - low)) ** a / whole * series
    return np.where(x == low, np.where(x == 0.5, 0.5, below), 1.0 - below)


def _linear(steps: int, shift: float) -> torch.Tensor:
    """An even grid of the base, not snapped to the table: the official grid of steps + 1 points (§5.1)."""
    return shift_base(torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float32)[:-1], shift)


SCHEDULERS: Final[Mapping[str, Callable[[int, float], torch.Tensor]]] = {
    "beta": _beta,
    "simple": _simple,
    "linear": _linear,
}


def sigmas(settings: SamplerSettings) -> torch.Tensor:
    """The sigmas of a run, fp32 [n + 1] on the CPU, strictly falling, last 0; n is the number of forwards.

    `denoise` below 1 keeps the last steps + 1 sigmas of a schedule of int(steps / denoise) steps (§5.1).
    Raises InvalidRequest naming every illegal setting.
    """
    offences = judge(settings)
    if offences:
        raise invalid(offences)
    whole = settings.denoise > FULL_DENOISE
    steps = settings.steps if whole else int(settings.steps / settings.denoise)
    visited = SCHEDULERS[settings.scheduler](steps, settings.shift)[-settings.steps :]
    # A repeated sigma is a step of length zero: it costs a forward, and divides by zero in a multistep update.
    visited = torch.unique_consecutive(visited)
    return torch.cat([visited, torch.zeros(1)])


def forwards(settings: SamplerSettings) -> int:
    """How many network evaluations a run takes: `steps`, less the sigmas that coincide."""
    return len(sigmas(settings)) - 1


def step_numbers(settings: SamplerSettings) -> tuple[int, ...]:
    """Which of `steps`, from 0, each forward is: all of them, but for steps whose sigma is the one before's.

    Below full denoise the steps are the last ones of a longer schedule, whose merged ones are counted with it.
    """
    offences = judge(settings)
    if offences:
        raise invalid(offences)
    whole = settings.denoise > FULL_DENOISE
    steps = settings.steps if whole else int(settings.steps / settings.denoise)
    numbers = [*range(steps)]
    if settings.scheduler == "beta":
        picked = _beta_entries(steps)
        numbers = [i for i in numbers if i == 0 or picked[i] != picked[i - 1]]
    return tuple(max(0, number - (steps - settings.steps)) for number in numbers[-settings.steps :])


def judge(settings: SamplerSettings) -> list[Offence]:
    """What is illegal in the schedule's settings; empty if nothing is."""
    found = []
    if not 1 <= settings.steps <= MAX_STEPS:
        found.append(Offence("steps", f"{settings.steps} is out of range", f"1 to {MAX_STEPS}"))
    if settings.scheduler not in SCHEDULERS:
        found.append(Offence("scheduler", f"{settings.scheduler!r} is unknown", ", ".join(SCHEDULERS)))
    for name, value, (low, high) in (
        ("shift", settings.shift, SHIFT_RANGE),
        ("audio_shift", settings.audio_shift, SHIFT_RANGE),
        ("denoise", settings.denoise, DENOISE_RANGE),
    ):
        if not (math.isfinite(value) and low <= value <= high):
            found.append(Offence(name, f"{value} is out of range", f"{low:g} to {high:g}"))
    return found


def audio_sigma(sigma: NumberT, shift: float, audio_shift: float) -> NumberT:
    """The audio stream's own sigma where the video's is `sigma`: same base, other shift."""
    return shift_base(unshift(sigma, shift), audio_shift)


def network_sigma(sigma: float) -> torch.Tensor:
    """The sigma that the network reads, fp32 []: ComfyUI passes it times 1000 and divides again (§5.1)."""
    passed = torch.tensor(sigma, dtype=torch.float32) * TABLE_SIZE
    return (passed / TABLE_SIZE).clamp(min=MIN_SIGMA)


@dataclass(frozen=True, slots=True)
class Timesteps:
    """What every kind of row reads at one step (§5.7). Float64 values, compared exactly.

    sigma_video, sigma_audio: each stream's own sigma. video, audio: 1 - those. visual_condition, audio_condition: what
    keyframe and reference rows read.
    """

    sigma_video: float
    sigma_audio: float
    video: float
    audio: float
    visual_condition: float
    audio_condition: float

    def of(self, kind: SegmentKind) -> float:
        """The timestep of rows of `kind`; text reads the video's."""
        match kind:
            case SegmentKind.TEXT | SegmentKind.VIDEO:
                return self.video
            case SegmentKind.AUDIO:
                return self.audio
            case SegmentKind.COND | SegmentKind.REF_IMAGE:
                return self.visual_condition
            case SegmentKind.COND_AUDIO | SegmentKind.REF_AUDIO:
                return self.audio_condition

    def distinct(self, kinds: Iterable[SegmentKind]) -> tuple[float, ...]:
        """The different timesteps of one call, ascending: those of both streams and of `kinds` (§5.7)."""
        return tuple(sorted({self.video, self.audio, *map(self.of, kinds)}))


def timesteps(
    sigma: float,
    shift: float,
    audio_shift: float,
    *,
    visual_level: float = VISUAL_LEVEL,
    audio_level: float = AUDIO_LEVEL,
) -> Timesteps:
    """The clocks at the sampler's `sigma`. The levels are those at which conditions are held.

    fp32 up to the sigma that the network reads, float64 from there (§5.1).
    """
    video = float(network_sigma(sigma))
    audio = audio_sigma(video, shift, audio_shift)
    return Timesteps(
        sigma_video=video,
        sigma_audio=audio,
        video=1.0 - video,
        audio=1.0 - audio,
        visual_condition=max(1.0 - video, visual_level),
        audio_condition=max(1.0 - audio, audio_level),
    )
