"""The video VAE of the embedded model: its training, and its use on many clips at once.

    train_video_vae   minutes on one GPU, or a few steps on a CPU -> a master, and a state to go on from
    encode_clips      frames -> normalised latents, as `VideoVae.encode_clip` makes them, a batch at a time
    decode_clips      and back, as `VideoVae.decode_chunks`

It begins as a linear code: the decoder has the principal components of the world's patches (`video_basis`), the encoder
an approximation of their coefficients (`video_linear`). At first the decoder reads the exact ones, which the encoder is
taught meanwhile; what the decoder reads fades from one to the other.

A step renders views of the world (`video_views`), encodes them (`video_encoding`), disturbs the means by noise of a
fixed share of each channel's spread, decodes them (`video_decoding`) and compares pixels (`video_losses`). Some means
are decoded as pictures of their own (T = 1), as guides and references are. The noise is what makes the latents smooth:
a small error of the denoiser must stay a small error in pixels. Nothing in a step waits for the device,
and on a GPU it can be recorded once for each size and replayed (`recording`).

The encoder's only block at full resolution is held at zero, where `video_start` puts it: it would cost more than all
other layers together. Time decides how long a run is; the learning rate rises, stays, and falls at the end of it.

`POLISH` goes on with the decoder alone: the encoder and the statistics stay to the bit, so that a DiT trained on their
latents stays right, and a step costs half.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

from h3runtime.checkpoint.writer import write_file
from h3runtime.nano import model
from h3runtime.nano.training.orthogonal import Orthogonal
from h3runtime.nano.training.recording import Recordings
from h3runtime.nano.training.video_basis import Basis, basis_of
from h3runtime.nano.training.video_decoding import TrainedDecoder
from h3runtime.nano.training.video_encoding import encode_means, idle_blocks, pieces_of
from h3runtime.nano.training.video_linear import encode_basis
from h3runtime.nano.training.video_losses import LossWeights, decibels, reconstruction
from h3runtime.nano.training.video_start import decode_basis, initialise
from h3runtime.nano.training.video_views import ScenePool, Variety, draw_pool, random_views, views
from h3runtime.vae.chunks import join, plan
from h3runtime.vae.tiling import ALIGNMENT, TileAxis, stitch
from h3runtime.vae.video_pixels import PIXEL_MEAN, PIXEL_STD, denormalise, normalise, to_bytes
from h3runtime.vae.video_vae import VideoVae

Say = Callable[[str], None]
MASTER, STATE = "video_vae.safetensors", "video_vae.state.safetensors"
AT_START: Final = 64
"""Views that the encoder's linear code is made for: as many as make no tensor of 2^31 elements."""
STATISTICS: Final = ("latents_mean", "latents_std")
PIXELS_AT_ONCE = 48 * 22 * 128 * 128
"""Of an encode or decode: 6 GB of working memory, and no tensor of 2^31 elements."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Views of one size: how many in a batch, and their share of the steps."""

    width: int
    height: int
    count: int
    share: float


TILES = (
    Tile(128, 128, 32, 0.64),
    Tile(192, 128, 20, 0.08),
    Tile(128, 192, 20, 0.08),
    Tile(192, 192, 14, 0.08),
    Tile(256, 192, 10, 0.06),
    Tile(256, 256, 8, 0.06),
)


@dataclass(frozen=True, slots=True)
class VideoTraining:
    """Every choice of a run.

    rate: of AdamW at its height, `haste` times as much for what `Orthogonal` moves, with its `momentum`, and `slow`
    times as much for the decoder's patches, which are good from the start; it rises for `warm_up` steps and falls from
    `fall` of the time on. noise: its std as a share of a channel's. guided: until this share of the time the basis'
    code fades out of what the decoder reads, and its distance from the latents out of the loss. basis: batches of views
    in which it is found. pictures: weight of the loss of single pictures, made of half a batch. average: decay of the
    mean of the weights. measured: world clips for the statistics, `measured_size` pixels wide and high. reserve:
    seconds for the statistics and the files. graph: record steps on a GPU. search: let cuDNN search for the fastest
    convolutions of the commonest size. decoder_only: leave the encoder and the statistics as they were resumed.
    """

    tiles: tuple[Tile, ...] = TILES
    rate: float = 1.5e-3
    haste: float = 0.2
    slow: float = 0.1
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    warm_up: int = 50
    fall: float = 0.4
    clip: float = 1.0
    average: float = 0.998
    noise: float = 0.05
    guided: float = 0.2
    basis: int = 8
    pictures: float = 0.25
    weights: LossWeights = field(default_factory=LossWeights)
    variety: Variety = field(default_factory=Variety)
    scenes: int = 3000
    measured: int = 512
    measured_size: int = 128
    say_every: int = 50
    save_every: float = 60.0
    reserve: float = 5.0
    graph: bool = True
    search: bool = True
    decoder_only: bool = False


