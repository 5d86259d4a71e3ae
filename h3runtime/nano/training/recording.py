"""Steps of training as CUDA graphs: recorded once, replayed as one launch each.

A step of small kernels takes the host longer to launch than the device to run. A recorded step reads only tensors that
stay where they are: what changes from step to step (a rate, a weight of the loss) has to lie on the device. Knows no
model; fed by the training of the video VAE.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

SETTLING = 3
"""Steps on the stream that will record one (as PyTorch's notes on CUDA graphs advise); what is cached is so by
stream."""


class Recordings:
    """Steps by name. A name's first call runs it `SETTLING` times and records it; every later call replays.

    All share one pool of memory: they run one after another and leave nothing there that the next one needs.
    """

    def __init__(self, generator: torch.Generator) -> None:
        """generator: on the GPU, the only one that the steps draw from."""
        self.generator, self._replays = generator, dict[object, Callable[[], None]]()
        self._stream = torch.cuda.Stream(generator.device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, name: object, step: Callable[[], None]) -> int:
        """How many steps it was. RuntimeError where it can't be recorded: record nothing more then, and draw from
        another generator."""
        if name in self._replays:
            self._replays[name]()
            return 1
        self._replays[name] = self._record(step)
        return SETTLING

    def _record(self, step: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(self.generator.device):
            torch.cuda.synchronize()
            with torch.cuda.stream(self._stream):
                for _ in range(SETTLING):
                    step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.generator)
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                step()
            torch.cuda.synchronize()
        return graph.replay
