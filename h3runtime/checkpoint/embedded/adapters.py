"""The embedded model's own adapters: files in the package, in a public layout, that were distilled from its masters.

    h3runtime/nano/adapters/     *.safetensors, and SHA256SUMS, to which the engine holds them as any other's

They are no part of `derived.json`: the model is the same with and without them, and so is the hash by which it is
known. Fed by `engine` with the transformers that it loaded; made by `nano.training.turbo`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from h3runtime.checkpoint.embedded.packaged import ADAPTERS
from h3runtime.checkpoint.embedded.sets import is_embedded
from h3runtime.checkpoint.sources import open_source

SUFFIX = ".safetensors"


def own_adapters(transformers: Iterable[Path], folder: Path = ADAPTERS) -> tuple[Path, ...]:
    """By name, if one of these files was derived from the package's masters, in whatever format; else none: another
    model's layers have other shapes, and other weights even where they haven't. CheckpointError for a file that can't
    be opened."""
    if not any(_is_embedded(path) for path in transformers):
        return ()
    return tuple(sorted(folder.glob(f"*{SUFFIX}")))


def _is_embedded(path: Path) -> bool:
    with closing(open_source(path)) as source:
        return is_embedded(source.metadata)
