"""A comparison as JSON, on stdout and in `--output`.

    kind, a, b                        what was compared
    width, frames, shapes, ...        what both have in common
    identical                         whether nothing at all differs
    max, mean, rmse, cosine, rel_l2   of all tensors together; of a clip, of its pictures
    psnr, ssim                        of all frames together; the mean over the frames. Pictures only
    streams                           the same figures for `video` and `audio` apart (`x` and `denoised` of steps), and
                                      `log_mel_db` of sound
    joins, others                     the frames that a chunk join made and all others: how many, and their figures;
                                      null where there is none, both null where joins are unknown
    worst                             the points that differ most, worst first
    per_frame (per_latent_frame, per_audio_latent, per_step_x, per_step_denoised)
                                      every point
    limits, passed, failures          thresholds that were given, and what broke them

JSON has no infinity: `psnr` null beside `identical` true is infinite, `rel_l2` null means that a is all zero and b is
not, `cosine` null that only one of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from h3runtime import __version__
from h3runtime.cli.comparison.found import Found, Point, Series, mean_ssim, total, worst
from h3runtime.cli.comparison.limits import Limits, broken
from h3runtime.media.agreement import Agreement
from h3runtime.media.similarity import psnr


def facts_of(found: Found, limits: Limits, worst_count: int) -> dict[str, Any]:
    failures = broken(limits, found)
    facts: dict[str, Any] = {"kind": found.kind, "a": str(found.a), "b": str(found.b), **found.facts}
    facts |= {"identical": found.identical} | _differences(found.whole)
    if found.has_pictures:
        facts |= {"psnr": found.psnr, "ssim": found.ssim}
    facts["streams"] = _streams(found)
    if found.series:
        main = found.series[0]
        facts |= groups(main) | {"worst": [_point(main, point) for point in worst(main, worst_count)]}
    facts |= {series.name: [_point(series, point) for point in series.points] for series in found.series}
    facts |= {"limits": limits.given, "passed": not failures, "failures": list(failures)}
    return facts | {"warnings": list(found.warnings), "version": __version__}


def groups(series: Series) -> dict[str, Any]:
    """`joins` and `others`. Steps have neither."""
    if series.noun == "step":
        return {}
    if not series.has_joins:
        return {"joins": None, "others": None}
    joins = [point for point in series.points if point.is_join]
    others = [point for point in series.points if not point.is_join]
    return {"joins": _group(series, joins, listed=True), "others": _group(series, others, listed=False)}


def _group(series: Series, points: Sequence[Point], *, listed: bool) -> dict[str, Any] | None:
    if not points:
        return None
    sums = total(point.sums for point in points)
    facts: dict[str, Any] = {"count": len(points), "identical": sums.identical}
    if listed:
        facts[f"{series.noun}s"] = [point.index for point in points]
    if series.noun == "frame":
        facts |= {"psnr": psnr(sums.mean_square), "ssim": mean_ssim(points)}
    return facts | _differences(sums)


def _streams(found: Found) -> dict[str, Any]:
    streams = {name: {"identical": sums.identical} | _differences(sums) for name, sums in found.streams.items()}
    if found.has_pictures:
        streams["video"] |= {"psnr": found.psnr, "ssim": found.ssim}
    if found.log_mel_db is not None and found.samples is not None:
        streams["audio"] |= {"log_mel_db": found.log_mel_db, "samples": min(found.samples)}
    return streams


def _differences(sums: Agreement) -> dict[str, float | None]:
    return {
        "max": sums.largest,
        "mean": sums.mean,
        "rmse": sums.rmse,
        "cosine": sums.cosine,
        "rel_l2": sums.rel_l2,
    }


def _point(series: Series, point: Point) -> dict[str, Any]:
    facts: dict[str, Any] = {series.noun: point.index}
    if point.seconds is not None:
        facts["seconds"] = point.seconds
    if series.has_joins:
        facts["join"] = point.is_join
    facts["identical"] = point.sums.identical
    if series.noun == "frame":
        facts |= {"psnr": psnr(point.sums.mean_square), "ssim": point.ssim}
    return facts | _differences(point.sums)
