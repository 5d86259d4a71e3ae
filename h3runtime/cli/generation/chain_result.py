"""What became of a chain, as the one JSON line of the command: the whole as of one clip, and a line for each clip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from h3runtime import __version__
from h3runtime.api.answers import check_answer, lora_answer, refine_answer
from h3runtime.cli.generation.chain_plan import Planned
from h3runtime.core import FPS, Clip, EncodeSettings, EngineFacts
from h3runtime.media.mux import WrittenClip


def chain_facts(
    planned: Sequence[Planned],
    clips: Sequence[Clip],
    written: WrittenClip,
    facts: EngineFacts,
    seconds: float,
    encode: EncodeSettings = EncodeSettings(),  # noqa: B008  # frozen
) -> dict[str, Any]:
    """seconds: that all of it took, loading left out. encode: how the whole was written. `cuts`: the frames at which
    clips end; the last is the total."""
    told = [_clip_facts(index, plan, clip) for index, (plan, clip) in enumerate(zip(planned, clips, strict=True))]
    return {
        "status": "succeeded",
        "output": str(written.output),
        "sha256": written.sha256,
        "bytes": written.bytes,
        "width": clips[0].width,
        "height": clips[0].height,
        "frames": written.frames,
        "seconds": written.frames / FPS,
        "fps": encode.fps,
        "format": asdict(encode),
        "samples": written.samples,
        "cuts": [plan.share.stop for plan in planned],
        "clips": told,
        "checkpoint": facts.checkpoint,
        "device": facts.device,
        "version": __version__,
        "warnings": _warnings(told),
        "timings": {"total": seconds},
        "startup": dict(facts.startup),
    }


def _clip_facts(index: int, plan: Planned, clip: Clip) -> dict[str, Any]:
    """`frames` are those that it was made of, `start` and `stop` those that it gives. sha256: of its own encoding, the
    same as of this request alone; None for one that was kept from an earlier run."""
    share, spec = plan.share, plan.spec
    told: dict[str, Any] = {
        "index": index,
        "task": spec.task.value,
        "prompt": spec.prompt,
        "start": share.start,
        "stop": share.stop,
        "overlap": share.overlap,
        "frames": share.frames,
        "seed": str(clip.seed),
        "steps": spec.sampling.steps,
        "forwards": clip.forwards,
        "skipped_steps": clip.skipped_steps,
        "attention": clip.attention,
        "linear": clip.linear,
        "quality": spec.request.get("quality"),
        "evidence": None if spec.evidence is None else dict(spec.evidence),
        "loras": [lora_answer(use) for use in spec.loras],
        "refine": refine_answer(spec.refine, clip),
        "sha256": clip.sha256,
        "warnings": [*plan.ruling.judged.verdict.warnings, *clip.warnings],
        "checks": {name: check_answer(check) for name, check in clip.checks.items()},
        "timings": dict(clip.timings),
    }
    return told if clip.diagnostics is None else told | {"diagnostics": dict(clip.diagnostics)}


def _warnings(told: Sequence[dict[str, Any]]) -> list[str]:
    """Of all clips: what is said of each of them once, what is said of some under their indices."""
    counts: dict[str, list[int]] = {}
    for clip in told:
        for warning in dict.fromkeys(clip["warnings"]):
            counts.setdefault(warning, []).append(clip["index"])
    return [
        warning if len(indices) == len(told) else f"[{', '.join(map(str, indices))}]: {warning}"
        for warning, indices in counts.items()
    ]
