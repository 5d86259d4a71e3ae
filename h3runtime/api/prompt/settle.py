"""One prompt, whatever its form -> the text that the model reads, and what is wrong or odd about it.

What `judging` calls once task, length and inputs are known. A plain string comes out as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from h3runtime.api.prompt.assemble import assemble
from h3runtime.api.prompt.body import PromptBody
from h3runtime.api.prompt.context import PromptContext
from h3runtime.api.prompt.judge import judge
from h3runtime.api.prompt.lint import lint
from h3runtime.errors import Offence


@dataclass(frozen=True, slots=True)
class SettledPrompt:
    """`text` means nothing while there are offences, which only an object can have; warnings begin with `prompt: `."""

    text: str
    offences: tuple[Offence, ...] = ()
    warnings: tuple[str, ...] = ()


def settle(prompt: str | PromptBody, context: PromptContext) -> SettledPrompt:
    """Judge, assemble and lint. Meant for a context that holds: with broken inputs, labels seem to lack theirs."""
    offences = judge(prompt, context) if isinstance(prompt, PromptBody) else []
    if offences:
        return SettledPrompt("", tuple(offences))
    text = prompt if isinstance(prompt, str) else assemble(prompt, context)
    return SettledPrompt(text, warnings=tuple(lint(prompt, context)))
