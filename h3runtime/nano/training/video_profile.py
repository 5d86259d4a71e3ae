"""Where a step of the video VAE's training spends its time: asked before a long run on a machine that is new.

For batches of 32 and 64 views, with cuDNN's own choice of convolutions and with those it finds by search, launched one
by one and recorded: milliseconds a step on the clock, milliseconds the GPU was busy, and the longest kernels. On a CPU
one tiny batch, for the count of operations. Fed by `command`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from h3runtime.nano.training.video_vae import Tile, VideoRun, VideoTraining

COUNTS: Final = (32, 64)
STEPS: Final = 10
LISTED: Final = 15
Say = Callable[[str], None]


def profile_video_vae(device: torch.device, seconds: float, say: Say) -> None:
    """Say it all, in about `seconds`: kinds that no time is left for are left out."""
    ends = time.monotonic() + seconds
    cuda = device.type == "cuda"
    for search in (False, True) if cuda else (False,):
        if cuda:
            # Part of the key under which cuDNN's choices are kept: what was chosen without a search stays so else.
            torch.backends.cudnn.allow_tf32 = search
        for count in COUNTS if cuda else (2,):
            for graph in (False, True) if cuda else (False,):
                name = f"batch {count}, {'searched' if search else 'chosen'}, {'recorded' if graph else 'launched'}"
                if time.monotonic() > ends:
                    say(f"video VAE profile: {name}: no time left")
                    continue
                try:
                    _one(name, _run(device, count, search, graph), say)
                except RuntimeError as error:
                    say(f"video VAE profile: {name}: failed: {str(error)[:300]}")


def _run(device: torch.device, count: int, search: bool, graph: bool) -> VideoRun:
    size = 128 if device.type == "cuda" else 32
    tiles = (Tile(size, size, count, 1.0),)
    choices = VideoTraining(tiles=tiles, scenes=64, measured=1, measured_size=size, basis=2, graph=graph, search=search)
    return VideoRun(replace(choices, warm_up=1000), device, 0, None)


def _one(name: str, run: VideoRun, say: Say) -> None:
    cuda = run.device.type == "cuda"
    first, _ = _timed(run, 2)
    wall, issued = _timed(run, STEPS if cuda else 1)
    say(
        f"video VAE profile: {name}: first two {2 * first:.0f} ms; {wall:.1f} ms a step, "
        f"{issued:.1f} ms of it until the host was free"
    )
    activities = [ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
    with profile(activities=activities) as profiled:
        _timed(run, 1)
    kind = DeviceType.CUDA if cuda else DeviceType.CPU
    entries = [entry for entry in profiled.key_averages() if entry.device_type == kind]
    spent = {e.key: (e.self_device_time_total if cuda else e.self_cpu_time_total) / 1000 for e in entries}
    say(f"video VAE profile: {name}: busy {sum(spent.values()):.1f} ms, {sum(e.count for e in entries)} kernels")
    for entry in sorted(entries, key=lambda e: -spent[e.key])[:LISTED]:
        say(f"    {spent[entry.key]:8.3f} ms {entry.count:6d} x {entry.key[:110]}")


def _timed(run: VideoRun, steps: int) -> tuple[float, float]:
    """Milliseconds a step: until all is done, and until the host has issued it."""
    begin = time.monotonic()
    for _ in range(steps):
        run.step(0.5)
    issued = time.monotonic()
    if run.device.type == "cuda":
        torch.cuda.synchronize(run.device)
    return 1000 * (time.monotonic() - begin) / steps, 1000 * (issued - begin) / steps
