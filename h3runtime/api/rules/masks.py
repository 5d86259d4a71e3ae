"""Masks against what they mask: there is a source, and spans of sound lie in the clip and don't overlap.

Whether the source has a sound is judged at admission, which measures it.
"""

from __future__ import annotations

from math import floor

from h3runtime.api.request import GenerateBody, MaskSpanBody
from h3runtime.api.rules.verdict import Verdict
from h3runtime.core import FPS


def judge_masks(body: GenerateBody, frames: int, verdict: Verdict) -> None:
    """frames: F of the target."""
    if body.masks is not None and body.source is None and "source" not in verdict.broken:
        verdict.refuse("masks", "masks nothing: there is no source", "masks beside a source, or none")
    if body.source is not None and body.masks is None and "masks" not in verdict.broken:
        verdict.warnings.append("source: there are no masks, so nothing of it is kept")
    if body.masks is not None and body.masks.audio is not None:
        spans = list(enumerate(body.masks.audio))
        if "frames" not in verdict.broken:
            _judge_range(spans, frames / FPS, verdict)
        _judge_overlaps(spans, verdict)


def _judge_range(spans: list[tuple[int, MaskSpanBody]], seconds: float, verdict: Verdict) -> None:
    # Cut, not rounded: what is told must be legal when it is sent.
    legal = f"seconds, 0..{floor(seconds * 1000) / 1000:g}"
    for index, span in spans:
        for name, at in (("start", span.start), ("end", span.end)):
            if at > seconds:
                told = f"{at:g} is beyond the end of the clip"
                verdict.refuse(f"masks.audio[{index}].{name}", told, legal)


def _judge_overlaps(spans: list[tuple[int, MaskSpanBody]], verdict: Verdict) -> None:
    in_time = sorted(spans, key=lambda item: item[1].start)
    if not in_time:
        return
    last, until = in_time[0][0], in_time[0][1].end
    for index, span in in_time[1:]:
        if span.start < until:
            told = f"begins before masks.audio[{last}] ends, at {until:g}"
            verdict.refuse(f"masks.audio[{index}].start", told, "spans that don't overlap")
        if span.end > until:
            last, until = index, span.end
