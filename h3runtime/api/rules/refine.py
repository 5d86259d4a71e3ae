"""`refine`: whether the clip may be as large as its second pass makes it, what that pass does, and who upscales it.

    judge_refine     the larger canvas and the second pass's settings; needs no server
    judge_upscaler   whether the loaded engine has an upscaler, and which: the request is held to that file

The request's own width and height, given or derived, are the first pass's; the clip's are `scale` times as many pixels,
each to the nearest multiple of 32 (dit-contract §9), and obey the same limit. Guides, keyframes, sources and masks are
fitted to both; references keep the sizes that the first canvas gives them.
"""

from __future__ import annotations

import math
from dataclasses import replace

from h3runtime.api.request import REFINE_SCALES, GenerateBody
from h3runtime.api.rules.verdict import Verdict
from h3runtime.core import AREA_CAP, EngineFacts, RefinePass
from h3runtime.packing.geometry import Size, upscaled_canvas

STEPS = 3
DENOISE = 0.1
"""Of a second pass that says nothing: from sigma 0.34 on at shift 12. More changes what is to be seen: from 0.50 on the
embedded model loses 2.4 points of what the judge finds right, from 0.34 none (99 prompts, `benchmarks/upscale.py`)."""
STEPS_OF_SCALE = 20
"""Scales are looked for in twentieths where one is advised."""


def judge_refine(body: GenerateBody, size: Size, max_area: int, verdict: Verdict) -> RefinePass | None:
    """size: the first pass's canvas. max_area: in pixels."""
    if body.refine is None or verdict.broken & {"refine", "width", "height"}:
        return None
    asked = body.refine
    if body.quality not in (None, "exact"):
        # Evidence is of clips as one pass makes them.
        verdict.refuse("quality", f"{body.quality!r} has no evidence of refined clips", "'exact', or no refine")
    large = upscaled_canvas(size, asked.scale)
    if large.area > max_area:
        told = f"{size.width}x{size.height} becomes {large.width}x{large.height}, {large.area} pixels"
        verdict.refuse("refine.scale", f"{asked.scale:g}: {told}, more than {max_area}", _legal(size, max_area))
    elif large.area > AREA_CAP:
        verdict.warnings.append(f"{large.area} refined pixels are more than {AREA_CAP}, the largest trained canvas")
    return RefinePass(
        width=size.width,
        height=size.height,
        scale=asked.scale,
        steps=STEPS if asked.steps is None else asked.steps,
        denoise=DENOISE if asked.denoise is None else asked.denoise,
    )


def judge_upscaler(
    body: GenerateBody, refine: RefinePass | None, facts: EngineFacts, verdict: Verdict
) -> RefinePass | None:
    """The pass, held to the upscaler that is there."""
    if body.refine is None:
        return None
    if facts.upscaler is None:
        legal = "null, or leave it out; H3_UPSCALER_PATH names a server's upscaler"
        # What else is wrong with it is of no use to anybody.
        verdict.offences[:] = [offence for offence in verdict.offences if offence.field != "refine.scale"]
        verdict.refuse("refine", "no upscaler is configured", legal)
        return None
    return None if refine is None else replace(refine, upscaler=facts.upscaler.sha256)


def _legal(size: Size, max_area: int) -> str:
    """The largest scale that fits, or else the canvas that fits the smallest one."""
    low, high = REFINE_SCALES
    count = math.floor((high - low) * STEPS_OF_SCALE)
    for index in range(count, -1, -1):
        scale = low + index / STEPS_OF_SCALE
        if upscaled_canvas(size, scale).area <= max_area:
            return f"{low:g}..{scale:g} at this size"
    return f"a canvas of at most {int(max_area / low**2)} pixels"
