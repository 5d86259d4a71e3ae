"""The joint training of the DiT and the text encoder: flow matching on latents of both streams, all tasks.

    x = (1 - sigma) x0 + sigma noise per stream, sigma_video = S_12(b), sigma_audio = S_3(b), b even in [0, 1]
    loss = mean (u - (x0 - noise))^2 of the video rows + the same of the audio rows

A step is one function of the device's own tensors: it draws a batch, learns from it, and moves the running mean, so
that it can be recorded and replayed (`recording`) and the host has nothing to do. Runs for a given time, its
preparations included, and leaves the mean as pieces to go on from. With several devices each process draws its own
batches and gradients are averaged. Fed with trained VAEs' shelves; `command` calls it.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from h3runtime.nano.training import transformer
from h3runtime.nano.training.curriculum import Course, Sizes, rate_at
from h3runtime.nano.training.lectern import Batch, Bucket, Lectern
from h3runtime.nano.training.optimiser import clipped
from h3runtime.nano.training.pupil import Pupil
from h3runtime.nano.training.recording import Recordings
from h3runtime.nano.training.stopping import Stopping
from h3runtime.nano.training.tasks import Task, shares
from h3runtime.nano.training.text import encode_batch

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """rows: packed rows of a batch. low: share of bases drawn from the cleaner quarter on top of the even ones.

    ema: decay a step, at most. rate, warm, cool: see `curriculum.rate_at`. span: which part of the whole training a run
    is. graph: record steps on a GPU. compiled: try blocks through `torch.compile` too. wait: steps after which the host
    waits for the device, so as not to run ahead of it. tell, every: seconds between lines, and between pieces.
    """

    rows: int = 27648
    rate: float = 2e-3
    warm: int = 150
    cool: float = 0.4
    ema: float = 0.999
    clip: float = 1.0
    low: float = 0.15
    audio_weight: float = 1.0
    span: tuple[float, float] = (0.0, 1.0)
    graph: bool = True
    compiled: bool = False
    wait: int = 16
    tell: float = 5.0
    every: float = 60.0
    seed: int = 0
    sizes: Sizes = field(default_factory=Sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Knobs:
    """What changes from step to step, on the device, []: the rate, and the shares of a new step in the mean weights and
    in the mean figures."""

    rate: torch.Tensor
    average: torch.Tensor
    figures: torch.Tensor

    @classmethod
    def on(cls, device: torch.device) -> Knobs:
        return cls(*(torch.zeros((), device=device) for _ in range(3)))


class Trainer:
    """Everything of one run. through: the blocks' forward; recordings: how steps are run. Both may be set anew."""

    def __init__(self, pupil: Pupil, lectern: Lectern, recipe: Recipe, say: Say, world: int = 1, rank: int = 0) -> None:
        self.pupil, self.lectern, self.recipe, self.say, self.world = pupil, lectern, recipe, say, world
        self.device = pupil.dit.device
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.seed = recipe.seed * 7919 + rank
        self.through: transformer.BlockForward = transformer.block_forward
        self.recordings = Recordings.on(self.device, self.seed, say, wanted=False)
        self.knobs = Knobs.on(self.device)
        self.figures = torch.zeros(3, device=self.device)
        self.steps = self.falls = 0
        self.seen: Counter[str] = Counter()
        self._buckets: dict[tuple[int, str], Bucket] = {}

    def step(self, bucket: Bucket, share: float) -> None:
        """One update, or a few where one is recorded; a `share` of the whole time is over."""
        self._turn(share)
        steps = self.recordings.run(bucket.name, lambda: self._update(bucket))
        self.steps += steps
        self.seen[bucket.task.name] += steps * bucket.count

    def bucket(self, number: int, task: Task) -> Bucket:
        """Of the recipe's rows, prepared once."""
        if (number, task.name) not in self._buckets:
            self._buckets[number, task.name] = self.lectern.bucket(number, task, rows=self.recipe.rows)
        return self._buckets[number, task.name]

    def _turn(self, share: float) -> None:
        recipe, knobs, step = self.recipe, self.knobs, self.steps
        rate = rate_at(step, share, rate=recipe.rate, warm=recipe.warm, cool=recipe.cool)
        knobs.rate.fill_(rate / 2**self.falls)
        knobs.average.fill_(1 - min(recipe.ema, (1 + step) / (10 + step)))
        knobs.figures.fill_(1 / min(step + 1, 50))

    def _update(self, bucket: Bucket) -> None:
        """Nothing in it waits for the device, nothing comes from the host."""
        weights = self.pupil.optimiser.weights
        weights.forget()
        batch = self.lectern.draw(bucket, self.recordings.generator)
        with attention(self.device):
            video, audio = loss_of(self.pupil, batch, self.recipe, self.recordings.generator, self.dtype, self.through)
            torch.autograd.backward(video + self.recipe.audio_weight * audio)
        gradient = weights.gradient()
        if self.world > 1:
            dist.all_reduce(gradient)
            gradient.div_(self.world)
        norm = clipped(gradient, self.recipe.clip)
        self.pupil.optimiser.step(gradient, self.knobs.rate)
        with torch.no_grad():
            self.pupil.mean.lerp_(weights.values, self.knobs.average)
            self.figures.lerp_(torch.stack([video.detach(), audio.detach(), norm]), self.knobs.figures)

    def wait(self) -> None:
        """Until the device has done all steps."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def standing(self) -> str:
        """Mean figures of the last steps; where they aren't numbers, the run goes back to the last good weights."""
        video, audio, norm = self.figures.tolist()
        finite = bool(torch.isfinite(self.figures).all() & torch.isfinite(self.pupil.mean).all())
        self.pupil.guard(finite)
        if not finite:
            self.falls += 1
            self.figures.fill_(2.0)
            return "NOT FINITE: back to the last good weights, at half the rate"
        return f"video {video:.4f} audio {audio:.4f} norm {norm:.3f}"


