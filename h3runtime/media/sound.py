"""Sound on its way out: the loudness rule, the length that goes with a picture, float WAV and FLAC files.

The audio decoder feeds it, `mux` and `decode --audio-only` read it. `mux` delivers it with a picture, `checks` judges.

    loudness   w / max(1, 5 * std(w)), std unbiased over channels and samples of one item, so only sounds with std above
               0.2 become softer; ComfyUI's decode node, left out by the official release (conditioning contract §6)
    length     at most ceil(32000 / 24 * F) samples for F frames, never padded (conditioning contract §0, §6)
    rate       soxr, its VHQ recipe, after both: the rule and the cut are those of 32 kHz whatever is delivered
"""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from h3runtime.core import FPS, SAMPLE_RATE
from h3runtime.errors import InvalidRequest, NumericalError, Offence, invalid
from h3runtime.media.delivery import deliver, disk_error, refuse_existing

FILE_KINDS = {".wav": ("WAV", "FLOAT"), ".flac": ("FLAC", "PCM_24")}
"""Suffix -> libsndfile format and subtype. FLAC has no float samples: 24 bits, clipped at full scale."""


def comfyui_loudness(waveform: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [..., C, n] -> the same, each item divided by max(1, 5 * std).

    The deviation is taken in float64 and rounded once to float32, as torch does it on the CPU; all else is float32.
    """
    deviation = np.std(waveform, axis=(-2, -1), ddof=1, keepdims=True, dtype=np.float64).astype(np.float32)
    quieter: NDArray[np.float32] = waveform / np.maximum(deviation * np.float32(5), np.float32(1))
    return quieter


def samples_for(frames: int, fps: int = FPS, rate: int = SAMPLE_RATE) -> int:
    """Most samples that go with `frames` pictures: ceil(rate / fps * frames), in integers."""
    return -(-rate * frames // fps)


def trim(waveform: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """float32 [..., n] -> [..., min(n, samples_for(frames))]."""
    return waveform[..., : samples_for(frames)]


def at_rate(waveform: NDArray[np.float32], rate: int, most: int) -> NDArray[np.float32]:
    """float32 [C, n] at 32 kHz -> [C, at most `most`] at `rate`; 32 kHz passes untouched."""
    if rate == SAMPLE_RATE or not waveform.shape[1]:
        return waveform[:, :most]
    converted: NDArray[np.float32] = soxr.resample(np.ascontiguousarray(waveform.T), SAMPLE_RATE, rate, "VHQ")
    return np.ascontiguousarray(converted[:most].T)


def prepare(waveform: NDArray[np.float32], frames: int, loudness: Literal["comfyui", "none"]) -> NDArray[np.float32]:
    """Decoded sound float32 [..., C, n] -> what the encoder is handed: the rule on the whole of it, then the cut."""
    require_finite(waveform, "audio_decode")
    return trim(comfyui_loudness(waveform) if loudness == "comfyui" else waveform, frames)


def require_finite(waveform: NDArray[np.float32], stage: str) -> None:
    """`NumericalError` naming how many samples are NaN or infinite: they must not reach an encoder."""
    broken = int(np.size(waveform) - np.count_nonzero(np.isfinite(waveform)))
    if broken:
        raise NumericalError(f"{broken} of {np.size(waveform)} audio samples are not finite", stage=stage)


def wav_bytes(waveform: NDArray[np.float32], rate: int = SAMPLE_RATE) -> bytes:
    """float32 [C, n] as a WAV of float samples, bit for bit."""
    return _encode(waveform, rate, ".wav")


def write_sound(path: Path, waveform: NDArray[np.float32], rate: int = SAMPLE_RATE, *, overwrite: bool = False) -> None:
    """float32 [C, n] to a .wav (float) or .flac (24 bits) file, whole or not at all.

    `InvalidRequest` for another suffix, `NumericalError`, `OutputExists`, `JobDiskFull`.
    """
    require_finite(waveform, "mux")
    require_sound_name(path, overwrite=overwrite)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        unfinished.write_bytes(_encode(waveform, rate, path.suffix.lower()))
        deliver(unfinished, path, overwrite=overwrite)
    except OSError as error:
        raise disk_error(error, "mux") from error
    finally:
        unfinished.unlink(missing_ok=True)


def require_sound_name(path: Path, *, overwrite: bool) -> None:
    """`InvalidRequest` for a suffix that is no kind of sound file, `OutputExists`: before there is a sound."""
    if path.suffix.lower() not in FILE_KINDS:
        raise _bad_suffix(path)
    refuse_existing(path, overwrite=overwrite)


def _encode(waveform: NDArray[np.float32], rate: int, suffix: str) -> bytes:
    kind, subtype = FILE_KINDS[suffix]
    buffer = io.BytesIO()
    soundfile.write(buffer, waveform.T, rate, format=kind, subtype=subtype)
    return buffer.getvalue()


def _bad_suffix(path: Path) -> InvalidRequest:
    message = f"{path.suffix or 'no suffix'} is not a kind of sound file that can be written"
    return invalid([Offence("output", message, " or ".join(FILE_KINDS))])
