"""Does a finished result look like a broken one? Figures, warnings and failures, from numbers alone.

Does: judge the final latents (by their standard deviation), the decoded pictures (as they stream by) and the decoded
sound. Does not: judge quality, touch the media, or end a job; `engine` asks `refuse` to do that. numpy only.

Fed by: `engine`: latent figures as plain numbers after sampling, each uint8 chunk on its way to the encoder, the
waveform as the decoder gave it, before the loudness rule (which would hide clipping). Read by: `engine`, and by clients
as `checks` of the answer (service-contract, `checks`).

Failing is for results that nobody can have wanted; whatever a good clip might look or sound like only warns. A
checkpoint that says it is synthetic has no reason to make sense, so for it failures are warnings, except values that
are not finite: those are a bug whatever the weights.

Shapes: frames uint8 [n, H, W, 3], waveform float [ch, n]. All figures are finite, so that they survive JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from h3runtime.core import SAMPLE_RATE, Check
from h3runtime.errors import DegenerateOutput, Offence
from h3runtime.media.tile_grid import luma_steps, tile_grid_score

Level = Literal["warn", "fail"]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Every number of this module, and why it is that number."""

    latent_std_low: float = 0.05
    """Service-contract. Normalised latents of real clips have a standard deviation near 1: a twentieth is collapse. Of
    560 clips of h3-nano: video 0.53 to 1.66, audio 0.50 to 1.98."""
    latent_std_high: float = 20.0
    """Service-contract. The noise a clip starts from has 1 and sampling shrinks it: twenty is divergence."""
    latent_std_constant: float = 1e-6
    """Below it a latent counts as constant; fp32 rounding alone makes 1e-7 of a constant of size 1."""

    flat_levels: int = 1
    """How far apart, in 8-bit levels, two values of one colour may be: rounding puts one colour on two levels."""
    black_level: float = 16.0
    """Luma of 255 that still counts as black: 0.2 % of full light at a display gamma of 2.2."""
    black_share: float = 0.999
    """Share of black pixels that makes a picture black; a thousandth is left for specks."""

    silence_peak: float = 1 / 32_768
    """One step of 16-bit sound; what stays below it, constant or not, is digital silence in every player."""
    constant_ratio: float = 0.01
    """What moves, over what stands still: 40 dB below the offset is a stuck decoder, no recording and no music."""
    constant_margin_seconds: float = 0.1
    """Left out at both ends when looking for a constant: there a stuck decoder still rings from its zero padding."""
    clip_level: float = 0.999
    """A sample this large is at full scale: the decoder clamps to 1, and 16-bit delivery ends a step below 1."""
    clip_share: float = 0.01
    """Service-contract: 1 % of the samples."""
    onset_seconds: float = 0.1
    """Service-contract: the first 100 ms."""
    onset_dbfs: float = -40.0
    """Service-contract. RMS of that stretch, both channels: a click or a cut-in voice is louder, room tone is not. On
    400 clips of h3-nano it said what the scene's own sound says in 397: 70 % of those sounds begin with the clip."""
    floor_dbfs: float = -120.0
    """What silence is shown as, since minus infinity is no JSON; 16-bit sound ends at -96."""

    grid_score: float = 2.0
    """Luma steps at tile lines twice as large as beside them (`tile_grid`). Measured on noise of natural spectrum
    without seams: at most 1.15, very smooth 1.5; with tiles edge to edge that differ by twice the picture's typical
    step: 2.2 to 2.7. Of 1344x768 scenes of random hard-edged rectangles over 99 % stay below; on a canvas of two tiles
    a still edge that runs along the only line can warn: in h3-nano's world, whose objects stand at few places, 29 of 80
    clips as drawn at 320x192, and none of those of one tile."""


THRESHOLDS = Thresholds()
SAMPLED_FRAMES = 4
"""Every fourth frame is looked at for the grid and for black: seams stand still, and a clip has 107 frames or more."""
LUMA = (0.2126, 0.7152, 0.0722)
"""BT.709, as the clip is encoded (conditioning contract §6)."""


