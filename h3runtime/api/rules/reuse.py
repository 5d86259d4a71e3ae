"""`cache_mode` and its fields: which steps of a run may be made from earlier ones.

A field without a mode does nothing, and is refused rather than left unread. With a quality level the level decides
(service-contract, `quality`). What the fields mean is `core.StepReuse`'s; what a request leaves open is its default,
and the threshold its mode's. Fed by `levels`, and by `judging.spec` for what the engine is given.
"""

from __future__ import annotations

from h3runtime.api.request import GenerateBody
from h3runtime.api.rules.verdict import Verdict
from h3runtime.core import REUSE_THRESHOLDS, StepReuse

CACHE_FIELDS = (
    "cache_threshold",
    "cache_start_percent",
    "cache_end_percent",
    "cache_subsample_factor",
    "cache_forecast",
)


def judge_reuse(body: GenerateBody, verdict: Verdict) -> None:
    if "cache_mode" in verdict.broken:
        return
    if body.cache_mode in (None, "none"):
        for name in CACHE_FIELDS:
            if getattr(body, name) is not None:
                verdict.refuse(name, "does nothing without a cache_mode", "leave it out")
        return
    if body.quality is not None:
        legal = "'none'" if body.quality == "exact" else "leave it out"
        verdict.refuse("cache_mode", f"{body.cache_mode!r} contradicts quality {body.quality!r}", legal)
    if body.cache_mode == "first_block" and body.cache_forecast is not None:
        verdict.refuse("cache_forecast", "first_block forecasts nothing", "leave it out")
    _judge_window(body, verdict)


def _judge_window(body: GenerateBody, verdict: Verdict) -> None:
    """The window must have some length; a share that the request leaves open is never the one to blame."""
    if verdict.broken & {"cache_start_percent", "cache_end_percent"}:
        return
    reuse = reuse_of(body)
    if reuse is None or reuse.start < reuse.end:
        return
    if body.cache_end_percent is not None:
        told = f"{reuse.end:g} is not above cache_start_percent, {reuse.start:g}"
        verdict.refuse("cache_end_percent", told, f"above {reuse.start:g}, up to 1")
    else:
        told = f"{reuse.start:g} is not below cache_end_percent, {reuse.end:g}"
        verdict.refuse("cache_start_percent", told, f"0 up to below {reuse.end:g}")


def reuse_of(body: GenerateBody) -> StepReuse | None:
    """What the fields of a sound request say; None where every step is computed."""
    if body.cache_mode is None or body.cache_mode == "none":
        return None
    mode = body.cache_mode
    threshold = REUSE_THRESHOLDS[mode] if body.cache_threshold is None else body.cache_threshold
    given = {
        "start": body.cache_start_percent,
        "end": body.cache_end_percent,
        "subsample": body.cache_subsample_factor,
        "forecast": body.cache_forecast,
    }
    return StepReuse(mode, threshold, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
