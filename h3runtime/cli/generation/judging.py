"""One raw request -> what the engine is given, by the very code that judges a client's.

What differs from a server: paths are this machine's own, from the folder of the request's file on; there are no uploads
and no jobs; names of backends and adapters, and what was trained, are judged once an engine is there that knows them.
Fed by `entries`; read by the command and by `chain_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from h3runtime.api import rules
from h3runtime.api.faults import Faults
from h3runtime.api.inputs.copies import Intake, MediaSource
from h3runtime.api.inputs.fetching import Fetcher
from h3runtime.api.inputs.opened import Inputs, OpenedClip
from h3runtime.api.judging.clip import Judged, judge_clip
from h3runtime.api.judging.continuation import FIELD as CONTINUE_FROM
from h3runtime.api.judging.spec import spec_of
from h3runtime.api.judging.twice import judge_twice
from h3runtime.api.request import ReadBody, read_body
from h3runtime.api.rules.reuse import reuse_of
from h3runtime.core import AdapterUse, EngineFacts, GenerateSpec
from h3runtime.errors import Offence, invalid
from h3runtime.quality.evidence import Evidence
from h3runtime.quality.shelf import Held
from h3runtime.settings import Settings

JOB_ID = "command-line"


@dataclass(frozen=True, slots=True)
class Ruling:
    """A request that was judged. `judged` means nothing while `faults` holds any. raw: its own words."""

    raw: Mapping[str, Any]
    read: ReadBody
    judged: Judged
    faults: Faults

    def spec(self, output: Path, scratch: Path) -> GenerateSpec:
        """Draws the seed if the request leaves it open, and keeps it among the words."""
        words = _without_folders(self.raw)
        spec = spec_of(self.read.body, self.judged, job_id=JOB_ID, output=output, scratch=scratch, words=words)
        return replace(spec, request={**spec.request, "seed": str(spec.sampling.seed)})


def rule_on(
    raw: Mapping[str, Any], folder: Path, copies: Path, settings: Settings, continued: OpenedClip | None = None
) -> Ruling:
    """folder: where relative paths begin. copies: a folder for media that are no files yet. continued: what
    `continue_from` names, for a clip that isn't made yet."""
    read = read_body(raw)
    faults = Faults(read.offences)
    fetcher = Fetcher(settings.url_allow, settings.max_upload_bytes)
    intake = Intake(MediaSource({}, folder, settings.max_upload_bytes, fetcher, is_own=True), copies)
    there = read.body if continued is None else read.body.model_copy(update={CONTINUE_FROM: None})

    def judge(inputs: Inputs) -> Judged:
        clips = {} if continued is None else {CONTINUE_FROM: continued}
        whole = replace(inputs, clips={**inputs.clips, **clips})
        return judge_clip(read, whole, settings.max_area, settings.max_frames)

    return Ruling(raw, read, judge_twice(there, intake, None, faults, judge), faults)


NO_EVIDENCE = Held()


def judge_with_engine(
    rulings: Sequence[Ruling], facts: EngineFacts, *, is_chain: bool, held: Held = NO_EVIDENCE
) -> tuple[tuple[AdapterUse, ...], ...]:
    """Backends, adapters and the upscaler that requests ask for, against what the loaded engine has; and lengths,
    against what it was trained on. held: evidence of the quality levels that they ask for. The adapters of each
    request."""
    offences, adapters = [], []
    for index, ruling in enumerate(rulings):
        verdict = rules.Verdict(ruling.read)
        rules.judge_backends(ruling.read.body, facts, verdict)
        adapters.append(rules.judge_loras(ruling.read.body, ruling.judged.resolved.task, facts, verdict))
        rules.judge_upscaler(ruling.read.body, ruling.judged.resolved.refine, facts, verdict)
        _evidence(ruling, facts, held, verdict)
        ruling.judged.verdict.warnings += verdict.warnings
        rules.judge_training(ruling.judged.resolved.frames, facts, ruling.judged.verdict)
        at = f"[{index}]." if is_chain else ""
        offences += [Offence(at + o.field, o.message, o.legal) for o in verdict.offences]
    if offences:
        raise invalid(offences)
    return tuple(adapters)


def settled(spec: GenerateSpec, ruling: Ruling, facts: EngineFacts, held: Held) -> GenerateSpec:
    """`spec` with the attention, linear and reuse that its quality level chooses, of a request that was judged."""
    verdict = rules.Verdict(ruling.read)
    evidence = _evidence(ruling, facts, held, verdict)
    body = rules.levelled(ruling.read.body, evidence)
    chosen = rules.judge_backends(body, facts, verdict)
    told = None if evidence is None else evidence.told
    return replace(spec, attention=chosen.attention, linear=chosen.linear, reuse=reuse_of(body), evidence=told)


def _evidence(ruling: Ruling, facts: EngineFacts, held: Held, verdict: rules.Verdict) -> Evidence | None:
    resolved = ruling.judged.resolved
    return rules.judge_quality(ruling.read.body, resolved.task, resolved.size, resolved.frames, facts, held, verdict)


def _without_folders(words: Any) -> Any:
    """Files by their names alone: what is saved beside a clip need not tell where this machine keeps what."""
    if isinstance(words, list):
        return [_without_folders(item) for item in words]
    if isinstance(words, dict):
        return {
            name: Path(item).name if name == "path" and isinstance(item, str) else _without_folders(item)
            for name, item in words.items()
        }
    return words