class TileAxis(Protocol):
    """One axis as the decoder tiled it, in pixels; `overlaps[k]` is shared by tiles k and k + 1."""

    @property
    def starts(self) -> tuple[int, ...]: ...

    @property
    def overlaps(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class LatentFigures:
    """One stream's final latent, measured where it lies. `std` is over all its values, unbiased or not."""

    std: float
    finite: bool


def check_latents(streams: Mapping[str, LatentFigures], *, synthetic: bool, limits: Thresholds = THRESHOLDS) -> Check:
    """Final latents by stream name (`video`, `audio`); figures `<name>_std`, `<name>_finite`."""
    figures: dict[str, float | bool] = {}
    findings: list[tuple[Level, str]] = []
    for name, latent in streams.items():
        finite = latent.finite and bool(np.isfinite(latent.std))
        figures[f"{name}_finite"] = finite
        if not finite:
            findings.append(("fail", f"the final {name} latent holds values that are not finite"))
            continue
        figures[f"{name}_std"] = latent.std
        if not limits.latent_std_low <= latent.std <= limits.latent_std_high:
            legal = f"{limits.latent_std_low:g} to {limits.latent_std_high:g}"
            message = f"the final {name} latent has a standard deviation of {latent.std:.3g}, outside {legal}"
            findings.append((_failing(synthetic), message))
    return Check(figures, tuple(findings))


def check_audio(
    waveform: NDArray[np.floating[Any]],
    *,
    synthetic: bool,
    rate: int = SAMPLE_RATE,
    limits: Thresholds = THRESHOLDS,
) -> Check:
    """float [ch, n] in [-1, 1] as decoded.

    Figures: `finite`, then `peak`, `rms_dbfs`, `dc`, `clipped_share`, `onset_dbfs`, or `finite_share` alone.
    """
    finite_share = float(np.isfinite(waveform).mean()) if waveform.size else 0.0
    if finite_share < 1:
        message = "the sound has no samples" if not waveform.size else "the sound holds samples that are not finite"
        return Check({"finite": False, "finite_share": finite_share}, (("fail", message),))
    figures: dict[str, float | bool] = {
        "finite": True,
        "peak": float(np.abs(waveform).max()),
        "rms_dbfs": _dbfs(waveform, limits),
        "dc": max((float(mean) for mean in waveform.mean(axis=-1, dtype=np.float64)), key=abs),
        "clipped_share": float((np.abs(waveform) >= limits.clip_level).mean()),
        "onset_dbfs": _dbfs(waveform[..., : round(limits.onset_seconds * rate)], limits),
    }
    constant = _constant_channels(waveform, rate, limits)
    findings: list[tuple[Level, str]] = []
    if constant:
        which = ", ".join(f"channel {channel} at {mean:.3g}" for channel, mean in constant)
        findings.append((_failing(synthetic), f"the sound is a constant: {which}"))
    elif figures["peak"] < limits.silence_peak:
        findings.append(("warn", "the sound is digital silence"))
    else:
        findings += _loud_findings(float(figures["clipped_share"]), float(figures["onset_dbfs"]), limits)
    return Check(figures, tuple(findings))


def _loud_findings(clipped: float, onset: float, limits: Thresholds) -> list[tuple[Level, str]]:
    findings: list[tuple[Level, str]] = []
    if clipped > limits.clip_share:
        findings.append(("warn", f"{clipped:.1%} of the sound is clipped"))
    if onset > limits.onset_dbfs:
        message = f"the first {limits.onset_seconds * 1000:.0f} ms of the sound are at {onset:.1f} dBFS"
        findings.append(("warn", message))
    return findings


def _constant_channels(waveform: NDArray[np.floating[Any]], rate: int, limits: Thresholds) -> list[tuple[int, float]]:
    """Channels that stand still away from zero, with their level."""
    margin = round(limits.constant_margin_seconds * rate)
    inner = waveform[..., margin:-margin] if waveform.shape[-1] > 3 * margin else waveform
    means = inner.mean(axis=-1, dtype=np.float64)
    moving = inner.std(axis=-1, dtype=np.float64)
    return [
        (channel, float(mean))
        for channel, (mean, move) in enumerate(zip(means, moving, strict=True))
        if abs(mean) >= limits.silence_peak and move <= limits.constant_ratio * abs(mean)
    ]


def _dbfs(waveform: NDArray[np.floating[Any]], limits: Thresholds) -> float:
    """RMS over channels and samples; a full-scale square wave is 0."""
    power = float(np.square(waveform, dtype=np.float64).mean()) if waveform.size else 0.0
    return max(limits.floor_dbfs, 10 * float(np.log10(power))) if power > 0 else limits.floor_dbfs


class VideoChecks:
    """Watches a clip's chunks go by; keeps sums, never frames. Feed all chunks in order, then ask for the result."""

    def __init__(self, columns: TileAxis | None = None, rows: TileAxis | None = None) -> None:
        """`columns` is the tiling along the width, `rows` along the height; without them no grid score is made."""
        self._columns = columns
        self._rows = rows
        self._limits = THRESHOLDS
        self._frames = 0
        self._sampled = 0
        self._finite = True
        self._darkest = np.full(3, 255, np.uint8)
        self._brightest = np.zeros(3, np.uint8)
        self._luma = 0.0
        self._black = 0.0
        self._column_steps: NDArray[np.float64] | None = None
        self._row_steps: NDArray[np.float64] | None = None

    def feed(self, frames: NDArray[np.uint8], *, finite: bool = True) -> None:
        """uint8 [n, H, W, 3] as handed to the encoder; `finite` tells of the decoder's values they were made from."""
        self._finite &= finite
        if self._is_flat:
            for frame in frames:
                self._widen(frame)
        first = -self._frames % SAMPLED_FRAMES
        for frame in frames[first::SAMPLED_FRAMES]:
            self._measure(frame)
        self._frames += len(frames)

    def result(self, *, latent_std: float, synthetic: bool) -> Check:
        """Figures `finite`, `frames`, `luma`, `black_share`, `one_colour`, and `tile_grid_score` if tiles were given.

        `latent_std` is that of the final video latent: a constant picture from a constant latent is not the decoder's
        fault, and `check_latents` reports it.
        """
        figures: dict[str, float | bool] = {
            "finite": self._finite,
            "frames": self._frames,
            "luma": self._luma / max(self._sampled, 1),
            "black_share": self._black / max(self._sampled, 1),
            "one_colour": self._is_flat,
        }
        if self._columns is not None or self._rows is not None:
            figures["tile_grid_score"] = self._grid_score()
        stuck = self._is_flat and latent_std > self._limits.latent_std_constant
        return Check(figures, tuple(self._findings(figures, stuck, synthetic)))

    def _findings(self, figures: Mapping[str, float], stuck: bool, synthetic: bool) -> Iterator[tuple[Level, str]]:
        limits = self._limits
        if not self._finite:
            yield "fail", "the decoded pictures hold values that are not finite"
        if stuck:
            yield _failing(synthetic), "all frames are one colour, though the latent is not constant"
        if figures["black_share"] >= limits.black_share:
            yield "warn", "the picture is black"
        score = figures.get("tile_grid_score", 1.0)
        if score > limits.grid_score:
            yield "warn", f"the tile grid shows: score {score:.2f}, above {limits.grid_score:g}"

    @property
    def _is_flat(self) -> bool:
        return bool((self._brightest.astype(int) - self._darkest <= self._limits.flat_levels).all())

    def _widen(self, frame: NDArray[np.uint8]) -> None:
        # Channel by channel: one reduction over an axis of three is fifteen times slower.
        for channel in range(3):
            plane = frame[..., channel]
            self._darkest[channel] = min(self._darkest[channel], plane.min())
            self._brightest[channel] = max(self._brightest[channel], plane.max())

    def _measure(self, frame: NDArray[np.uint8]) -> None:
        luma = frame.astype(np.float32) @ np.array(LUMA, np.float32)
        columns, rows = luma_steps(luma), luma_steps(luma.T)
        self._column_steps = columns if self._column_steps is None else self._column_steps + columns
        self._row_steps = rows if self._row_steps is None else self._row_steps + rows
        self._luma += float(luma.mean(dtype=np.float64))
        self._black += float((luma <= self._limits.black_level).mean())
        self._sampled += 1

    def _grid_score(self) -> float:
        scores = [
            tile_grid_score(steps / self._sampled, axis.starts, axis.overlaps)
            for axis, steps in ((self._columns, self._column_steps), (self._rows, self._row_steps))
            if axis is not None and steps is not None and len(axis.starts) > 1
        ]
        return max(scores, default=1.0)


def refuse(checks: Mapping[str, Check], stage: str | None = None) -> tuple[str, ...]:
    """The warnings of all checks, each led by its check's name; raises `DegenerateOutput` if anything failed."""
    failures = [(name, text) for name, check in checks.items() for level, text in check.findings if level == "fail"]
    if failures:
        summary = "; ".join(text for _, text in failures)
        raise DegenerateOutput(summary, [Offence(name, text) for name, text in failures], stage=stage)
    return tuple(f"{name}: {text}" for name, check in checks.items() for _, text in check.findings)


def _failing(synthetic: bool) -> Level:
    return "warn" if synthetic else "fail"
