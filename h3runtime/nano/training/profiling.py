"""Where a step of the joint training spends its time: asked before a long run on a machine that is new.

Tries the ways of `choosing` on the commonest bucket, says how many operations each part of a step dispatches, what
other buckets cost to begin, and what the device did longest. Fed by `command` with everything that training needs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from h3runtime.nano.training import transformer
from h3runtime.nano.training.choosing import choose
from h3runtime.nano.training.joint import Trainer, attention, loss_of
from h3runtime.nano.training.lectern import Bucket
from h3runtime.nano.training.optimiser import clipped
from h3runtime.nano.training.tasks import TASKS
from h3runtime.nano.training.text import encode_batch

LISTED = 22
SMALLER: tuple[float, ...] = (0.5, 2.0)
"""Batches of other sizes that are timed too, as multiples of the recipe's."""


def profile_joint(trainer: Trainer, seconds: float) -> None:
    """Say it all, in about `seconds`: what no time is left for is left out. Steps are real ones."""
    ends = time.monotonic() + seconds
    bucket = trainer.bucket(0, TASKS[0])
    choose(trainer, bucket)
    trainer.say(f"operations of a step: {counted(trainer, bucket)}")
    _listed(trainer, bucket)
    for share in SMALLER:
        if time.monotonic() < ends:
            _begun(trainer, replace(bucket, count=max(1, round(bucket.count * share))))
    for task in TASKS[1:]:
        if time.monotonic() < ends and trainer.lectern.has(0, task):
            _begun(trainer, trainer.bucket(0, task))


def counted(trainer: Trainer, bucket: Bucket) -> dict[str, int]:
    """How many operations each part of an eager step dispatches; views are among them."""
    pupil, generator, weights = trainer.pupil, trainer.recordings.generator, trainer.pupil.optimiser.weights
    counts = dict.fromkeys(("draw", "encoder", "forward", "backward", "gradient", "optimiser"), 0)
    with _counting(counts, "draw"):
        batch = trainer.lectern.draw(bucket, generator)
    with _counting(counts, "encoder"), attention(trainer.device), torch.no_grad():
        encode_batch(pupil.encoder, batch.text)
    with attention(trainer.device):
        with _counting(counts, "forward"):
            parts = loss_of(pupil, batch, trainer.recipe, generator, trainer.dtype, transformer.block_forward)
        with _counting(counts, "backward"):
            torch.autograd.backward(parts[0] + parts[1])
    with _counting(counts, "gradient"):
        gradient = weights.gradient()
        clipped(gradient, 1.0)
    with _counting(counts, "optimiser"):
        pupil.optimiser.step(gradient, torch.zeros((), device=trainer.device))
    return counts


class _Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Callable[..., object], types: Sequence[type], args: tuple[object, ...] = (), kwargs: object = None
    ) -> object:
        self.found[str(func)] += 1
        return func(*args, **(kwargs or {}))  # type: ignore[arg-type]


@contextmanager
def _counting(counts: dict[str, int], name: str) -> Iterator[None]:
    with _Count() as count:
        yield
    counts[name] += count.found.total()


def _begun(trainer: Trainer, bucket: Bucket) -> None:
    """How long a bucket takes to begin and then to step."""
    times = []
    for _ in range(2):
        begin, known = time.monotonic(), trainer.steps
        while trainer.steps - known < 8:
            trainer.step(bucket, 0.0)
        trainer.wait()
        times.append(time.monotonic() - begin)
    first, then = times[0], 1000 * times[1] / 8
    trainer.say(f"{bucket.name}: begun in {first:.1f} s, then {then:.1f} ms a step, {bucket.count / then:.1f} clips/ms")


def _listed(trainer: Trainer, bucket: Bucket) -> None:
    """The longest kernels of three steps, and how long the device was busy."""
    cuda = trainer.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiled:
        for _ in range(3):
            trainer.step(bucket, 0.0)
        trainer.wait()
    averages = profiled.key_averages()
    order = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    trainer.say(f"three steps\n{averages.table(sort_by=order, row_limit=LISTED, max_name_column_width=60)}")
