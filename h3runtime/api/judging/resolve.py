"""A readable body -> task, canvas, length and sampling, the same for a client of the service and for the command line.

Calls the rules that need no server. Fed by `admission` and by `h3runtime generate`; offences gather in the verdict.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from h3runtime.api import rules
from h3runtime.api.request import MAX_SEED, RANDOM_SEED, GenerateBody
from h3runtime.core import RefinePass, SamplerSettings, Task
from h3runtime.packing.geometry import Size, upscaled_canvas


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the rules made of a request. Means nothing while the verdict holds offences.

    guide_places: field of each guide (`first_frame`, `keyframes[1]`) -> its frame, in the order of the packed sequence.
    attention_plan: as `GenerateSpec` has it. refine: likewise, but for the upscaler, which a server has to have.
    """

    task: Task
    size: Size
    frames: int
    guide_places: Mapping[str, int]
    attention_plan: tuple[str, ...] = ()
    refine: RefinePass | None = None

    @property
    def clip_size(self) -> Size:
        """Pixels of the clip; `size` is the first pass's."""
        return self.size if self.refine is None else upscaled_canvas(self.size, self.refine.scale)


def resolve_request(
    body: GenerateBody,
    anchors: Mapping[str, Size],
    max_area: int,
    max_frames: int,
    verdict: rules.Verdict,
    source_frames: int | None = None,
) -> Resolved:
    """Every rule that needs no server: length, task, guides, references, masks, canvas, clips, plan, levels, refining.

    anchors: upright sizes of what could be opened and may give the canvas its aspect, the first of them the one that
    does. max_area in pixels, max_frames in frames. source_frames: as `rules.judge_length` has it.
    """
    frames = rules.judge_length(body, max_frames, verdict, source_frames)
    rules.judge_references(body, verdict)
    rules.judge_masks(body, frames, verdict)
    rules.judge_count(body, verdict)
    rules.judge_levels(body, verdict)
    task = rules.judge_task(body, frames, verdict)
    size = rules.judge_canvas(body, anchors, max_area, verdict)
    return Resolved(
        task=task,
        size=size,
        frames=frames,
        guide_places=rules.judge_guides(body, frames, verdict),
        attention_plan=rules.judge_plan(body, verdict),
        refine=rules.judge_refine(body, size, max_area, verdict),
    )


def sampling_of(body: GenerateBody) -> SamplerSettings:
    """The body's own values; a seed is drawn where it asks for one, so that those of all its clips are seeds."""
    return SamplerSettings(
        steps=body.steps,
        sampler=body.sampler,
        scheduler=body.scheduler,
        shift=body.shift,
        audio_shift=body.audio_shift,
        seed=secrets.randbelow(MAX_SEED + 2 - body.n) if body.seed == RANDOM_SEED else body.seed,
    )
