"""The file of prompts: what the clips of a calibration are asked for with.

A text has one prompt a line; a JSON list (the first character is `[`) has texts and objects, which are requests as
`POST /generate` takes them, with paths from the file's folder on: prompts with their pictures, clips and voices. What
a calibration sets itself (canvas, length, schedule, seed, backends, reuse) may not stand in them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from h3runtime.errors import Offence, invalid

SET_HERE = frozenset(
    [
        "width",
        "height",
        "aspect_ratio",
        "short_edge",
        "frames",
        "seconds",
        "steps",
        "sampler",
        "scheduler",
        "shift",
        "audio_shift",
        "seed",
        "attention",
        "attention_plan",
        "linear",
        "quality",
        "cache_mode",
        "cache_threshold",
        "cache_start_percent",
        "cache_end_percent",
        "cache_subsample_factor",
        "cache_forecast",
        "n",
        "loras",
        "refine",
        "output",
        "overwrite",
        "format",
        "save_latents",
        "diagnostics",
        "priority",
        "callback_url",
    ]
)


@dataclass(frozen=True, slots=True)
class Prompts:
    """requests: raw, each with a prompt. folder: where their paths begin. sha256: of the file."""

    requests: tuple[dict[str, Any], ...]
    folder: Path
    sha256: str


def read_prompts(path: Path, least: int) -> Prompts:
    """InvalidRequest for a file that can't be read, has fewer than `least`, the same one twice, or says too much."""
    try:
        data = path.read_bytes()
        text = data.decode("utf-8").strip()
        entries = json.loads(text) if text.startswith("[") else [line for line in text.splitlines() if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise invalid([Offence("prompts", f"{path.name} can't be read: {error}", LEGAL)]) from None
    requests = [{"prompt": entry.strip()} if isinstance(entry, str) else entry for entry in entries]
    offences = [offence for index, request in enumerate(requests) for offence in _judge(index, request)]
    if len({json.dumps(request, sort_keys=True) for request in requests}) < len(requests):
        offences.append(Offence("prompts", f"{path.name} has the same entry twice", "different prompts"))
    if len(requests) < least:
        offences.append(Offence("prompts", f"{path.name} has {len(requests)} prompts", f"{least} or more"))
    if offences:
        raise invalid(offences)
    return Prompts(tuple(requests), path.absolute().parent, hashlib.sha256(data).hexdigest())


LEGAL = "a text of one prompt a line, or a JSON list of texts and requests"


def _judge(index: int, request: Any) -> list[Offence]:
    if not isinstance(request, dict) or "prompt" not in request:
        return [Offence(f"prompts[{index}]", "is no text and no request with a prompt", LEGAL)]
    legal = "prompt, task and media"
    return [
        Offence(f"prompts[{index}].{name}", "is set by the calibration", legal) for name in request if name in SET_HERE
    ]
