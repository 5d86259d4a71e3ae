"""What a request takes of the device's memory, in bytes, by closed formulas of its sizes: nothing is run or allocated.

    weights        what is resident of the loaded files all the time, as the linear backend keeps it
    upscaler       what is resident of the latent upscaler, once a request has been refined
    adapters       what is resident of adapters, the request's own and what is kept beside them
    process        what else the engine holds before any request: recorded steps on a device, the process on the CPU
    conditioning   the largest of what comes one after another: a clip or picture, a sound, a vision block, the text;
                   with the last two whatever `residency` moves to the device for them
    sampling       the widest place of a block for all rows, and the modulation of a window of steps
    decode         the sound and the pictures together; the larger of them on a CPU (`estimate`)
    total          weights, upscaler, adapters, process and the largest stage

Within 15 % of measured peaks: on the CPU of the process's resident size, over several requests
(tests/engine/test_memory_peaks.py), on an accelerator of what PyTorch's allocator handed out (tests/gpu,
benchmarks/memory_model.py: every attention backend and linear layout). Single stages are held to the CPU's allocator
(tests/engine/test_memory_estimate.py), a block, with adapters and without, to what is alive in it
(test_block_memory.py), and so is what a run keeps from step to step (test_memory_kept.py). What backends take beside
their results they say themselves. Not counted: two more results of a block's linear whose whole weight an adapter
replaces at another strength than 1, as no public one does. Fed by `diagnosis` with what a run really had and by
`estimating` with what it will have; the sums themselves are in `memory_formulas`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import nn

from h3runtime.conditioning.config import TextEncoderConfig
from h3runtime.core import Task
from h3runtime.denoiser.config import DitConfig
from h3runtime.denoiser.dit import Dit
from h3runtime.engine.demand import Demand
from h3runtime.engine.linear_memory import code_readers, coded_linears, linear_calls, packed_linears
from h3runtime.engine.load import Models
from h3runtime.engine.memory_formulas import (
    Computing,
    Workspace,
    audio_decode_bytes,
    audio_encode_bytes,
    heap_bytes,
    host_frames_bytes,
    nothing,
    read_ahead_bytes,
    sampling_bytes,
    text_bytes,
    video_decode_bytes,
    video_encode_bytes,
    vision_bytes,
)
from h3runtime.engine.residency import text_moved, tower_moved
from h3runtime.quant.stored import PlainWeight
from h3runtime.vae.audio_config import AudioDecoderConfig, AudioEncoderConfig
from h3runtime.vae.tile_batch import ROOM
from h3runtime.vae.tiling import Tiling
from h3runtime.vae.video_config import DecoderConfig, EncoderConfig

TEXT_LINEAR = "model.layers.0.mlp.gate_proj"
"""One of the encoder's, for how all are stored."""
SETTLING = 24 * 2**20
"""Bytes that a process keeps after its first requests: code that oneDNN made for their shapes, libraries. 5 to 60 MiB
were measured."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """text_widened: the encoder's weights aren't stored in fp32, so one of them is made fp32 at a time. text_decoded:
    they are quantised. process, adapters: see above. text_moved, tower_moved: of the encoder's weights, what comes to
    the device to read a text, and its pictures; 0 where they are among `weights`."""

    weights: int
    process: int
    transformer: DitConfig
    computing: Computing
    text_encoder: TextEncoderConfig
    text_widened: bool
    video_encoder: EncoderConfig | None
    video_decoder: DecoderConfig | None
    video_dtype: torch.dtype
    video_encode_dtype: torch.dtype
    audio_encoder: AudioEncoderConfig | None
    audio_decoder: AudioDecoderConfig | None
    tiling: Tiling
    adapters: int = 0
    upscaler: int = 0
    text_decoded: bool = False
    text_moved: int = 0
    tower_moved: int = 0


def sizes_of(
    models: Models,
    task: Task,
    held: int,
    weights: int,
    adapters: int = 0,
    linear: str | None = None,
    attention: Workspace = nothing,
    branch_rank: int | None = None,
) -> ModelSizes:
    """Of what is loaded; the transformer that `task` runs on. held: bytes of the engine before any request, adapters
    left out. weights: bytes of all that was loaded, as it is resident. adapters: bytes of those that are resident
    while the request runs. linear: the backend that it names. attention: what its backends take. branch_rank:
    the widest of its own adapters', None without any."""
    transformer, video, audio = models.transformer_of(task), models.vaes.video, models.vaes.audio.config
    return ModelSizes(
        weights=weights,
        process=max(0, held - weights),
        transformer=transformer.config,
        computing=_computing(transformer, linear, attention, branch_rank),
        text_encoder=models.text_encoder.config,
        text_widened=not _stored_in(models.text_encoder, TEXT_LINEAR, torch.float32),
        text_decoded=not isinstance(models.text_encoder.get_submodule(TEXT_LINEAR).resident, PlainWeight),
        video_encoder=video.config.encoder,
        video_decoder=video.config.decoder,
        video_dtype=video.dtype,
        video_encode_dtype=video.encode_dtype,
        audio_encoder=audio.encoder,
        audio_decoder=audio.decoder,
        tiling=video.tiling,
        adapters=adapters,
        text_moved=text_moved(models.residency, models.encoder_units),
        tower_moved=tower_moved(models.residency, models.encoder_units),
    )


