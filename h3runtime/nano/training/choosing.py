"""How the steps of the joint training are run: tried on the spot, since only the machine knows.

    eager       every operation launched by the host
    recorded    the whole step as one CUDA graph
    compiled    blocks through torch.compile, recorded where that works; a minute of compiling, so only if asked for

Each way is timed on real steps of the first bucket, so nothing is lost but the compiling; the fastest is kept. A way
that fails is said and left out. Fed by `command` to `joint.train` and to `profiling`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from h3runtime.nano.training import transformer
from h3runtime.nano.training.joint import Trainer, compiled_block
from h3runtime.nano.training.lectern import Bucket
from h3runtime.nano.training.recording import SETTLING, Recordings

STEPS = 10
Way = tuple[str, Callable[[], transformer.BlockForward], bool]
"""Name, the blocks' forward, and whether steps are recorded."""


def ways_for(trainer: Trainer) -> Iterator[Way]:
    """What may be tried. With several devices nothing is recorded: gradients are averaged outside of graphs."""
    alone = trainer.device.type == "cuda" and trainer.world == 1
    yield "eager", lambda: transformer.block_forward, False
    if alone and trainer.recipe.graph:
        yield "recorded", lambda: transformer.block_forward, True
    if trainer.recipe.compiled:
        yield ("compiled, recorded" if alone and trainer.recipe.graph else "compiled"), compiled_block, alone


def choose(trainer: Trainer, bucket: Bucket) -> None:
    """Leave the fastest way in the trainer; where there is but one, nothing is timed."""
    ways = list(ways_for(trainer))
    if len(ways) == 1:
        return
    tried = {way[0]: _tried(trainer, bucket, way) for way in ways}
    found = {name: timed for name, timed in tried.items() if timed is not None}
    best = min(found, key=lambda name: found[name][0])
    _, trainer.through, trainer.recordings = found[best]
    trainer.say(f"steps are run {best}")


def _tried(trainer: Trainer, bucket: Bucket, way: Way) -> tuple[float, transformer.BlockForward, Recordings] | None:
    """Milliseconds a step, and what to set for it; None where it fails."""
    name, make, recorded = way
    recordings = Recordings.on(trainer.device, trainer.seed, trainer.say, recorded)
    try:
        trainer.through, trainer.recordings = make(), recordings
        first = _timed(trainer, bucket, SETTLING + 1)
        steps = _timed(trainer, bucket, STEPS)
    except Exception as error:  # a compiler's are of many kinds
        trainer.say(f"{name}: FAILED, left out: {type(error).__name__}: {str(error).strip()[:300]}")
        return None
    trainer.say(f"{name}: begun in {first / 1000:.1f} s, then {steps / STEPS:.1f} ms a step ({bucket.name})")
    return steps, trainer.through, recordings


def _timed(trainer: Trainer, bucket: Bucket, steps: int) -> float:
    """Milliseconds that at least so many steps take."""
    begin, known = time.monotonic(), trainer.steps
    while trainer.steps - known < steps:
        trainer.step(bucket, trainer.recipe.span[0])
    trainer.wait()
    return 1000 * (time.monotonic() - begin)
