"""Saved latents -> a clip, its sound alone, or its frames as pictures. Loads the two VAEs and nothing else.

What one debugs with: the same latents through another tile rule, dtype or loudness, without sampling again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from h3runtime.backends.linear.dequant import DequantLinear
from h3runtime.core import EncodeSettings, Latents, OnProgress, ShouldStop
from h3runtime.engine import determinism
from h3runtime.engine.clip import ClipTarget, clip_shape, decode_frames, decode_sound, write_clip
from h3runtime.engine.device import choose_device
from h3runtime.engine.faults import job_error_of
from h3runtime.engine.latents_file import read_latents
from h3runtime.engine.load import Loader, Vaes
from h3runtime.engine.paths import VAE_PATHS, model_paths
from h3runtime.engine.run import Run
from h3runtime.errors import CheckpointError, Offence
from h3runtime.media.ffmpeg import find_ffmpeg
from h3runtime.media.frames import require_frames_folder, write_frames
from h3runtime.media.sound import prepare, require_sound_name, write_sound
from h3runtime.settings import Settings
from h3runtime.vae.chunks import plan

SHARES = {"audio_decode": 0.05, "video_decode": 0.9, "mux": 0.05}


@dataclass(frozen=True, slots=True)
class DecodeJob:
    """`clip`, `sound` and `frames` name what to write; any may be None."""

    latents: Path
    clip: Path | None = None
    sound: Path | None = None
    frames: Path | None = None
    encode: EncodeSettings = EncodeSettings()  # noqa: RUF009  # frozen
    overwrite: bool = False
    ffmpeg_loglevel: str = "error"
    on_ffmpeg_line: Callable[[str], None] | None = None


def decode(
    settings: Settings,
    job: DecodeJob,
    on_progress: OnProgress,
    threads: int | None = None,
    should_stop: ShouldStop = lambda: False,
) -> dict[str, Any]:
    """Write what `job` asks for and return the facts about it, ready for JSON. Names are judged before any load."""
    latents, _ = read_latents(job.latents)
    if job.sound is not None:
        require_sound_name(job.sound, overwrite=job.overwrite)
    if job.frames is not None:
        require_frames_folder(job.frames)
    if threads is not None:
        torch.set_num_threads(threads)
    determinism.pin()
    run = Run(on_progress, should_stop, SHARES)
    place = choose_device(settings.device)
    try:
        return _write(latents, job, _vaes(settings, job, latents, place.device, on_progress), settings, run)
    except Exception as error:
        failure = job_error_of(error, place.device, run.stage_name, run.step_index)
        if failure is None:
            raise
        raise failure from None


def _vaes(settings: Settings, job: DecodeJob, latents: Latents, device: torch.device, on_progress: OnProgress) -> Vaes:
    vaes = Loader(settings, model_paths(settings, (), VAE_PATHS), device, DequantLinear(), on_progress).vaes()
    _require_channels(job.latents, latents.video.shape[1], latents.audio.shape[1], vaes)
    return vaes


def _write(latents: Latents, job: DecodeJob, vaes: Vaes, settings: Settings, run: Run) -> dict[str, Any]:
    shape = clip_shape(latents)
    facts: dict[str, Any] = {"width": shape.width, "height": shape.height, "frames": shape.frames}
    if job.clip is not None:
        written = write_clip(latents, _target(job, job.clip, vaes, settings), vaes, find_ffmpeg(), run).written
        facts |= {"output": str(written.output), "sha256": written.sha256, "bytes": written.bytes}
    if job.sound is not None:
        with run.stage("audio_decode"):
            waveform = prepare(decode_sound(latents, vaes), shape.frames, job.encode.loudness)
            write_sound(job.sound, waveform, overwrite=job.overwrite)
        facts["sound"] = str(job.sound)
    if job.frames is not None:
        with run.stage("video_decode", plan(latents.video.shape[2]).chunks):
            write_frames((c.pixels for c in decode_frames(latents, vaes, settings.vae_blend, run)), job.frames)
        facts["frames_folder"] = str(job.frames)
    run.finish()
    return facts | {"timings": run.timings}


def _target(job: DecodeJob, clip: Path, vaes: Vaes, settings: Settings) -> ClipTarget:
    return ClipTarget(
        output=clip,
        scratch=clip.parent,
        encode=job.encode,
        overwrite=job.overwrite,
        synthetic=any(part.synthetic for part in vaes.facts),
        blend=settings.vae_blend,
        mux_stall_seconds=settings.timeout_mux,
        ffmpeg_loglevel=job.ffmpeg_loglevel,
        on_ffmpeg_line=job.on_ffmpeg_line,
    )


def _require_channels(path: Path, video: int, audio: int, vaes: Vaes) -> None:
    """CheckpointError if these latents were made for other VAEs."""
    wanted = {"video": (video, vaes.video.config.latent_channels), "audio": (audio, vaes.audio.config.latent_channels)}
    offences = [
        Offence(name, f"{has} channels, but the {name} VAE has {wants}", str(wants))
        for name, (has, wants) in wanted.items()
        if has != wants
    ]
    if offences:
        raise CheckpointError(f"{path.name}: " + "; ".join(f"{o.field}: {o.message}" for o in offences), offences)