POLISH: Final = VideoTraining(rate=1e-3, fall=0.2, decoder_only=True)
"""For a decoder that has been trained with its encoder before: lower, and falling nearly from the start."""


@dataclass(frozen=True, slots=True, eq=False)
class Knobs:
    """What changes from step to step, on the device: rates of AdamW, of its slow part and of `Orthogonal`, the share
    of the guide, the shares of a new step in the mean weights and in the mean error."""

    rate: torch.Tensor
    slow: torch.Tensor
    orthogonal: torch.Tensor
    guide: torch.Tensor
    average: torch.Tensor
    square: torch.Tensor


def train_video_vae(
    out: Path,
    seconds: float,
    device: torch.device,
    resume: Path | None,
    seed: int = 0,
    say: Say = print,
    choices: VideoTraining | None = None,
) -> None:
    """Train for `seconds` in all, from `resume` (a state of an earlier run) or from the start.

    Writes `out`/video_vae.safetensors, a master (F16, ComfyUI's names, statistics in F32), and
    `out`/video_vae.state.safetensors (F32, averaged weights), every minute and at the end.
    """
    begun = time.monotonic()
    run = VideoRun(choices or VideoTraining(), device, seed, resume, say)
    say(f"video VAE: {sum(p.numel() for p in run.vae.parameters()):,} parameters, {run.scenes} scenes drawn")
    saved = time.monotonic()
    while (share := (time.monotonic() - begun) / max(seconds - run.choices.reserve, 1e-9)) < 1:
        run.step(share)
        if run.steps % run.choices.say_every == 0:
            run.guard(say)
            say(f"video VAE: step {run.steps} {time.monotonic() - begun:.0f} s {run.standing()}")
        if time.monotonic() - saved > run.choices.save_every:
            saved = time.monotonic()
            run.save(out)
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = False
    run.guard(say)
    say(f"video VAE: {run.save(out)}, {run.steps} steps, {time.monotonic() - begun:.0f} s")


