"""Steps of training as CUDA graphs: recorded once, replayed as one launch each.

A step of small kernels takes the host longer to launch than the device to run. A recorded step reads only tensors that
stay where they are: what changes from step to step (a rate, a weight of the loss) has to lie on the device, and what is
drawn by lot comes from `Recordings.generator`. Where a step can't be recorded this is said, and all steps run as they
are from then on. Knows no model; fed by the trainings of both VAEs and of the DiT.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import torch

SETTLING: Final = 3
"""Steps on the stream that will record one (as PyTorch's notes on CUDA graphs advise); what is cached is so by
stream."""
Step = Callable[[], None]
Say = Callable[[str], None]


class Recorder(Protocol):
    """Where steps settle and are recorded: a GPU, or what a test puts in its place."""

    def settle(self, step: Step) -> None:
        """Run the step `SETTLING` times where it will be recorded."""

    def record(self, step: Step, generator: torch.Generator) -> Step:
        """The step's replay; it isn't run meanwhile. RuntimeError where it can't be recorded."""


class Recordings:
    """Steps by name. A name's first call runs it `SETTLING` times and records it; every later call replays.

    generator: what steps draw from, ask for it in each. It is another one after a failure, for PyTorch leaves one that
    was being recorded unusable. failed: why nothing is recorded any more, or None.
    """

    def __init__(self, generator: torch.Generator, say: Say, recorder: Recorder | None = None) -> None:
        """recorder: None on a CPU, where steps run as they are."""
        self.generator, self.failed = generator, None if recorder else "there is no GPU"
        self._say, self._recorder = say, recorder
        self._replays: dict[object, Step] = {}

    @classmethod
    def on(cls, device: torch.device, seed: int, say: Say, wanted: bool = True) -> Recordings:
        """For steps on this device; recorded only where wanted and where it is a GPU."""
        recorder = CudaRecorder(device) if wanted and device.type == "cuda" else None
        return cls(torch.Generator(device).manual_seed(seed), say, recorder)

    def run(self, name: object, step: Step) -> int:
        """How many steps it was."""
        if name in self._replays:
            self._replays[name]()
            return 1
        if self._recorder is None or self.failed:
            step()
            return 1
        return self._begin(name, step, self._recorder)

    def _begin(self, name: object, step: Step, recorder: Recorder) -> int:
        recorder.settle(step)
        try:
            self._replays[name] = recorder.record(step, self.generator)
        except (RuntimeError, AttributeError, TypeError, AssertionError) as error:
            self.failed = str(error).strip().split("\n")[0][:300] or type(error).__name__
            self._say(f"NO CUDA GRAPH of {name}: ALL STEPS RUN EAGERLY FROM NOW ON: {self.failed}")
            self._replays.clear()
            self.generator = torch.Generator(self.generator.device).manual_seed(self.generator.initial_seed() + 1)
        return SETTLING


class CudaRecorder:
    """CUDA graphs that share one pool of memory: they run one after another and leave nothing there that the next one
    needs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def settle(self, step: Step) -> None:
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            with torch.cuda.stream(self._stream):
                for _ in range(SETTLING):
                    step()
            torch.cuda.synchronize()

    def record(self, step: Step, generator: torch.Generator) -> Step:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.device):
            graph.register_generator_state(generator)
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                step()
            torch.cuda.synchronize()
        return graph.replay
