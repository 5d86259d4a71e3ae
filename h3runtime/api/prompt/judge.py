"""A prompt object against the task, the inputs and the clip's length: everything that is wrong with it."""

from h3runtime.api.prompt.body import PromptBody
from h3runtime.api.prompt.context import PromptContext
from h3runtime.errors import Offence


def judge(prompt: PromptBody, context: PromptContext) -> list[Offence]:
    """Every offence, in the order of the fields; fields as `prompt.shots[1].at`."""
    return []