class VideoRun:
    """Model, mean of its weights, optimiser and data of one run."""

    def __init__(
        self, choices: VideoTraining, device: torch.device, seed: int, resume: Path | None, say: Say = print
    ) -> None:
        self.choices, self.device, self.scenes = choices, device, choices.scenes
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.vae = started(device, seed, resume)
        self.idle = idle_blocks(self.vae)
        self.pool = draw_pool(choices.scenes, seed, choices.variety).to(device)
        self.world = draw_pool(choices.measured, seed + 1).to(device)
        self.lots = np.random.default_rng(seed)
        self.recordings = Recordings.on(device, seed, say, choices.graph)
        # Kept on the device: to bring a constant there waits for all that is under way.
        self.pixel_mean, self.pixel_std = (torch.tensor(v, device=device) for v in (PIXEL_MEAN, PIXEL_STD))
        self.basis = self._begin() if resume is None else None
        named = _trained(self.vae, self.idle, choices.decoder_only)
        self.parameters = list(named.values())
        self.average = [parameter.detach().clone() for parameter in self.parameters]
        self.good = [weight.clone() for weight in self.average]
        self.knobs = Knobs(*(torch.zeros((), device=device) for _ in range(6)))
        self.optimizer, self.orthogonal = _optimizers(named, choices, self.knobs)
        self.decoder = TrainedDecoder(self.vae, self.dtype)
        self.steps = self.falls = 0
        self.square = torch.zeros((), device=device)
        self._said = (0, time.monotonic())

    @torch.no_grad()
    def _begin(self) -> Basis:
        """Put the principal components of the world into both halves."""
        encoder, decoder = self.vae.encoder, self.vae.decoder
        assert encoder is not None and decoder is not None
        width = decoder.x_embedder.weight.shape[0]
        seen = [self._views(self.choices.tiles[0]) for _ in range(self.choices.basis)]
        basis = basis_of(seen, width)
        decode_basis(decoder, basis)
        encode_basis(encoder, basis, torch.cat(seen)[:AT_START], self.vae.config.latent_channels)
        return basis

    def step(self, share: float) -> None:
        """One update, or a few where one is recorded; `share` of the time is over."""
        tile = self.choices.tiles[int(self.lots.choice(len(self.choices.tiles), p=_shares(self.choices.tiles)))]
        self._turn(share)
        if self.device.type == "cuda":
            # Searching for the fastest convolutions takes seconds per size: for the commonest alone.
            torch.backends.cudnn.benchmark = self.choices.search and tile == self.choices.tiles[0]
            torch.backends.cudnn.benchmark_limit = 4
        self.steps += self.recordings.run(tile, lambda: self._update(tile))

    @property
    def generator(self) -> torch.Generator:
        """What a step draws from."""
        return self.recordings.generator

    def _turn(self, share: float) -> None:
        """Set the knobs for a step."""
        choices, knobs = self.choices, self.knobs
        rate = choices.rate * _height(self.steps, share, choices) / 2**self.falls
        knobs.rate.fill_(rate)
        knobs.slow.fill_(choices.slow * rate)
        knobs.orthogonal.fill_(choices.haste * rate)
        knobs.guide.fill_(max(0.0, 1 - share / choices.guided))
        knobs.average.fill_(1 - min(choices.average, (2 + self.steps) / (11 + self.steps)))
        knobs.square.fill_(max(0.02, 1 / (1 + self.steps)))
        if self.device.type != "cuda":
            for group in self.optimizer.param_groups:
                group["lr"] = rate * (choices.slow if group["slow"] else 1)

    def _update(self, tile: Tile) -> None:
        """One step: nothing in it waits for the device, nothing comes from the host."""
        loss, square = self._loss(self._views(tile))
        self.vae.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.parameters, self.choices.clip)
        self.optimizer.step()
        self.orthogonal.step(self.knobs.orthogonal)
        with torch.no_grad():
            self.square.lerp_(square, self.knobs.square)
            ahead = torch._foreach_sub([p.detach() for p in self.parameters], self.average)
            torch._foreach_mul_(ahead, self.knobs.average)
            torch._foreach_add_(self.average, list(ahead))

    def _views(self, tile: Tile) -> torch.Tensor:
        """Normalised pixels fp32 [B, F, H, W, 3]."""
        choices = self.choices
        pixels = random_views(self.pool, tile.count, tile.width, tile.height, choices.variety, self.generator)
        return (pixels / 255 - self.pixel_mean) / self.pixel_std

    def _loss(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        choices, weights = self.choices, self.choices.weights
        with torch.set_grad_enabled(torch.is_grad_enabled() and not choices.decoder_only):
            means = encode_means(self.vae, pixels.to(self.dtype), self.idle).float()
        spread = means.detach().std((0, 2, 3, 4), keepdim=True)
        noise = torch.randn(means.shape, device=self.device, generator=self.generator)
        code = means if self.basis is None else self.basis.code(pixels, means.shape[1])
        z = means.lerp(code, self.knobs.guide) + choices.noise * spread * noise
        loss, square = reconstruction(self.decoder(z), pixels, weights)
        loss = loss + weights.latents * means.square().mean() + self.knobs.guide * (means - code).square().mean()
        some = -(-len(z) // 2)
        picture, _ = reconstruction(self.decoder(z[:some, :, :1]), pixels[:some, :1], weights)
        return loss + choices.pictures * picture, square

    @torch.no_grad()
    def guard(self, say: Say) -> None:
        """Remember the averaged weights, or go back to those last remembered if the loss is a number no more."""
        if bool(torch.isfinite(self.square)):
            torch._foreach_copy_(self.good, self.average)
            return
        self.falls += 1
        say(f"video VAE: step {self.steps}, the loss isn't finite; back to the last good weights, at half the rate")
        for weights in (self.average, [p.detach() for p in self.parameters]):
            torch._foreach_copy_(weights, self.good)
        self.square.fill_(1)
        # In place: recorded steps read these very tensors.
        for state in self.optimizer.state.values():
            torch._foreach_zero_(list(state.values()))
        torch._foreach_zero_(self.orthogonal.moments)

    def standing(self) -> str:
        """How it goes; waits for the device."""
        decibel = float(decibels(self.square))
        steps, since = self._said
        self._said = (self.steps, time.monotonic())
        return f"{decibel:.2f} dB with noise, {(self.steps - steps) / (self._said[1] - since):.1f} steps/s"

    @torch.no_grad()
    def save(self, out: Path) -> str:
        """Write master and state from the mean weights, statistics measured anew; says what it measured."""
        kept = [parameter.detach().clone() for parameter in self.parameters]
        torch._foreach_copy_([p.detach() for p in self.parameters], self.average)
        said = measure(self.vae, self.world, self.choices.measured_size, keep=self.choices.decoder_only)
        out.mkdir(parents=True, exist_ok=True)
        tensors = {name: t.detach().float().cpu() for name, t in self.vae.state_dict().items()}
        write_file(out / STATE, tensors, {"steps": str(self.steps)})
        write_file(out / MASTER, {n: t if n in STATISTICS else t.half() for n, t in tensors.items()})
        torch._foreach_copy_([p.detach() for p in self.parameters], kept)
        return said


def started(device: torch.device, seed: int, resume: Path | None) -> VideoVae:
    """h3-nano's video VAE on the device in fp32: from a state, or initialised."""
    vae = model.video_vae()
    if resume is None:
        initialise(vae, seed)
    else:
        vae.load_state_dict(load_file(resume))
    return vae.to(device)


@torch.no_grad()
def measure(vae: VideoVae, world: ScenePool, size: int, at_once: int = 32, keep: bool = False) -> str:
    """Set the statistics of the latents to those of whole views of the pool; says them and the PSNR (in bytes).

    keep: leave the model's own, which are right while nothing but the decoder changes.
    """
    device, at_once = world.floors.device, min(at_once, len(world.floors))
    canvas = torch.full((at_once, 2), float(size), device=device)
    mean, std = _statistics(vae)
    if not keep:
        mean.zero_()
        std.fill_(1)
    latents, squares = [], []
    for first in range(0, len(world.floors) - at_once + 1, at_once):
        index = torch.arange(first, first + at_once, device=device)
        frames = views(world, index, size, size, canvas, torch.zeros_like(canvas)).to(torch.uint8)
        latents.append(encode_clips(vae, frames))
        if first < 64:
            squares.append((decode_clips(vae, latents[-1]).float() - frames).square().mean() / 255**2)
    every = torch.cat(latents)
    if not keep:
        mean.copy_(every.mean((0, 2, 3, 4)))
        std.copy_(every.std((0, 2, 3, 4)).clamp_min(1e-3))
    least, most = float(std.min()), float(std.max())
    decibel = -10 * float(torch.stack(squares).mean().log10())
    return f"PSNR {decibel:.2f} dB, std of the latents {least:.2f} to {most:.2f}"


@torch.no_grad()
def encode_clips(vae: VideoVae, frames: torch.Tensor) -> torch.Tensor:
    """uint8 [B, F, H, W, 3] -> normalised latents fp32 [B, C, T, H/16, W/16], on the model's device.

    Tiles as the runtime does. fp32 on a CPU, fp16 on a GPU. F as `VideoVae.encode_clip` takes it.
    """
    mean, std = (s.float().view(-1, 1, 1, 1) for s in _statistics(vae))
    device, idle = mean.device, idle_blocks(vae)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    return torch.cat([(_tiled(vae, part.to(device), dtype, idle) - mean) / std for part in _split(frames)])


def _tiled(vae: VideoVae, frames: torch.Tensor, dtype: torch.dtype, idle: frozenset[str]) -> torch.Tensor:
    """Means fp32; every piece with the frames that it has to have."""
    count = frames.shape[1]
    missing = sum(pieces_of(count)) - count
    frames = torch.cat([frames, frames[:, -1:].expand(-1, missing, -1, -1, -1)], 1) if missing > 0 else frames
    frames = frames[:, : sum(pieces_of(count))]
    pixels = normalise(frames.flatten(0, 1), dtype)[0].permute(1, 2, 3, 0).reshape(frames.shape)
    rows, columns = (vae.tiling.split(length) for length in frames.shape[2:4])

    def tile_at(i: int, j: int) -> torch.Tensor:
        return encode_means(vae, _cut(pixels, rows, columns, i, j), idle).float()

    return stitch(tile_at, rows.divided(ALIGNMENT), columns.divided(ALIGNMENT), "raw")


@torch.no_grad()
def decode_clips(vae: VideoVae, latents: torch.Tensor) -> torch.Tensor:
    """Normalised latents [B, C, T, h, w] -> uint8 [B, F, 16h, 16w, 3], as the runtime decodes each of them."""
    device = _statistics(vae)[0].device
    parts = torch.split(latents, max(1, PIXELS_AT_ONCE // (latents[0, 0].numel() * 1024)))
    return torch.cat([_decoded(vae, part.to(device)) for part in parts])


def _statistics(vae: VideoVae) -> tuple[torch.Tensor, torch.Tensor]:
    mean, std = vae.latents_mean, vae.latents_std
    assert isinstance(mean, torch.Tensor) and isinstance(std, torch.Tensor)
    return mean, std


def _decoded(vae: VideoVae, latents: torch.Tensor) -> torch.Tensor:
    chunks = plan(latents.shape[2])
    z = vae.denormalised(latents)
    z = torch.cat([z, z[:, :, -1:].expand(-1, -1, chunks.padding, -1, -1)], 2)
    pieces = (_piece(vae, z[:, :, chunks.latents_of(index)]) for index in range(chunks.chunks))
    parts = (p[:, :, -1:] for p in pieces) if chunks.latent_frames == 1 else join(pieces, chunks.frames)
    joined = torch.cat(list(parts), 2)
    return torch.stack([to_bytes(denormalise(clip.unsqueeze(0))) for clip in joined])


def _piece(vae: VideoVae, z: torch.Tensor) -> torch.Tensor:
    """What `VideoVae.decode_piece` makes of one clip, of many: [B, C, t, h, w] -> [B, 3, 4t, 16h, 16w]."""
    decoder, conv = vae.decoder, vae.post_quant_conv
    assert decoder is not None and conv is not None
    rows, columns = (vae.tiling.split(ALIGNMENT * cells) for cells in z.shape[-2:])
    cells = rows.divided(ALIGNMENT), columns.divided(ALIGNMENT)

    def tile_at(i: int, j: int) -> torch.Tensor:
        y, x = cells[0].starts[i], cells[1].starts[j]
        tile: torch.Tensor = decoder(conv(z[..., y : y + cells[0].tile, x : x + cells[1].tile]))
        return tile

    return stitch(tile_at, rows, columns, "blended")


def _split(frames: torch.Tensor) -> Iterator[torch.Tensor]:
    yield from torch.split(frames, max(1, PIXELS_AT_ONCE // (frames[0].numel() // 3)))


def _cut(pixels: torch.Tensor, rows: TileAxis, columns: TileAxis, i: int, j: int) -> torch.Tensor:
    y, x = rows.starts[i], columns.starts[j]
    return pixels[:, :, y : y + rows.tile, x : x + columns.tile]


def _trained(vae: VideoVae, idle: frozenset[str], decoder_only: bool) -> dict[str, nn.Parameter]:
    """All but what nobody reads and the blocks that are left out, or of these what is behind the latents."""
    encoder = ("encoder.", "quant_conv.") if decoder_only else tuple(f"encoder.{name}." for name in idle)
    left_out = ("decoder.mask_token", *encoder)
    return {name: p for name, p in vae.named_parameters() if not name.startswith(left_out)}


def _optimizers(
    named: dict[str, nn.Parameter], choices: VideoTraining, knobs: Knobs
) -> tuple[torch.optim.AdamW, Orthogonal]:
    """Matrices inside the encoder and the decoder's blocks are made orthogonal; AdamW has what touches pixels and
    latents, and all vectors. On a GPU AdamW reads its rates from `knobs`."""
    inner = ("encoder.down.", "encoder.conv_out.", "decoder.transformer_blocks.")
    matrices = {name: p for name, p in named.items() if p.ndim > 1 and name.startswith(inner)}
    patches = [p for name, p in named.items() if name.startswith("decoder.proj_out.")]
    rest = [p for name, p in named.items() if name not in matrices and not name.startswith("decoder.proj_out.")]
    cuda = knobs.rate.device.type == "cuda"
    rate, slow = (knobs.rate, knobs.slow) if cuda else (choices.rate, choices.slow * choices.rate)
    groups = [
        {"params": [p for p in rest if p.ndim > 1], "weight_decay": choices.weight_decay, "lr": rate, "slow": False},
        {"params": [p for p in rest if p.ndim <= 1], "weight_decay": 0.0, "lr": rate, "slow": False},
        {"params": patches, "weight_decay": 0.0, "lr": slow, "slow": True},
    ]
    adam = torch.optim.AdamW(groups, lr=rate, betas=choices.betas, fused=cuda, capturable=cuda)
    return adam, Orthogonal(list(matrices.values()), choices.momentum, choices.weight_decay)


def _height(steps: int, share: float, choices: VideoTraining) -> float:
    """The learning rate as a share of its height."""
    return min(1.0, (steps + 1) / choices.warm_up) * min(1.0, max(0.01, (1 - share) / (1 - choices.fall)))


def _shares(tiles: tuple[Tile, ...]) -> list[float]:
    total = sum(tile.share for tile in tiles)
    return [tile.share / total for tile in tiles]
