"""Whether the transformer that a task runs on is loaded, and if not, which setting would load it."""

from __future__ import annotations

from h3runtime.api.request import INPUTS, GenerateBody, is_given
from h3runtime.api.rules import Verdict
from h3runtime.core import EngineFacts, Task
from h3runtime.settings import PARTITION_PATHS, variable


def judge_partition(body: GenerateBody, task: Task, facts: EngineFacts, verdict: Verdict) -> None:
    """Told of `task` if the request states it, else of the input that means it. A transformer without a partition
    serves all tasks."""
    loaded = [part.partition for part in facts.components if part.component == "transformer"]
    if task.runs_on in loaded or None in loaded or verdict.broken & {"task", *INPUTS}:
        return
    possible = " and ".join(str(other) for other in Task if other.runs_on in loaded)
    setting = variable(PARTITION_PATHS[task.runs_on])
    told = f"{task.value} needs the {task.runs_on} transformer, which is not loaded: start the server with {setting}"
    verdict.refuse(_field(body), told, f"{possible}, or a server that {setting} names a checkpoint for")


def _field(body: GenerateBody) -> str:
    if body.task is None:
        for name in ("references", *INPUTS):
            if is_given(body, name):
                return name
    return "task"
