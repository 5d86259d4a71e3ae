"""What a request would take of this engine: rows, forwards, work, memory, and what would fit instead.

Nothing is computed on the device and nothing of a request's size is allocated: texts are tokenised, sounds are measured
by their packets, all else is arithmetic on sizes. So it may be asked from any thread, also while a clip is made; it
shares the tokenizer and the models' sizes with that, which nobody changes. Fed by `resident` once all is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch

from h3runtime.backends.attention.select import Attentions
from h3runtime.conditioning.tokenizer import PromptTokenizer
from h3runtime.core import MIN_FRAMES, MIN_SIDE, SIDE_MULTIPLE, Estimate, GenerateSpec, Work
from h3runtime.engine.adapters import AdapterShelf
from h3runtime.engine.capacity import capacity_bytes, held_bytes
from h3runtime.engine.demand import Demand, Rows, as_shown, demand_of, rows_by_kind
from h3runtime.engine.linear_memory import resident_bytes
from h3runtime.engine.load import Models
from h3runtime.engine.memory_estimate import MemoryEstimate, ModelSizes, estimate, sizes_of
from h3runtime.engine.memory_formulas import Workspace, nothing
from h3runtime.engine.sound_lengths import SoundLengths
from h3runtime.engine.work import work_of
from h3runtime.packing.geometry import frames_at_most
from h3runtime.packing.rows import segment_rows


@dataclass(frozen=True, slots=True)
class Known:
    """What a request's sizes don't tell: tokens of its prompt, latents of its sounds."""

    prompt_rows: int
    sounds: Mapping[str, int]
    rows_of_label: Callable[[str], int]

    def rows(self, spec: GenerateSpec) -> Rows:
        segments = segment_rows(as_shown(spec), self.prompt_rows, self.sounds, self.rows_of_label)
        return tuple((segment.kind, segment.rows) for segment in segments)

    def demand(self, spec: GenerateSpec) -> Demand:
        return demand_of(spec, self.rows(spec))


class Estimator:
    """Knows what the engine holds from when it is made, and from `begin`, before any request. adapters: asked for what
    would be resident of them; None where there are none. attentions: asked for what the backends of a request take,
    where it names none the one called `attention`; None where they take nothing."""

    def __init__(
        self,
        models: Models,
        tokenizer: PromptTokenizer,
        device: torch.device,
        adapters: AdapterShelf | None = None,
        attentions: Attentions | None = None,
        attention: str = "",
    ) -> None:
        self._models, self._tokenizer, self._device = models, tokenizer, device
        self._weights = resident_bytes(models.modules())
        self._adapters = adapters
        self._attentions, self._attention = attentions, attention
        self._sounds = SoundLengths()
        self.begin()

    def begin(self) -> None:
        """What is held now is what is held between requests."""
        self._held = held_bytes(self._device) - (0 if self._adapters is None else self._adapters.bytes)

    def estimate(self, spec: GenerateSpec) -> Estimate:
        """BadMedia for a file that is gone, InvalidRequest for a task whose transformer isn't loaded or an illegal
        schedule."""
        sizes = self._sizes(spec)
        known = Known(self._rows_of(spec.prompt), self._sounds.latents(spec), self._rows_of)
        rows = known.rows(spec)
        demand = demand_of(spec, rows)
        memory = estimate(sizes, demand)
        capacity = capacity_bytes(self._device)
        return Estimate(
            rows=rows_by_kind(rows),
            forwards=demand.steps.computed,
            work=work_of(sizes, demand),
            memory=memory.told(),
            peak_bytes=memory.total,
            capacity_bytes=capacity,
            would_fit="" if memory.total <= capacity else would_fit(spec, known, sizes, capacity),
        )

    def memory(self, spec: GenerateSpec, rows: Rows) -> MemoryEstimate:
        """Of a request whose packed rows are known."""
        return estimate(self._sizes(spec), demand_of(spec, rows))

    def done(self, spec: GenerateSpec, timings: Mapping[str, float]) -> Work:
        """The work of a request that took so long."""
        stages = self.estimate(spec).work.stages
        return Work(stages, {stage: timings[stage] for stage in stages})

    def _sizes(self, spec: GenerateSpec) -> ModelSizes:
        shelf = self._adapters
        adapters = 0 if shelf is None else shelf.bytes_with(spec.loras, spec.task.runs_on)
        workspace = self._workspace(spec)
        return sizes_of(self._models, spec.task, self._held, self._weights, adapters, spec.linear, workspace)

    def _workspace(self, spec: GenerateSpec) -> Workspace:
        names = set(spec.attention_plan) or {spec.attention or self._attention}
        return nothing if self._attentions is None else partial(self._attentions.workspace_bytes, names)

    def _rows_of(self, text: str) -> int:
        return len(self._tokenizer.encode(text))


def would_fit(spec: GenerateSpec, known: Known, sizes: ModelSizes, capacity: int) -> str:
    """The longest clip of this canvas and the largest canvas of this length, near the same aspect, that fit."""

    def fits(other: GenerateSpec) -> bool:
        return estimate(sizes, known.demand(other)).total <= capacity

    shorter = next((s for s in _shorter(spec) if fits(s)), None)
    smaller = next((s for s in _smaller(spec) if fits(s)), None)
    told = []
    if shorter is not None:
        told.append(f"frames {shorter.frames} at {spec.width}x{spec.height}")
    if smaller is not None:
        told.append(f"{smaller.width}x{smaller.height} at {spec.frames} frames")
    return " or ".join(told) or "no length at this size, and no size at this length"


def _shorter(spec: GenerateSpec) -> Iterator[GenerateSpec]:
    frames = frames_at_most(spec.frames - 1)
    while frames is not None:
        yield replace(spec, frames=frames)
        frames = frames_at_most(frames - 1) if frames > MIN_FRAMES else None


def _smaller(spec: GenerateSpec) -> Iterator[GenerateSpec]:
    """The longer side shrinks by 32 px at a time, the other keeps the aspect."""
    longer, shorter = max(spec.width, spec.height), min(spec.width, spec.height)
    for side in range(longer - SIDE_MULTIPLE, MIN_SIDE - 1, -SIDE_MULTIPLE):
        other = max(MIN_SIDE, round(shorter * side / longer / SIDE_MULTIPLE) * SIDE_MULTIPLE)
        width, height = (side, other) if spec.width >= spec.height else (other, side)
        yield replace(spec, width=width, height=height)
