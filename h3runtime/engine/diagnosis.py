"""What `diagnostics` returns about one run, as the job's answer and the line of `generate` show it.

    step_seconds       of each step, in order, on the host's clock
    reuse              of a request with a `cache_mode`: the settings, `skipped`, the steps that were made of earlier
                       ones, counted from 0 as in step_seconds, and `changes`, by step the relative change of picture
                       and sound; of the steps that were asked about
    latents_sha256     of the final latents: fp32 bytes, video [1, 24, T, h, w], then audio [1, 32, 2, A]
    rows               packed rows: `total`, and of each kind of segment, 0 where there is none
    segments           in packed order, {kind, source, start, stop}: rows [start, stop); `source` counts the guides for
                       `cond` and `cond_audio`, the references for `ref_img` and `ref_audio`, each from 0 in packed
                       order, and is -1 for text, audio and video (dit-contract §2.1)
    conditioning       {media,text}_seconds, and how often the cache of either had an answer: _cache_hits, _cache_misses
    inputs             each medium, {field, kind, saw, got}: what its file holds, and what of it went into the model
                       (`conditions.told_inputs`)
    attention          {dispatches, fallbacks}: calls by the backend that ran them, and calls that one gave to another,
                       with the reason (`counting.Tally.since`); of the blocks alone. kept_share, where sparse calls
                       count their tiles: of the pairs of picture cubes, those that were read, by backend
    linear             {backend, layers, left_to_dequant, weight_errors}: of the layers that follow the choice, why some
                       were left to the definition, and what encoding anew cost a layer's weight, relative L2; with
                       H3_NVFP4_FC2_LT_SPLITK1 also fc2_schedule, {dispatches, fallbacks}: products of an FC2 that its
                       known schedule ran, and those that it left, with the reason, both passes' together; and where a
                       layer multiplies NVFP4 activations, {packed, came_packed}: how many were packed for a product,
                       by who did it, and how many a producer had packed, those of replayed steps among them
    fused              {family, packed}: who made what lies between the products, and by linear, of how many blocks it
                       handed it NVFP4
    cuda_graphs        of recorded steps, since the engine began: mode, recordings and bytes held now, replays, fault,
                       why none is recorded any more, and `judged`: of each shape that was tried, by its packed rows,
                       eager_ms, a forward by the host, of that host_ms until all was launched, recorded_ms,
                       recording_ms, bytes, and why there is none (`denoiser.recordings.Judged`)
    memory             peak bytes by stage, as far as they were measured
    memory_estimate    bytes that closed formulas give for this run (`memory_estimate`)
    loras              the request's adapters, if any: what the answer tells of them, and the SHA-256 of their files
    refine             of a clip with a second pass: its step_seconds, rows, segments and attention, which above are the
                       first pass's, and first_sha256, of the latents that the first one ended with
    step_latents       with `{"latents": true}`: the file beside the clip that holds step{i}.x and step{i}.denoised, and
                       refine.step{i}.x, refine.step{i}.denoised of a second pass

An ordinary request goes through the same calls and keeps nothing: no copy, no device event, no clock reading.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Protocol

import torch

from h3runtime.backends.attention.counting import Tally
from h3runtime.core import GenerateSpec, Latents, PackedLayout
from h3runtime.denoiser.sampler import Step
from h3runtime.engine.demand import rows_by_kind, rows_of
from h3runtime.engine.extras import steps_path
from h3runtime.engine.memory_estimate import MemoryEstimate


class Counting(Protocol):
    """A cache that counts what it had and what it hadn't."""

    hits: int
    misses: int


