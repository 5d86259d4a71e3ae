"""A request judged by what its media measure, and then, if that isn't too much to decode, by what they really hold.

    open, measure -> judge -> decode to the end -> judge again where that found other measures

So nothing is decoded whose measure already breaks a limit, and nothing is accepted that can't be decoded. Fed by
`admission` and the command line, each with its own rules.
"""

from __future__ import annotations

from collections.abc import Callable

from h3runtime.api.faults import Faults
from h3runtime.api.inputs.copies import Intake
from h3runtime.api.inputs.job_clips import JobClips
from h3runtime.api.inputs.opened import Inputs
from h3runtime.api.inputs.opening import open_inputs, verify_inputs
from h3runtime.api.judging.clip import Judged
from h3runtime.api.request import GenerateBody


def judge_twice(
    body: GenerateBody, intake: Intake, jobs: JobClips | None, faults: Faults, judge: Callable[[Inputs], Judged]
) -> Judged:
    """What `judge` says last. `faults` gets all that is wrong with the media, then all that `judge` found.

    jobs: as `open_inputs` has it.
    """
    measured = open_inputs(body, intake, jobs, faults)
    judged = judge(measured)
    if not _is_too_much(judged):
        verified = verify_inputs(measured, faults)
        judged = judged if verified == measured else judge(verified)
    faults.offences += judged.verdict.offences
    return judged


def _is_too_much(judged: Judged) -> bool:
    """References have limits of length and number, which are there to bound what is decoded."""
    return any(offence.field.startswith("references") for offence in judged.verdict.offences)
