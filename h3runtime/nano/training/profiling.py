"""Where a step of the joint training spends its time: asked before a long run on a machine that is new.

Times steps of the commonest shape as they are run and compiled, and lists what the device did longest. Fed by
`command` with everything that training needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from h3runtime.nano.training import joint, transformer
from h3runtime.nano.training.optimiser import Optimiser
from h3runtime.nano.training.tasks import TASKS, Lectern

STEPS = 12
LISTED = 22


def profile_joint(pupil: joint.Pupil, lectern: Lectern, recipe: joint.Recipe, say: Callable[[str], None]) -> None:
    """Milliseconds a step, eager and compiled, and the longest kernels of both."""
    for name, make in (("eager", lambda: transformer.block_forward), ("compiled", joint.compiled_block)):
        try:
            _one(name, make(), pupil, lectern, recipe, say)
        except RuntimeError as error:
            say(f"{name}: failed: {str(error)[:400]}")


def _one(
    name: str,
    through: transformer.BlockForward,
    pupil: joint.Pupil,
    lectern: Lectern,
    recipe: joint.Recipe,
    say: Callable[[str], None],
) -> None:
    cuda = pupil.dit.device.type == "cuda"
    optimiser = Optimiser([pupil.dit, pupil.encoder])
    dtype = torch.bfloat16 if cuda else torch.float32
    batch = lectern.draw(TASKS[0], 0)

    def step() -> None:
        video, audio = joint.loss_of(pupil, batch, recipe, dtype, through)
        torch.autograd.backward(video + audio)
        optimiser.step(0.0)
        pupil.average(0.999)

    def draw() -> None:
        lectern.draw()

    def timed(count: int, run: Callable[[], None]) -> float:
        begin = time.monotonic()
        for _ in range(count):
            run()
        if cuda:
            torch.cuda.synchronize()
        return 1000 * (time.monotonic() - begin) / count

    first = timed(1, step)
    timed(2, step)
    drawn = timed(STEPS, draw)
    say(f"{name}: first {first:.0f} ms, then {timed(STEPS, step):.1f} ms a step of {batch.video.shape[0]} sequences")
    say(f"{name}: a batch takes {drawn:.1f} ms to draw")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiled:
        timed(3, step)
    averages = profiled.key_averages()
    order = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    say(f"{name}: three steps\n{averages.table(sort_by=order, row_limit=LISTED, max_name_column_width=60)}")
