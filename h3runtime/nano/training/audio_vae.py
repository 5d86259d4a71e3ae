"""Training of h3-nano's audio VAE, and its use on many clips at once.

    bank of sounds -> segments -> encoder -> latents + noise -> decoder -> loss -> AdamW; in the end latent statistics

`train_audio_vae` runs for a given time and writes the master (F16 values under the runtime's names) and pieces to go on
from. `encode_sounds` and `decode_sounds` are the runtime's own forwards in batches, in full fp32. Both halves begin as
a linear code of the world's sounds (`audio_start`) and improve on it together. The noise is what the DiT's errors will
be: latents must mean the same nearby. All of a step is on the device: nothing waits for it but the log, and on a GPU a
step can be recorded once as a CUDA graph and replayed, since a thousand launches of small kernels take longer than the
kernels do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch

from h3runtime.checkpoint.writer import write_file
from h3runtime.core import SAMPLE_RATE
from h3runtime.nano import model
from h3runtime.nano.sounds import sound, voice
from h3runtime.nano.training.audio_bank import PITCHES, Bank, make_bank
from h3runtime.nano.training.audio_forward import Resampling, decode_mean
from h3runtime.nano.training.audio_losses import AudioLosses, audio_loss, snr
from h3runtime.nano.training.audio_start import Beginning, initialise, linear_code
from h3runtime.nano.training.masters import AUDIO_VAE, filled
from h3runtime.nano.training.pieces import load_pieces, save_pieces
from h3runtime.nano.training.recording import Recordings
from h3runtime.nano.world import PITCHES as WORLD_PITCHES
from h3runtime.nano.world import draw_scene
from h3runtime.vae.audio_vae import AudioVae

NAME: Final = "audio_vae"
FLOOR: Final = 0.5
"""Least `latents_std`, as a share of the median: what speaks at onsets only would be fifty deviations high then."""
SEARCHED: Final = 3
"""Kernels tried for each convolution. With ten, cuDNN's default, the first step took most of half a minute."""
AVERAGED: Final = 0.01
"""Share of one batch in the running variances of the channels."""


@dataclass(frozen=True, slots=True)
class AudioTraining:
    """sounds: in the bank (600 KB each on the device). batch: mono segments of `length` latents.

    rate rises over `warm` steps and falls as a cosine over the time to `last` of it. noise: the most of it on
    latents, in their standard deviations. size: weight of mean z^2. tail: of the square of what goes beyond `reach`
    deviations, since the DiT has to learn onsets too. average: decay of the running mean of the weights.
    graph: record a step on a GPU. wait_steps: after so many the host waits for the device, so as
    not to run seconds ahead of it. measured: scenes in the last line.
    """

    sounds: int = 2048
    batch: int = 48
    length: int = 24
    rate: float = 5e-4
    warm: int = 300
    last: float = 0.01
    betas: tuple[float, float] = (0.9, 0.99)
    clip: float = 1.0
    noise: float = 0.2
    size: float = 1e-3
    tail: float = 0.1
    reach: float = 3.0
    average: float = 0.995
    graph: bool = True
    wait_steps: int = 25
    report_seconds: float = 5.0
    save_seconds: float = 60.0
    measured: int = 48
    losses: AudioLosses = field(default_factory=AudioLosses)
    begin: Beginning = field(default_factory=Beginning)


@dataclass(frozen=True, slots=True)
class AudioFigures:
    """Of the runtime's forwards on sounds never trained on. snr in dB (all scenes together; the median scene).

    silence: rms of decoded silence. pitch, any_pitch: worst relative error of a steady tone's peak, of the world's four
    pitches and of all that references may have.
    """

    snr: float
    median_snr: float
    silence: float
    pitch: float
    any_pitch: float


def train_audio_vae(
    out: Path,
    seconds: float,
    device: torch.device,
    resume: Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] = print,
    recipe: AudioTraining | None = None,
) -> None:
    """Train for `seconds` (all but the last second or two) and write `out/audio_vae.safetensors` and its pieces.

    resume: a folder with pieces of an earlier run. FileNotFoundError if they are incomplete.
    """
    recipe = recipe or AudioTraining()
    out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + seconds
    with _fast(device):
        _Run(recipe, device, resume, seed, say).train(ends, out)
    figures = measure(read_master(out, device), seed + 1, recipe.measured)
    say(f"audio vae: {figures}")


@torch.no_grad()
def encode_sounds(vae: AudioVae, samples: torch.Tensor, at_once: int = 128) -> torch.Tensor:
    """float32 [B, 2, N] at 32 kHz, on the VAE's device -> normalised latents fp32 [B, 32, 2, A], A = N // 800."""
    with _exact():
        return torch.cat([vae.encode(part) for part in torch.split(samples, at_once)])