class Diagnosis:
    """Fed with each finished step; `report` is None unless the request asked.

    latents: with `{"latents": true}`, the packed state before each step and the estimate at it (dit-contract §5.2).
    prefix: of their names.
    """

    def __init__(self, spec: GenerateSpec, prefix: str = "") -> None:
        self._spec, self._prefix = spec, prefix
        self._times: list[float] = []
        self._skipped: list[int] = []
        self._changes: dict[int, tuple[float, float]] = {}
        self._conditioning: dict[str, float] = {}
        self._attention: dict[str, Any] = {}
        self._refine: dict[str, Any] = {}
        self.latents: dict[str, torch.Tensor] = {}
        self._last = 0.0

    @contextmanager
    def conditioning(self, part: str, cache: Counting) -> Iterator[None]:
        """Around one part of the conditioning: how long it took, and how often its cache answered."""
        if not self._spec.diagnostics:
            yield
            return
        began, hits, misses = time.monotonic(), cache.hits, cache.misses
        yield
        found = {
            f"{part}_seconds": time.monotonic() - began,
            f"{part}_cache_hits": cache.hits - hits,
            f"{part}_cache_misses": cache.misses - misses,
        }
        # A clip of two passes is conditioned twice.
        self._conditioning |= {name: self._conditioning.get(name, 0) + value for name, value in found.items()}

    @contextmanager
    def attending(self, tally: Tally) -> Iterator[None]:
        """Around the steps: which attention backend ran how many calls."""
        if not self._spec.diagnostics:
            yield
            return
        before = tally.look()
        yield
        self._attention = tally.since(before)

    @contextmanager
    def second_pass(self, layout: PackedLayout, first: Latents) -> Iterator[Diagnosis]:
        """Around a second pass, which is diagnosed by itself. layout: its own. first: what it begins with."""
        # It computes every step, whatever the first one spares (`refine_passes`).
        again = Diagnosis(replace(self._spec, reuse=None), "refine.")
        yield again
        if self._spec.diagnostics:
            self._refine = {"first_sha256": sha256_of_latents(first), **again.of_pass(layout)}
            self.latents |= again.latents

    def begin(self) -> None:
        """Sampling starts now."""
        self._last = time.monotonic()

    def step(self, step: Step) -> None:
        """A step is done and known to be finite, so the host clock has waited for the device."""
        if not self._spec.diagnostics:
            return
        now = time.monotonic()
        self._times.append(now - self._last)
        self._last = now
        if step.reused:
            self._skipped.append(step.index)
        if step.change is not None:
            self._changes[step.index] = step.change
        if self._spec.diagnostic_latents:
            self.latents[f"{self._prefix}step{step.index}.x"] = step.x.cpu()
            self.latents[f"{self._prefix}step{step.index}.denoised"] = step.denoised.cpu()

    def report(
        self,
        latents: Latents,
        layout: PackedLayout,
        inputs: Sequence[Mapping[str, Any]],
        memory: Mapping[str, int],
        estimated: Callable[[], MemoryEstimate],
    ) -> dict[str, Any] | None:
        if not self._spec.diagnostics:
            return None
        found: dict[str, Any] = {
            "latents_sha256": sha256_of_latents(latents),
            **self.of_pass(layout),
            "conditioning": self._conditioning,
            "inputs": list(inputs),
            "memory": dict(memory),
            "memory_estimate": estimated().told(),
        }
        if self._spec.loras:
            found["loras"] = [asdict(use) for use in self._spec.loras]
        if self._refine:
            found["refine"] = self._refine
        if self.latents:
            found["step_latents"] = steps_path(self._spec.output).name
        return found

    def of_pass(self, layout: PackedLayout) -> dict[str, Any]:
        """What is told of each pass of a clip."""
        return {
            "step_seconds": self._times,
            **self._reused(),
            "rows": {"total": layout.rows, **rows_by_kind(rows_of(layout))},
            "segments": [
                {"kind": s.kind.value, "source": s.source, "start": s.start, "stop": s.stop} for s in layout.segments
            ],
            "attention": self._attention,
        }

    def _reused(self) -> dict[str, Any]:
        if self._spec.reuse is None:
            return {}
        changes = {str(step): list(change) for step, change in self._changes.items()}
        return {"reuse": {**asdict(self._spec.reuse), "skipped": self._skipped, "changes": changes}}


def sha256_of_latents(latents: Latents) -> str:
    """Of the fp32 bytes, video then audio, each in its own axis order."""
    digest = hashlib.sha256()
    for stream in (latents.video, latents.audio):
        digest.update(stream.float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
