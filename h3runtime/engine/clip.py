"""Latents -> a clip on disk: sound first, then frames chunk by chunk into the encoder while decoding goes on.

    audio latents -> waveform -> check -> loudness, trim --------------------.      (beside the first chunk: `beside`)
    video latents -> chunk -> bytes on the host -> check -> ClipWriter ------+-> MP4
                                                       `--> Tail: the last frames and their sound, without loss

Memory does not grow with the clip: one chunk is decoded, one is on its way to the host, two are queued. A result that
fails a check is never published. Fed by `resident` after sampling, and by `decode` with saved latents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from h3runtime.core import PIXELS_PER_LATENT, Check, EncodeSettings, Latents, PackedLayout, TailRequest
from h3runtime.engine.beside import Beside
from h3runtime.engine.device import tile_room
from h3runtime.engine.host_frames import HostChunk, to_host
from h3runtime.engine.load import Vaes
from h3runtime.engine.preview import Poster
from h3runtime.engine.run import Run
from h3runtime.engine.tail import Tail
from h3runtime.media import sound
from h3runtime.media.checks import LatentFigures, VideoChecks, check_audio, check_latents, refuse
from h3runtime.media.ffmpeg import FFmpeg
from h3runtime.media.mux import ClipShape, ClipWriter, Limits, WrittenClip
from h3runtime.vae.chunks import decoded_frames, plan
from h3runtime.vae.tiling import BlendRule


@dataclass(frozen=True, slots=True)
class ClipTarget:
    """Where a clip goes and how it is written. `synthetic`: made by made-up weights, so that most checks only warn.
    tail: what else is kept of it. shown: report its middle frame."""

    output: Path
    scratch: Path
    encode: EncodeSettings
    overwrite: bool
    synthetic: bool
    blend: BlendRule
    mux_stall_seconds: float = 60.0
    ffmpeg_loglevel: str = "error"
    on_ffmpeg_line: Callable[[str], None] | None = None
    tail: TailRequest | None = None
    shown: bool = False


@dataclass(frozen=True, slots=True)
class DecodedClip:
    """A published file, its size in pixels, what the checks saw and what they warn of."""

    written: WrittenClip
    shape: ClipShape
    checks: dict[str, Check]
    warnings: tuple[str, ...]


def clip_shape(latents: Latents) -> ClipShape:
    """Pixels and frames of the clip that these latents are."""
    return _shape(*latents.video.shape[2:])


def sampled_shape(layout: PackedLayout) -> ClipShape:
    """Of the clip that is sampled by a layout; but for odd sides of latents, which it loses."""
    return _shape(layout.latent_frames, layout.height, layout.width)


def _shape(frames: int, height: int, width: int) -> ClipShape:
    return ClipShape(PIXELS_PER_LATENT * width, PIXELS_PER_LATENT * height, decoded_frames(frames))


def write_clip(
    latents: Latents, target: ClipTarget, vaes: Vaes, tool: FFmpeg, run: Run, begun: ClipWriter | None = None
) -> DecodedClip:
    """Decode both streams and give the clip its name, whole or not at all. begun: by `clip_writer`, of this target, and
    entered, so that ffmpeg has started by now; of another shape than the latents' it is of no use."""
    with Beside(vaes.audio.latents_mean.device) as beside:
        return _write_clip(latents, target, vaes, tool, run, beside, begun)


def _write_clip(
    latents: Latents,
    target: ClipTarget,
    vaes: Vaes,
    tool: FFmpeg,
    run: Run,
    beside: Beside,
    begun: ClipWriter | None,
) -> DecodedClip:
    shape = clip_shape(latents)
    figures = measure_latents(latents)
    found = {"latents": check_latents(figures, synthetic=target.synthetic)}
    refuse(found, "sampling")
    with ExitStack() as stack:
        with run.stage("audio_decode"):
            chunks = beside.begun(_chunks(latents, vaes, target.blend, run, beside))
            if begun is not None and begun.shape == shape:
                writer = begun
            else:
                # ffmpeg starts while the sound is decoded.
                writer = stack.enter_context(clip_writer(target, shape, tool, run))
            with beside.stream():
                waveform = decode_sound(latents, vaes)
            found["audio"] = check_audio(waveform, synthetic=target.synthetic)
            refuse(found, "audio_decode")
            writer.hear(sound.prepare(waveform, shape.frames, target.encode.loudness))
        poster = Poster(shape.frames) if target.shown else None
        tail = stack.enter_context(Tail(target.tail, target.scratch, shape, waveform, run.check_stop))
        count = plan(latents.video.shape[2]).chunks
        with run.stage("video_decode", count):
            watch = VideoChecks(vaes.video.tiling.split(shape.width), vaes.video.tiling.split(shape.height))
            for done, chunk in enumerate(to_host(chunks), 1):
                if beside.in_thread:
                    run.step(min(done, count), count)
                watch.feed(chunk.pixels, finite=chunk.finite)
                writer.put(chunk.pixels)
                tail.put(chunk.pixels)
                if poster is not None and (png := poster.found_in(chunk.pixels)):
                    run.show(png)
            found["video"] = watch.result(latent_std=figures["video"].std, synthetic=target.synthetic)
            warnings = refuse(found, "video_decode")
        with run.stage("mux"):
            tail.finish()
            written = writer.finish(run.alive)
            tail.publish()
    return DecodedClip(written, shape, found, warnings)


def measure_latents(latents: Latents) -> dict[str, LatentFigures]:
    """Standard deviation and finiteness of both streams."""
    streams = {"video": latents.video, "audio": latents.audio}
    return {name: LatentFigures(float(x.float().std()), bool(torch.isfinite(x).all())) for name, x in streams.items()}


def decode_sound(latents: Latents, vaes: Vaes) -> NDArray[np.float32]:
    """float32 [2, 800 A] at 32 kHz, as decoded: no loudness rule, not trimmed."""
    waveform = vaes.audio.decode(latents.audio.to(vaes.audio.latents_mean.device))
    decoded: NDArray[np.float32] = waveform[0].cpu().numpy()
    return decoded


def decode_frames(latents: Latents, vaes: Vaes, blend: BlendRule, run: Run) -> Iterator[HostChunk]:
    """The clip's frames on the host, in order, chunk by chunk."""
    return to_host(_chunks(latents, vaes, blend, run))


def _chunks(
    latents: Latents, vaes: Vaes, blend: BlendRule, run: Run, beside: Beside | None = None
) -> Iterator[torch.Tensor]:
    """The same on the device. Nothing is done before the first one is asked for, by `beside` maybe."""

    def on_chunk(done: int, chunks: int) -> None:
        # One that is begun ahead is no step of the sound's; what is made in a thread is told by who takes it.
        if beside is None or not (beside.in_thread or (beside.on_device and done == 1)):
            run.step(done, chunks)

    device = vaes.audio.latents_mean.device
    yield from vaes.video.decode_chunks(
        latents.video.to(device),
        blend=blend,
        should_stop=lambda: run.should_stop() or (beside is not None and beside.left),
        on_chunk=on_chunk,
        room=tile_room(device),
    )


def clip_writer(target: ClipTarget, shape: ClipShape, tool: FFmpeg, run: Run) -> ClipWriter:
    """Not entered yet; it awaits the sound."""
    return ClipWriter(
        tool,
        target.output,
        target.scratch,
        shape,
        None,
        awaits_sound=True,
        encode=target.encode,
        overwrite=target.overwrite,
        limits=Limits(stall=target.mux_stall_seconds),
        should_stop=run.should_stop,
        loglevel=target.ffmpeg_loglevel,
        on_line=target.on_ffmpeg_line,
    )
