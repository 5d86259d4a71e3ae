"""A judged request -> the spec that the engine is given, the same from a client and from the command line."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from h3runtime.api.judging.clip import Judged
from h3runtime.api.judging.resolve import sampling_of
from h3runtime.api.request import FormatBody, GenerateBody
from h3runtime.api.rules import Backends, levelled
from h3runtime.api.rules.reuse import reuse_of
from h3runtime.core import AdapterUse, EncodeSettings, GenerateSpec, RefinePass, TailRequest
from h3runtime.quality.evidence import Evidence


def spec_of(
    body: GenerateBody,
    judged: Judged,
    *,
    job_id: str,
    output: Path,
    scratch: Path,
    words: Mapping[str, Any],
    tail: TailRequest | None = None,
    backends: Backends | None = None,
    loras: tuple[AdapterUse, ...] = (),
    refine: RefinePass | None = None,
    evidence: Evidence | None = None,
) -> GenerateSpec:
    """words: the request as it came; what it holds of media is left out. A seed is drawn where it is left open.

    backends: what runs it, if that was judged already; else what the body names. loras: its adapters, judged.
    refine: its second pass, held to the server's upscaler; else to whichever will be there. evidence: of its quality
    level, which then says what runs it, whatever `backends` are.
    """
    resolved, body = judged.resolved, levelled(body, evidence)
    named = Backends(body.attention, body.linear)
    chosen = named if evidence is not None or backends is None else backends
    return GenerateSpec(
        job_id=job_id,
        task=resolved.task,
        prompt=judged.prompt,
        width=resolved.clip_size.width,
        height=resolved.clip_size.height,
        frames=resolved.frames,
        sampling=sampling_of(body),
        output=output,
        scratch=scratch,
        n=body.n,
        guides=judged.guides,
        references=judged.references,
        source=judged.source,
        tail=tail,
        attention=chosen.attention,
        attention_plan=resolved.attention_plan,
        linear=chosen.linear,
        reuse=reuse_of(body),
        loras=loras,
        refine=refine or resolved.refine,
        encode=encode_of(body.format),
        overwrite=body.overwrite,
        save_latents=body.save_latents,
        diagnostics=body.diagnostics is not None,
        diagnostic_latents=body.diagnostics is not None and body.diagnostics.latents,
        evidence=None if evidence is None else evidence.told,
        request=without_media(words),
    )


def encode_of(form: FormatBody | None) -> EncodeSettings:
    return (form or FormatBody()).settled()


def without_media(words: Any) -> Any:
    """The client's own words, with each data URL in them replaced by its hash."""
    if isinstance(words, list):
        return [without_media(item) for item in words]
    if isinstance(words, dict):
        return {name: _hashed(item) if name == "data" else without_media(item) for name, item in words.items()}
    return words


def _hashed(data: Any) -> Any:
    return "sha256:" + hashlib.sha256(data.encode()).hexdigest() if isinstance(data, str) else data
