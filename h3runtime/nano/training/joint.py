"""The joint training of the DiT and the text encoder: flow matching on latents of both streams, all tasks.

    x = (1 - sigma) x0 + sigma noise per stream, sigma_video = S_12(b), sigma_audio = S_3(b), b even in [0, 1]
    loss = mean (u - (x0 - noise))^2 of the video rows + the same of the audio rows

Runs for a given time and writes EMA weights as masters and as pieces to go on from. With several devices each process
draws its own batches and gradients are averaged. Fed with trained VAEs; `__main__` calls it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from h3runtime.conditioning.encoder import TextEncoder
from h3runtime.denoiser.dit import Dit
from h3runtime.nano import model
from h3runtime.nano.training import transformer
from h3runtime.nano.training.clips import References, Shelf, Size
from h3runtime.nano.training.optimiser import Optimiser
from h3runtime.nano.training.pieces import load_pieces, save_pieces
from h3runtime.nano.training.tasks import Batch, Lectern, shares
from h3runtime.nano.training.text import encode_batch
from h3runtime.nano.training.text_master import initialise as initialise_text
from h3runtime.nano.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Sizes:
    """Shelves and how often each is drawn from."""

    sizes: tuple[Size, ...] = (
        Size(128, 128, 22, 20480),
        Size(192, 128, 22, 2048),
        Size(128, 192, 22, 2048),
        Size(192, 192, 39, 2048),
        Size(320, 192, 39, 512),
        Size(640, 384, 124, 16),
    )
    weights: tuple[float, ...] = (0.72, 0.07, 0.06, 0.1, 0.04, 0.01)


@dataclass(frozen=True, slots=True)
class Recipe:
    """rows: packed rows of a batch. low: share of bases drawn from the cleaner quarter on top of the even ones.

    compiled: blocks through `torch.compile`. ema: decay a step, at most. rate rises over `warm` steps, falls over the
    last `cool` share of the time.
    """

    rows: int = 49152
    rate: float = 2e-3
    warm: int = 150
    cool: float = 0.4
    ema: float = 0.999
    clip: float = 1.0
    low: float = 0.15
    compiled: bool = False
    audio_weight: float = 1.0
    seed: int = 0
    sizes: Sizes = field(default_factory=Sizes)


@dataclass(slots=True, eq=False)
class Pupil:
    """What is trained, and its running mean."""

    dit: Dit
    encoder: TextEncoder
    mean: dict[str, torch.Tensor]

    @classmethod
    def begin(cls, vocabulary: Vocabulary, device: torch.device, seed: int, pieces: Path | None) -> Pupil:
        """Fresh, or from the pieces in a folder."""
        dit, encoder = model.transformer(), model.text_encoder(vocabulary.rows)
        transformer.initialise(dit, seed)
        initialise_text(encoder, seed)
        dit.to(device)
        encoder.to(device)
        pupil = cls(dit, encoder, {})
        if pieces is not None:
            held = load_pieces(pieces, "joint")
            for name, value in pupil.named():
                value.data.copy_(held[name])
        pupil.mean = {name: value.detach().clone().float() for name, value in pupil.named()}
        return pupil

    def named(self) -> list[tuple[str, nn.Parameter]]:
        dit = [(f"dit.{name}", value) for name, value in self.dit.named_parameters()]
        return dit + [(f"text.{name}", value) for name, value in self.encoder.named_parameters()]

    @torch.no_grad()
    def average(self, decay: float) -> None:
        means, values = list(self.mean.values()), [value.detach() for _, value in self.named()]
        torch._foreach_lerp_(means, values, 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Weights and their mean change places."""
        for name, value in self.named():
            kept = value.detach().clone()
            value.data.copy_(self.mean[name])
            self.mean[name].copy_(kept)

    def save(self, folder: Path) -> None:
        """The mean, fp32, as pieces that a later run goes on from."""
        save_pieces({name: value.cpu() for name, value in self.mean.items()}, folder, "joint")


