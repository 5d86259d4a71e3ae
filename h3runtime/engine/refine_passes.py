"""A request that is refined as two: what the first pass is asked for, and what the second.

    first    the request on its smaller canvas, from noise
    second   the clip's own canvas, `steps` evaluations from the sigma that `denoise` begins at; the same seed

The second pass draws its noise anew from the request's seed, as a second sampler node of ComfyUI with that seed does:
one generator, the larger canvas's values first. An attention plan counts the first pass's steps; the second runs on
what the plan ends with. Step reuse is the first pass's too: the second has few steps, and computes them all. Integers
and settings only. Asked by `resident`, `estimating` and `refine`.
"""

from __future__ import annotations

from dataclasses import replace

from h3runtime.core import GenerateSpec, RefinePass
from h3runtime.denoiser.schedule import forwards
from h3runtime.packing.geometry import Size, upscaled_canvas


def passes_of(spec: GenerateSpec) -> tuple[GenerateSpec, ...]:
    """The request itself, or one of each pass, none of which is refined."""
    if spec.refine is None:
        return (spec,)
    refine, plan = spec.refine, spec.attention_plan
    first = replace(spec, width=refine.width, height=refine.height, refine=None)
    second = replace(
        spec,
        sampling=replace(spec.sampling, steps=refine.steps, denoise=refine.denoise),
        attention=plan[-1] if plan else spec.attention,
        attention_plan=(),
        refine=None,
        reuse=None,
    )
    return first, second


def forwards_of(spec: GenerateSpec) -> tuple[int, ...]:
    """Evaluations of the model by pass."""
    return tuple(forwards(each.sampling) for each in passes_of(spec))


def asked_canvas(spec: GenerateSpec) -> Size:
    """The canvas that a request names: the first pass's."""
    return Size(spec.width, spec.height) if spec.refine is None else Size(spec.refine.width, spec.refine.height)


def on_canvas(spec: GenerateSpec, size: Size) -> GenerateSpec:
    """The request as if it named another canvas."""
    if spec.refine is None:
        return replace(spec, width=size.width, height=size.height)
    large = upscaled_canvas(size, spec.refine.scale)
    refine: RefinePass = replace(spec.refine, width=size.width, height=size.height)
    return replace(spec, width=large.width, height=large.height, refine=refine)