def _computing(transformer: Dit, linear: str | None, attention: Workspace, branch_rank: int | None) -> Computing:
    """Adapted linears read FP8 codes beside values, and NVFP4 from nobody; which of them an adapter has isn't known."""
    packed = packed_linears(transformer, linear) if branch_rank is None else frozenset[str]()
    full = transformer.config.curve_grid is None
    return Computing(
        dtype=transformer.dtype,
        adaln_decoded=full and not _stored_in(transformer, "blocks.0.adaln_proj.linear", transformer.dtype),
        on_host=transformer.device.type == "cpu",
        mlp_chunks=transformer.mlp_chunks,
        linear=linear_calls(transformer, transformer.dtype, linear, packed),
        attention=attention,
        coded=coded_linears(transformer, linear) if branch_rank is None else frozenset(),
        branch_rank=branch_rank or 0,
        both=frozenset() if branch_rank is None else code_readers(transformer, linear),
        packed=packed,
    )


def _stored_in(model: nn.Module, name: str, dtype: torch.dtype) -> bool:
    stored = model.get_submodule(name).resident
    return isinstance(stored, PlainWeight) and stored.weight.dtype == dtype


@dataclass(frozen=True, slots=True)
class Conditioning:
    """Parts that come one after another."""

    video: int
    sound: int
    vision: int
    text: int

    @property
    def peak(self) -> int:
        return max(self.video, self.sound, self.vision, self.text)


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """`total`: weights, upscaler, adapters, process and the largest stage."""

    weights: int
    process: int
    conditioning: Conditioning
    sampling: int
    decode: int
    adapters: int = 0
    upscaler: int = 0

    @property
    def total(self) -> int:
        resident = self.weights + self.upscaler + self.adapters + self.process
        return resident + max(self.conditioning.peak, self.sampling, self.decode)

    def told(self) -> dict[str, int]:
        """Lines for people, in bytes."""
        parts = {f"conditioning_{name}_bytes": value for name, value in asdict(self.conditioning).items()}
        return {
            "weights_bytes": self.weights,
            "adapters_bytes": self.adapters,
            "upscaler_bytes": self.upscaler,
            "process_bytes": self.process,
            "conditioning_bytes": self.conditioning.peak,
            **parts,
            "sampling_bytes": self.sampling,
            "decode_bytes": self.decode,
            "total_bytes": self.total,
        }


def estimate(models: ModelSizes, demand: Demand) -> MemoryEstimate:
    on_host, target, tile = models.computing.on_host, demand.target, models.tiling.size
    room = 0 if on_host else ROOM
    shots = (
        video_encode_bytes(models.video_encoder, models.video_encode_dtype, tile, shot, room)
        + read_ahead_bytes(shot, on_host=on_host)
        for shot in demand.shots
    )
    text = models.text_encoder
    conditioning = Conditioning(
        video=max(shots, default=0),
        sound=audio_encode_bytes(models.audio_encoder, demand.samples),
        vision=vision_bytes(text, demand.text_rows, demand.vision_rows, demand.patches)
        + (models.tower_moved if demand.patches else 0),
        text=heap_bytes(
            text_bytes(
                text,
                demand.text_rows,
                demand.vision_rows,
                widened=models.text_widened,
                decoded=models.text_decoded,
            ),
            on_host=models.computing.on_host,
        )
        + models.text_moved,
    )
    frames = video_decode_bytes(models.video_decoder, models.video_dtype, tile, target, room, on_host=on_host)
    heard = heap_bytes(audio_decode_bytes(models.audio_decoder, demand.audio_latents, on_host=on_host), on_host=on_host)
    seen = heap_bytes(frames, on_host=on_host) + host_frames_bytes(target, on_host=on_host)
    # On a device the sound is decoded beside the first pictures. On a CPU too where there are cores for both: there the
    # sound is over before a piece is put together, or is so long that it takes several times as much.
    decode = max(heard, seen) if on_host else heard + seen
    sampling = sampling_bytes(models.transformer, models.computing, demand.steps)
    process = models.process + (SETTLING if on_host else 0)
    sampled = heap_bytes(sampling, on_host=on_host)
    resident = models.adapters, models.upscaler
    return MemoryEstimate(models.weights, process, conditioning, sampled, decode, *resident)