@torch.no_grad()
def decode_sounds(vae: AudioVae, latents: torch.Tensor, at_once: int = 32) -> torch.Tensor:
    """Normalised latents [B, 32, 2, A] -> float32 [B, 2, 800 A] in [-1, 1]."""
    with _exact():
        return torch.cat([vae.decode(part) for part in torch.split(latents, at_once)])


def read_master(folder: Path, device: torch.device) -> AudioVae:
    """The VAE of `folder/audio_vae.safetensors`, widened to fp32, on the device."""
    return filled(model.audio_vae(), folder / AUDIO_VAE).to(device)


def _begin(bank: Bank, recipe: AudioTraining, resume: Path | None, seed: int) -> AudioVae:
    """The VAE to go on with, on the CPU: of the pieces, or of the bank's linear code."""
    vae = model.audio_vae()
    if resume is not None:
        vae.load_state_dict(load_pieces(resume, NAME))
    else:
        scenes = bank.waves[: len(bank.waves) * 3 // 4]
        initialise(vae, linear_code(scenes, model.AUDIO_VAE.channels), recipe.begin, seed)
    return vae


class _Run:
    """Everything of one run. The step reads its knobs from the device, so that it can be recorded and replayed."""

    def __init__(
        self, recipe: AudioTraining, device: torch.device, resume: Path | None, seed: int, say: Callable[[str], None]
    ) -> None:
        self.recipe, self.device, self.say = recipe, device, say
        self.bank: Bank = make_bank(recipe.sounds, seed, device)
        self.recordings = Recordings.on(device, seed, say, recipe.graph)
        self.vae = _begin(self.bank, recipe, resume, seed).to(device)
        self.parameters: list[torch.Tensor] = [
            p for name, p in self.vae.named_parameters() if not name.startswith("logs_proj")
        ]
        self.by = Resampling.of(self.vae.decoder)
        self.spread = torch.ones(model.AUDIO_VAE.channels, 1, device=device)
        self.loss = torch.zeros((), device=device)
        self.mean = [torch.zeros_like(p) for p in self.parameters]
        self.steps = 0
        self.optimiser = self._optimiser()

    def _optimiser(self) -> torch.optim.AdamW:
        cuda = self.device.type == "cuda"
        recorded = cuda and self.recipe.graph
        rate = torch.zeros((), device=self.device) if recorded else 0.0
        return torch.optim.AdamW(
            self.parameters, lr=rate, betas=self.recipe.betas, weight_decay=0.0, fused=cuda, capturable=recorded
        )

    def train(self, ends: float, out: Path) -> None:
        """Steps until `time.monotonic()` is `ends`; at least one."""
        begun = told = saved = time.monotonic()
        self.save(out)
        while self.steps == 0 or time.monotonic() < ends:
            self._set_rate((time.monotonic() - begun) / max(ends - begun, 1e-3))
            self.steps += self.recordings.run("audio VAE", self.step)
            if self.steps % self.recipe.wait_steps == 0:
                self.loss.item()
            now = time.monotonic()
            if now - told > self.recipe.report_seconds:
                told = now
                self.say(f"audio vae: {now - begun:.0f} s, step {self.steps}, loss {float(self.loss):.4f}")
            if now - saved > self.recipe.save_seconds and now < ends - 0.2 * self.recipe.save_seconds:
                saved = now
                self.save(out)
        self.save(out)
        self.say(f"audio vae: {time.monotonic() - begun:.0f} s, {self.steps} steps, loss {float(self.loss):.4f}")

    def _set_rate(self, share: float) -> None:
        """The rate of this step. share: of the time, 0..1."""
        recipe = self.recipe
        fall = recipe.last + (1 - recipe.last) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
        rate = recipe.rate * fall * min(1.0, (self.steps + 1) / recipe.warm)
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def step(self) -> None:
        """One update of the weights and of their running mean; no host sync."""
        self.optimiser.zero_grad(set_to_none=True)
        loss = self._loss()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.parameters, self.recipe.clip)
        self.optimiser.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.mean, self.parameters, 1 - self.recipe.average)
            self.loss.copy_(loss)

    def _loss(self) -> torch.Tensor:
        recipe = self.recipe
        wanted = self.bank.draw(recipe.batch, recipe.length, self.generator)
        latents = self.vae.posterior_mean(wanted)
        heard = latents + self._noise(latents.detach())
        loss = audio_loss(decode_mean(self.vae, heard, self.by), wanted, recipe.losses)
        beyond = (latents / floored(self.spread)).abs().sub(recipe.reach).relu()
        return loss + recipe.size * latents.square().mean() + recipe.tail * beyond.square().mean()

    def _noise(self, latents: torch.Tensor) -> torch.Tensor:
        """[B, C, A] in the channels' own deviations, more or less of it by segment.

        Variances are averaged over many batches: what a channel says at onsets only is not in every one.
        """
        variance = latents.var((0, 2)).unsqueeze(-1)
        self.spread.copy_(self.spread.square().lerp_(variance, AVERAGED).sqrt_())
        lot = torch.rand(len(latents), 1, 1, generator=self.generator, device=self.device)
        noise = torch.randn(latents.shape, generator=self.generator, device=self.device)
        return self.recipe.noise * lot * floored(self.spread) * noise

    @property
    def generator(self) -> torch.Generator:
        """What a step draws from."""
        return self.recordings.generator

    def save(self, out: Path) -> None:
        """The running mean as master (F16, with statistics) and as pieces; the weights in training stay.

        What is there stays too, if the weights have become infinite.
        """
        kept = [p.detach().clone() for p in self.parameters]
        correction = 1 - self.recipe.average**self.steps
        means = [m / correction for m in self.mean] if self.steps else kept
        if not all(bool(m.isfinite().all()) for m in means):
            self.say(f"audio vae: weights are not finite after {self.steps} steps, nothing saved")
            return
        with torch.no_grad():
            torch._foreach_copy_(self.parameters, means)
            save_pieces({n: v.cpu() for n, v in self.vae.state_dict().items()}, out, NAME)
            write_master(self.vae, self.bank, out / f"{NAME}.safetensors")
            torch._foreach_copy_(self.parameters, kept)


