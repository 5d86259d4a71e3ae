"""A contract as a request that an engine takes.

Does: fit the prompt to the loaded tokenizer and fill a `GenerateSpec`. Loads nothing. Fed and read by `measure`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks.contract import Contract
from h3runtime.core import GenerateSpec, SamplerSettings, Task
from h3runtime.errors import Offence, invalid

RUNNABLE = frozenset(Task) - {Task.REF2VA}
"""What this version makes; references come later."""


def require_runnable(contract: Contract) -> None:
    """InvalidRequest for a task that this version can't run."""
    if contract.task not in RUNNABLE:
        legal = ", ".join(sorted(task.value for task in RUNNABLE))
        told = f"{contract.name} is of the task {contract.task.value}, which this version can't run"
        raise invalid([Offence("contract", told, f"a contract of the task {legal}")])


def spec_of(contract: Contract, prompt: str, folder: Path) -> GenerateSpec:
    """The request; its clip and scraps lie in `folder`, each clip replacing the one before."""
    sampling = contract.sampling
    return GenerateSpec(
        job_id=contract.name,
        task=contract.task,
        prompt=prompt,
        width=contract.width,
        height=contract.height,
        frames=contract.frames,
        sampling=SamplerSettings(
            steps=sampling.steps,
            sampler=sampling.sampler,
            scheduler=sampling.scheduler,
            shift=sampling.shift,
            audio_shift=sampling.audio_shift,
            seed=int(sampling.seed),
        ),
        output=folder / "clip.mp4",
        scratch=folder,
        overwrite=True,
    )


def fit_prompt(prompt: str, rows: int, count: Callable[[str], int]) -> str:
    """`prompt` if it has that many rows, else the longest beginning of its repetitions that does.

    count: text rows that a tokenizer makes of a prompt. A row is 20 characters at the very most, or the prompt is none
    of this language; InvalidRequest if no beginning has the rows.
    """
    if count(prompt) == rows:
        return prompt
    endless = " ".join([prompt] * (1 + 20 * rows // len(prompt)))
    for length in range(min(len(endless), 20 * rows), 0, -1):
        if count(endless[:length]) == rows:
            return endless[:length]
    told = f"no beginning of it has {rows} rows with the loaded tokenizer"
    raise invalid([Offence("prompt", told, "a tokenizer that reads English")])
