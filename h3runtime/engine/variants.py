"""Several clips of one request: a spec for each, and their files under their names together or not at all.

Clip i is the request of its own with seed + i, written into a folder inside the scratch folder; once all are there,
each gets its name. A request that fails or is stopped before that leaves nothing where the outputs go, and one that
meets a taken name on the way takes back those that it has placed. A single clip goes straight to its place, which is
whole or not at all already. Fed by `resident`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from h3runtime.core import Clip, GenerateSpec, TailRequest, variant_path
from h3runtime.engine.extras import steps_path
from h3runtime.engine.latents_file import latents_path
from h3runtime.media.delivery import deliver, disk_error, refuse_existing

STAGE = "mux"


@dataclass(frozen=True, slots=True)
class Variants:
    """spec: what was asked for. each: a spec of one clip, in order; diagnostics and tail are the first's."""

    spec: GenerateSpec
    each: tuple[GenerateSpec, ...]

    def publish(self, clips: Sequence[Clip], poll: Callable[[], None]) -> tuple[Clip, ...]:
        """The clips under their final names. OutputExists, JobDiskFull and EncoderFailed leave none of them. poll: may
        raise, before the first one has its name."""
        if self.spec.n == 1:
            return tuple(clips)
        poll()
        finals = [variant_path(self.spec.output, index, self.spec.n) for index in range(self.spec.n)]
        replaced = {final for final in finals if os.path.lexists(final)}
        placed: list[Path] = []
        try:
            for clip, final in zip(clips, finals, strict=True):
                deliver(clip.output, final, overwrite=self.spec.overwrite)
                placed.append(final)
            for clip, final in zip(clips, finals, strict=True):
                placed += _place_others(clip.output, final)
            self._place_tail()
        except BaseException as error:
            _take_back(path for path in placed if path not in replaced)
            if isinstance(error, OSError):
                raise disk_error(error, STAGE) from error
            raise
        return tuple(_named(clip, final) for clip, final in zip(clips, finals, strict=True))

    def _place_tail(self) -> None:
        asked, made = self.spec.tail, self.each[0].tail
        if asked is not None and made is not None:
            near = asked.path.with_name(f".{asked.path.name}")
            try:
                shutil.move(made.path, near)
                near.replace(asked.path)
            finally:
                near.unlink(missing_ok=True)


@contextmanager
def variants_of(spec: GenerateSpec) -> Iterator[Variants]:
    """OutputExists before any work if one of several names is taken; the scratch files are gone in the end."""
    if spec.n == 1:
        yield Variants(spec, (spec,))
        return
    for index in range(spec.n):
        refuse_existing(variant_path(spec.output, index, spec.n), overwrite=spec.overwrite)
    with tempfile.TemporaryDirectory(prefix=".variants-", dir=spec.scratch, ignore_cleanup_errors=True) as folder:
        yield Variants(spec, tuple(_variant(spec, index, Path(folder)) for index in range(spec.n)))


def _variant(spec: GenerateSpec, index: int, folder: Path) -> GenerateSpec:
    is_first = index == 0
    tail = None if spec.tail is None or not is_first else TailRequest(folder / "tail.variant.mkv", spec.tail.frames)
    return replace(
        spec,
        n=1,
        sampling=replace(spec.sampling, seed=spec.sampling.seed + index),
        output=folder / variant_path(spec.output, index, spec.n).name,
        scratch=folder,
        tail=tail,
        diagnostics=spec.diagnostics and is_first,
        diagnostic_latents=spec.diagnostic_latents and is_first,
    )


def _place_others(made: Path, final: Path) -> Iterator[Path]:
    """What lies beside a clip."""
    for path_of in (latents_path, steps_path):
        if path_of(made).exists():
            yield path_of(made).replace(path_of(final))


def _take_back(placed: Iterable[Path]) -> None:
    """What was overwritten can't come back, so its successor stays."""
    for path in placed:
        path.unlink(missing_ok=True)


def _named(clip: Clip, final: Path) -> Clip:
    latents = None if clip.latents_output is None else latents_path(final)
    return replace(clip, output=final, latents_output=latents)
