"""A readable body and its opened media -> everything about the clip that needs no server to decide.

    task, canvas, length -> guides, references, source -> prompt -> rows of text

The same for a client of the service and for the command line, through `twice`. Touches no file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from h3runtime.api import rules
from h3runtime.api.inputs.opened import Inputs
from h3runtime.api.judging.editing import source_of
from h3runtime.api.judging.guides import guides_of
from h3runtime.api.judging.references import judge_lengths, references_of
from h3runtime.api.judging.resolve import Resolved, resolve_request
from h3runtime.api.prompt import context_of, settle
from h3runtime.api.request import INPUTS, GenerateBody, ReadBody
from h3runtime.core import GuideInput, ReferenceInput, SourceInput
from h3runtime.packing.geometry import Size
from h3runtime.packing.rows import input_rows

MAX_TEXT_ROWS = 30_000
"""Of prompt, labels and vision blocks: what the text encoder is given at once at most."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Of a `GenerateSpec`, what the request alone decides. Means nothing while the verdict holds offences.

    prompt: the text that the model reads.
    """

    resolved: Resolved
    prompt: str
    guides: tuple[GuideInput, ...]
    references: tuple[ReferenceInput, ...]
    source: SourceInput | None
    verdict: rules.Verdict


def judge_clip(read: ReadBody, inputs: Inputs, max_area: int, max_frames: int) -> Judged:
    """max_area in pixels, max_frames in frames. All offences and warnings are in the verdict."""
    body, verdict = read.body, rules.Verdict(read)
    source = inputs.clips.get("source")
    resolved = resolve_request(
        body, dict(_anchors(body, inputs)), max_area, max_frames, verdict, None if source is None else source.frames
    )
    judge_lengths(body, inputs, verdict)
    guides = guides_of(body, inputs, resolved.guide_places, resolved.frames, verdict)
    references = references_of(body, inputs, resolved.size, resolved.frames, verdict)
    edited = source_of(body, inputs, resolved.frames, verdict)
    prompt = ""
    if inputs.is_whole and not verdict.broken & {"prompt", "frames", *INPUTS}:
        prompt = _prompt(body, resolved, guides, references, verdict)
    judged = Judged(resolved, prompt, guides, references, edited, verdict)
    _judge_text_rows(judged)
    return judged


def _anchors(body: GenerateBody, inputs: Inputs) -> Iterator[tuple[str, Size]]:
    """What may give the canvas its aspect, in the order of its right to. References never do."""
    names = ["first_frame", "last_frame", "continue_from", "source"]
    names += [f"keyframes[{index}].{kind}" for index in range(len(body.keyframes)) for kind in ("image", "video")]
    for name in names:
        if (size := inputs.size_of(name)) is not None:
            yield name, size


def _prompt(
    body: GenerateBody,
    resolved: Resolved,
    guides: tuple[GuideInput, ...],
    references: tuple[ReferenceInput, ...],
    verdict: rules.Verdict,
) -> str:
    """The text that the model reads, with what is wrong or odd about it told."""
    settled = settle(body.prompt, context_of(resolved.task, resolved.frames, guides, references))
    verdict.offences += settled.offences
    verdict.warnings += settled.warnings
    return settled.text


def _judge_text_rows(judged: Judged) -> None:
    """No tokenizer here: a row a character is more than any has of a text, and what is shown is counted exactly."""
    size = judged.resolved.clip_size
    rows = len(judged.prompt) + input_rows(judged.guides, judged.references, size.width, size.height)
    if rows > MAX_TEXT_ROWS:
        field = "references" if judged.references else judged.guides[0].field
        told = f"{rows} rows of text and pictures would be shown to the text encoder"
        judged.verdict.refuse(field, told, f"at most {MAX_TEXT_ROWS}: fewer, smaller or shorter ones")
