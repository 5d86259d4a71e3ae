"""A comparison of two sides as JSON, on stdout and in `report.json`.

    kind              `sides`
    request           what both share: task, prompt, seed, canvas, length
    a, b              each side: as it was written, what ran it, forwards, times, the engine's checks and diagnostics
    engines, why      `shared`, `beside` or `in turn`, and why
    identical         nothing differs anywhere: no step, no block, no picture, no sample
    steps             `pairing` by step or by sigma; `denoised`, `latents`: each pair of steps with the figures of both
                      streams, and of an estimate whether a side reused earlier ones for it; `final`: the final latents
    blocks            for each chosen step: `entering`, the sequence before block 0; `worst`, the block that adds most;
                      for each block its figures, its parts' and its worst part. Null with `why_no_blocks` where the
                      sides' blocks can't be compared
    video             psnr, ssim and differences of all frames together, joins and others, `worst` frames, `per_frame`
    audio             differences, `log_mel_db` of the whole and `per_span`
    files             what lies in the folder
    limits, passed, failures

Figures are `max`, `mean`, `rmse`, `cosine` and `rel_l2`, A being the reference; null as in `comparison.report`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from h3runtime import __version__
from h3runtime.cli.comparison.limits import Limits
from h3runtime.cli.comparison.report import facts_of as facts_of_clips
from h3runtime.cli.result import clip_facts
from h3runtime.cli.sides.attribution import StepBlocks
from h3runtime.cli.sides.found import SidesFound
from h3runtime.cli.sides.making import Made
from h3runtime.cli.sides.parts import BlockFound
from h3runtime.cli.sides.steps import StepPoint
from h3runtime.core import SAMPLE_RATE
from h3runtime.media.agreement import Agreement

WORST = 5
OF_BOTH = ("task", "prompt", "width", "height", "frames", "seconds", "seed")
NOT_TOLD = frozenset(
    {*OF_BOTH, "status", "output", "outputs", "bytes", "fps", "format", "samples", "latents", "version"}
)
"""Of what `generate` tells of a clip: what both share, and what has a place of its own."""
GONE = "step_latents"
"""Names a file that isn't kept."""


def facts_of(found: SidesFound, folder: Path, names: Sequence[str], limits: Limits) -> dict[str, Any]:
    a, b = (_clip(made) for made in (found.a, found.b))
    failures = tuple(_broken(limits, found))
    return {
        "kind": "sides",
        "request": {name: a[name] for name in OF_BOTH},
        "a": _side(found.a, a, folder),
        "b": _side(found.b, b, folder),
        "engines": found.way,
        "why": found.why,
        "identical": found.identical,
        "steps": _steps(found),
        "blocks": None if found.why_no_blocks else _blocks(found),
        "why_no_blocks": found.why_no_blocks or None,
        "video": _video(found),
        "audio": _audio(found),
        "files": [str(folder / name) for name in names],
        "limits": limits.given,
        "passed": not failures,
        "failures": list(failures),
        "version": __version__,
    }


def _clip(made: Made) -> dict[str, Any]:
    return clip_facts(made.spec, made.clip, tuple(made.half.ruling.judged.verdict.warnings), made.facts)


def _side(made: Made, told: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    diagnostics = {name: value for name, value in told["diagnostics"].items() if name != GONE}
    side = made.half.side
    return {
        "words": side.label,
        "request": dict(side.request),
        "settings": dict(side.settings),
        "output": str(folder / made.spec.output.name),
        "latents": str(folder / made.latents.name),
        **{name: value for name, value in told.items() if name not in NOT_TOLD},
        "diagnostics": diagnostics,
    }


def _steps(found: SidesFound) -> dict[str, Any]:
    steps = found.steps
    return {
        "pairing": steps.pairing,
        "denoised": [_step(point) | _reused(found, point) for point in steps.denoised],
        "latents": [_step(point) for point in steps.latents],
        "final": {name: figures(sums) for name, sums in steps.final.items()},
    }


def _step(point: StepPoint) -> dict[str, Any]:
    told = {"a": point.a, "b": point.b, "sigma_a": point.sigma_a, "sigma_b": point.sigma_b}
    return told | {name: figures(sums) for name, sums in point.streams.items()}


def _reused(found: SidesFound, point: StepPoint) -> dict[str, bool]:
    """Whether a side made its step of earlier ones, without asking the network."""
    return {"reused_a": point.a in found.a.reused, "reused_b": point.b in found.b.reused}


def _blocks(found: SidesFound) -> list[dict[str, Any]]:
    return [_at(step) for step in found.blocks]


def _at(step: StepBlocks) -> dict[str, Any]:
    worst_block = step.worst
    return {
        "step": step.step,
        "sigma": step.sigma,
        "entering": figures(step.entering),
        "worst": worst_block,
        "worst_part": None if worst_block is None else step.blocks[worst_block].worst,
        "blocks": [{"block": index} | _block(block) for index, block in enumerate(step.blocks)],
    }


def _block(found: BlockFound) -> dict[str, Any]:
    parts = {name: figures(sums) for name, sums in found.parts.items()}
    return figures(found.whole) | {"worst_part": found.worst, "parts": parts}


def _video(found: SidesFound) -> dict[str, Any]:
    """As `compare` tells of two clips, without what is told elsewhere."""
    told = facts_of_clips(found.clips.pictures, Limits(), WORST)
    kept = ("psnr", "ssim", "max", "mean", "rmse", "cosine", "rel_l2", "joins", "others", "worst", "per_frame")
    return {"identical": told["streams"]["video"]["identical"]} | {name: told[name] for name in kept}


def _audio(found: SidesFound) -> dict[str, Any]:
    pictures = found.clips.pictures
    spans = [
        {"seconds": span.start / SAMPLE_RATE, "log_mel_db": span.log_mel_db} | figures(span.sums)
        for span in found.clips.sound
    ]
    return figures(pictures.streams["audio"]) | {"log_mel_db": pictures.log_mel_db, "per_span": spans}


def _broken(limits: Limits, found: SidesFound) -> Iterator[str]:
    """`--max-rel-l2` is about the final latents of both streams, the others about the decoded clips."""
    pictures = found.clips.pictures
    if limits.min_psnr is not None and pictures.psnr is not None and pictures.psnr < limits.min_psnr:
        yield f"psnr {pictures.psnr:.6g} is below --min-psnr {limits.min_psnr:g}"
    if limits.min_ssim is not None and pictures.ssim < limits.min_ssim:
        yield f"ssim {pictures.ssim:.6g} is below --min-ssim {limits.min_ssim:g}"
    if limits.max_rel_l2 is not None:
        for name, sums in found.steps.final.items():
            if sums.rel_l2 is None or sums.rel_l2 > limits.max_rel_l2:
                value = "infinite" if sums.rel_l2 is None else f"{sums.rel_l2:.6g}"
                yield f"rel_l2 of the final {name} latents {value} is above --max-rel-l2 {limits.max_rel_l2:g}"
    distance = pictures.log_mel_db
    if limits.max_log_mel is not None and distance is not None and distance > limits.max_log_mel:
        yield f"log_mel_db {distance:.6g} is above --max-log-mel {limits.max_log_mel:g}"


def figures(sums: Agreement) -> dict[str, Any]:
    return {
        "identical": sums.identical,
        "max": sums.largest,
        "mean": sums.mean,
        "rmse": sums.rmse,
        "cosine": sums.cosine,
        "rel_l2": sums.rel_l2,
    }
