"""Looks at whether to stop between the layers of a model, for pieces of work that nothing else divides.

A forward of 50 blocks takes minutes on a CPU, and so does the decode of a long sound. A look is a comparison on the
host: nothing waits for a device. Fed by `resident`, around a whole request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from h3runtime.core import Task
from h3runtime.engine.load import Models


@contextmanager
def polled(layers: Iterable[nn.Module], poll: Callable[[], None]) -> Iterator[None]:
    """`poll` is called before each of `layers`, and may raise."""

    def look(*_: object) -> None:
        poll()

    handles = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def layers_of(models: Models, task: Task) -> list[nn.Module]:
    """Of all that a request runs. The text encoder looks by itself, the video VAE between its tiles as well."""
    video, audio = models.vaes.video, models.vaes.audio
    transformer = [part for block in models.transformer_of(task).blocks for part in block.children()]
    decoder = [] if video.decoder is None else list(video.decoder.transformer_blocks)
    encoder = [] if video.encoder is None else smallest(video.encoder)
    return [*transformer, *decoder, *encoder, *smallest(audio)]


def smallest(model: nn.Module) -> list[nn.Module]:
    """Modules that have no others inside."""
    return [module for module in model.modules() if not any(True for _ in module.children())]