def loss_of(
    pupil: Pupil,
    batch: Batch,
    recipe: Recipe,
    dtype: torch.dtype,
    through: transformer.BlockForward = transformer.block_forward,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean squared error of the video's and of the audio's velocity."""
    device, count = batch.video.device, batch.video.shape[0]
    base = torch.rand(count, device=device)
    base = torch.where(torch.rand(count, device=device) < recipe.low, base * 0.25, base)
    video_sigma, audio_sigma = (sigma.view(-1, 1, 1) for sigma in transformer.sigmas_of(base))
    noises = torch.randn_like(batch.video), torch.randn_like(batch.audio)
    video = torch.lerp(batch.video, noises[0], video_sigma)
    audio = torch.lerp(batch.audio, noises[1], audio_sigma)
    with torch.autocast(device.type, dtype, enabled=dtype is not torch.float32):
        text = transformer.refine(pupil.dit, encode_batch(pupil.encoder, batch.text))
        u_audio, u_video = transformer.predict(
            pupil.dit, batch.rows, text, batch.visual, batch.audible, audio, video, base, through
        )
    return F.mse_loss(u_video, batch.video - noises[0]), F.mse_loss(u_audio, batch.audio - noises[1])


def compiled_block() -> transformer.BlockForward:
    """One block compiled for any batch and length: its elementwise passes fused, shared by all blocks."""
    compiled: transformer.BlockForward = torch.compile(transformer.block_forward, dynamic=True)
    return compiled


def rate_at(recipe: Recipe, step: int, share: float) -> float:
    """Learning rate at `step`, a `share` of the time gone."""
    rise = min(1.0, (step + 1) / recipe.warm)
    fall = min(1.0, (1 - share) / recipe.cool) if recipe.cool else 1.0
    return recipe.rate * rise * max(0.02, math.sin(fall * math.pi / 2) ** 2)


def train(
    pupil: Pupil,
    shelves: Sequence[Shelf],
    references: References,
    vocabulary: Vocabulary,
    recipe: Recipe,
    *,
    seconds: float,
    out: Path,
    say: Callable[[str], None],
    rank: int = 0,
    world: int = 1,
    every: float = 60.0,
    steps: int | None = None,
) -> int:
    """Train for `seconds`, or `steps` if given, then leave the mean in the weights; the number of steps.

    Pieces go to `out` `every` so many seconds and at the end.
    """
    device = pupil.dit.device
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    torch.manual_seed(recipe.seed + 7919 * rank)
    lectern = Lectern(
        shelves,
        recipe.sizes.weights[: len(shelves)],
        references,
        vocabulary,
        pupil.dit,
        recipe.rows,
        recipe.seed + rank,
    )
    optimiser = Optimiser([pupil.dit, pupil.encoder])
    through = compiled_block() if recipe.compiled else transformer.block_forward
    begin, step, saved, told = time.monotonic(), 0, time.monotonic(), time.monotonic()
    seen: Counter[str] = Counter()
    means = torch.zeros(3, device=device)
    while True:
        gone = step / steps if steps else (time.monotonic() - begin) / seconds
        share = _agreed(gone, device, world, step)
        if share >= 1:
            break
        batch = lectern.draw()
        video, audio = loss_of(pupil, batch, recipe, dtype, through)
        torch.autograd.backward(video + recipe.audio_weight * audio)
        if world > 1:
            _average_gradients(optimiser.parameters, world)
        norm = nn.utils.clip_grad_norm_([p for p in optimiser.parameters if p.grad is not None], recipe.clip)
        optimiser.step(rate_at(recipe, step, share))
        pupil.average(min(recipe.ema, (1 + step) / (10 + step)))
        means.lerp_(torch.stack([video.detach(), audio.detach(), norm.detach()]), 1 / min(step + 1, 50))
        seen[batch.task.name] += batch.video.shape[0]
        step += 1
        if rank == 0 and (step <= 3 or time.monotonic() - told > 5):
            told = time.monotonic()
            now = [round(x, 4) for x in means.tolist()]
            say(f"step {step} {told - begin:.0f} s video {now[0]} audio {now[1]} norm {now[2]} share {share:.2f}")
        if rank == 0 and time.monotonic() - saved > every:
            saved = time.monotonic()
            pupil.save(out)
    if rank == 0:
        pupil.save(out)
        say(f"{step} steps, {sum(seen.values())} sequences a device: {shares(seen)}")
    pupil.swap()
    return step


def _agreed(share: float, device: torch.device, world: int, step: int) -> float:
    """The same share on every device, asked of the first one now and then, so that all leave the loop together."""
    if world == 1:
        return share
    if step % 10:
        return min(share, 0.999)
    told = torch.tensor([share], device=device)
    dist.broadcast(told, 0)
    return float(told)


def _average_gradients(parameters: Sequence[nn.Parameter], world: int) -> None:
    """One all-reduce over everything. A parameter that a batch didn't touch counts as 0."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat.div_(world)
    for value, part in zip(parameters, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        value.grad = part.view_as(value)