@contextmanager
def attention(device: torch.device) -> Iterator[None]:
    """On a GPU without cuDNN's attention, which is built anew for every shape."""
    if device.type != "cuda":
        yield
        return
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        yield


def loss_of(
    pupil: Pupil,
    batch: Batch,
    recipe: Recipe,
    generator: torch.Generator,
    dtype: torch.dtype,
    through: transformer.BlockForward = transformer.block_forward,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean squared error of the video's and of the audio's velocity."""
    device, count = batch.video.device, batch.bucket.count
    base, lot = torch.rand(2, count, generator=generator, device=device)
    base = torch.where(lot < recipe.low, base * 0.25, base)
    video_sigma, audio_sigma = (sigma.view(-1, 1, 1) for sigma in transformer.sigmas_of(base))
    noises = [torch.randn(x.shape, generator=generator, device=device) for x in (batch.video, batch.audio)]
    video = torch.lerp(batch.video, noises[0], video_sigma)
    audio = torch.lerp(batch.audio, noises[1], audio_sigma)
    with torch.autocast(device.type, dtype, enabled=dtype is not torch.float32):
        text = transformer.refine(pupil.dit, encode_batch(pupil.encoder, batch.text), batch.rows.text_mask)
        u_audio, u_video = transformer.predict(
            pupil.dit, batch.rows, text, batch.visual, batch.audible, audio, video, base, through
        )
    return F.mse_loss(u_video, batch.video - noises[0]), F.mse_loss(u_audio, batch.audio - noises[1])


def compiled_block() -> transformer.BlockForward:
    """One block compiled for any batch and length: its elementwise passes fused, shared by all blocks."""
    compiled: transformer.BlockForward = torch.compile(transformer.block_forward, dynamic=True)
    return compiled


class Diary:
    """What is said and kept of a run, now and then: lines with the pace, and pieces."""

    def __init__(self, trainer: Trainer, out: Path, begin: float) -> None:
        self.trainer, self.out, self.begin = trainer, out, begin
        self.told = self.saved = time.monotonic()
        self.known = trainer.steps

    def note(self, share: float) -> None:
        """After a step."""
        trainer, now = self.trainer, time.monotonic()
        if trainer.steps <= 3 or now - self.told > trainer.recipe.tell:
            pace = (trainer.steps - self.known) / max(now - self.told, 1e-9)
            told = f"step {trainer.steps} {now - self.begin:.0f} s {pace:.1f} steps/s {trainer.standing()}"
            trainer.say(f"{told} share {share:.2f}")
            self.told, self.known = time.monotonic(), trainer.steps
        if now - self.saved > trainer.recipe.every:
            self.saved = now
            trainer.pupil.save(self.out)

    def end(self) -> None:
        trainer = self.trainer
        trainer.say(f"in the end {trainer.standing()}")
        trainer.say(f"{trainer.steps} steps, {sum(trainer.seen.values())} sequences a device: {shares(trainer.seen)}")
        trainer.pupil.save(self.out)


def train(
    trainer: Trainer,
    *,
    seconds: float,
    out: Path,
    rank: int = 0,
    steps: int | None = None,
    choose: Callable[[Trainer, Bucket], None] | None = None,
) -> int:
    """Train for `seconds`, or `steps` if given, at least one; leave the mean in the weights. The number of steps.

    Pieces go to `out` now and then and at the end, which an interrupt brings about early. choose: sets how steps are
    run, with the first bucket to try it on.
    """
    begin, (first, last) = time.monotonic(), trainer.recipe.span
    weights = trainer.recipe.sizes.weights[: len(trainer.lectern.shelves)]
    course = Course(weights, trainer.lectern.has, trainer.seed)
    gc.collect()
    gc.freeze()  # captions by the hundred thousand, which every recording would look through
    with Stopping() as stopping:
        if choose is not None:
            choose(trainer, trainer.bucket(*course.pairs[0]))
        diary = Diary(trainer, out, begin)
        while True:
            gone = trainer.steps / steps if steps else (time.monotonic() - begin) / max(seconds, 1e-9)
            gone = _agreed(1.0 if stopping.asked else gone, trainer)
            if gone >= 1 and trainer.steps:
                break
            share = first + (last - first) * min(gone, 1.0)
            trainer.step(trainer.bucket(*course.draw(share)), share)
            if trainer.steps % trainer.recipe.wait == 0:
                trainer.wait()
            if rank == 0:
                diary.note(share)
    if rank == 0:
        diary.end()
    trainer.pupil.swap()
    return trainer.steps


def _agreed(share: float, trainer: Trainer) -> float:
    """The same share on every device, asked of the first one now and then, so that all leave the loop together."""
    if trainer.world == 1:
        return share
    if trainer.steps % 10 and trainer.steps > 10:
        return min(share, 0.999)
    told = torch.tensor([share], device=trainer.device)
    dist.broadcast(told, 0)
    return float(told)