def floored(spread: torch.Tensor) -> torch.Tensor:
    """Deviations of the channels, none less than `FLOOR` of their median."""
    return torch.maximum(spread, FLOOR * spread.median())


@torch.no_grad()
def write_master(vae: AudioVae, bank: Bank, path: Path) -> None:
    """The VAE's values in F16 and the statistics of its latents, measured with these rounded values on the bank."""
    rounded = model.audio_vae()
    rounded.load_state_dict({n: v.detach().cpu().half().float() for n, v in vae.state_dict().items()})
    rounded = rounded.to(bank.waves.device).eval()
    rounded.latents_mean.zero_()
    rounded.latents_std.fill_(1)
    rounded.logs_proj.weight.zero_()
    latents = encode_sounds(rounded, bank.waves[: min(512, len(bank.waves) * 3 // 4)].flatten(2))
    rounded.latents_mean.copy_(latents.mean((0, 2, 3)))
    rounded.latents_std.copy_(floored(latents.std((0, 2, 3))))
    write_file(path, {n: v.half().cpu().contiguous() for n, v in rounded.state_dict().items()})


@torch.no_grad()
def measure(vae: AudioVae, seed: int, scenes: int = 48) -> AudioFigures:
    """Figures of the runtime's forwards on `scenes` held-out scenes, steady tones and silence."""
    device = vae.latents_mean.device
    rng = np.random.default_rng(seed)
    heard = sound([draw_scene(rng, "held_out") for _ in range(scenes)], 22, device)
    made = decode_sounds(vae, encode_sounds(vae, heard))
    audible = heard.square().mean((1, 2)) > 1e-5
    each = sorted(float(snr(m, h)) for m, h in zip(made[audible], heard[audible], strict=True))
    silence = decode_sounds(vae, encode_sounds(vae, torch.zeros_like(heard[:1])))
    return AudioFigures(
        snr=float(snr(made, heard)),
        median_snr=each[len(each) // 2],
        silence=float(silence.square().mean().sqrt()),
        pitch=_worst_pitch(vae, tuple(WORLD_PITCHES.values())),
        any_pitch=_worst_pitch(vae, PITCHES),
    )


def _worst_pitch(vae: AudioVae, pitches: tuple[float, ...]) -> float:
    device = vae.latents_mean.device
    tones = torch.stack([voice("pure", pitch, 8, device) for pitch in pitches])
    made = decode_sounds(vae, encode_sounds(vae, tones))[:, 0]
    peaks = torch.fft.rfft(made).abs().argmax(-1) * (SAMPLE_RATE / made.shape[-1])
    wanted = torch.tensor(pitches, device=device)
    return float(((peaks - wanted) / wanted).abs().max())


@contextmanager
def _exact() -> Iterator[None]:
    """Full fp32 in products and convolutions, as the runtime computes."""
    with _math(tf32=False, search=False):
        yield


@contextmanager
def _fast(device: torch.device) -> Iterator[None]:
    """TF32 and searched kernels, where there is a GPU."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cudnn.benchmark_limit
    torch.backends.cudnn.benchmark_limit = SEARCHED
    try:
        with _math(tf32=True, search=True):
            yield
    finally:
        torch.backends.cudnn.benchmark_limit = before


@contextmanager
def _math(tf32: bool, search: bool) -> Iterator[None]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = tf32, tf32, search
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before
