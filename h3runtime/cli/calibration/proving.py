"""What a search found as evidence: every figure with what it was measured on. Fed by `calibrate`."""

from __future__ import annotations

from datetime import UTC, datetime

from h3runtime import __version__
from h3runtime.cli.calibration.outcome import DIGITS, Outcome, Timed
from h3runtime.cli.calibration.prompts import Prompts
from h3runtime.cli.calibration.size import Size
from h3runtime.core import EngineFacts, SamplerSettings
from h3runtime.quality.bucket import Bucket, Sampling
from h3runtime.quality.evidence import KIND, Evidence, Notes, weights_of
from h3runtime.quality.levels import Choice, Level


def evidence_of(
    level: Level,
    outcome: Outcome,
    timed: Timed,
    facts: EngineFacts,
    partition: str,
    size: Size,
    sampling: SamplerSettings,
    prompts: Prompts,
    exact: Choice,
) -> Evidence:
    """facts: of the engine that made the clips of the choice. exact: what the clips compared with were made by."""
    clips = outcome.clips
    transformer = next(part.file for part in facts.components if part.partition == partition)
    return Evidence(
        kind=KIND,
        level=level.name,
        weights=weights_of(facts, partition),
        partition=partition,
        device=facts.device,
        version=__version__,
        bucket=Bucket.of(size.width, size.height, size.frames, sampling.steps),
        sampling=Sampling.of(sampling),
        choice=outcome.choice,
        choice_notes=Notes.of(outcome.choice, facts),
        ssim=outcome.ssim,
        audio_db=outcome.audio_db,
        time_ratio=round(timed.ratio, DIGITS),
        exact_seconds=round(timed.exact_seconds, DIGITS),
        seconds=round(timed.seconds, DIGITS),
        forwards=round(sum(clip.forwards for clip in clips) / len(clips), DIGITS),
        skipped_steps=round(sum(clip.skipped_steps for clip in clips) / len(clips), DIGITS),
        prompts=outcome.prompts,
        prompts_sha256=prompts.sha256,
        seeds=outcome.seeds,
        width=size.width,
        height=size.height,
        frames=size.frames,
        steps=sampling.steps,
        exact_attention=exact.attention,
        exact_linear=exact.linear,
        transformer=transformer,
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
