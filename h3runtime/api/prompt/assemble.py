"""A prompt object -> the text that H3 reads (conditioning contract §7)."""

from h3runtime.api.prompt.body import PromptBody
from h3runtime.api.prompt.context import PromptContext


def assemble(prompt: PromptBody, context: PromptContext) -> str:
    """The text of a prompt that `judge` finds nothing wrong with."""
    return f"integrated_multimodal_description: [Shot 1] {prompt.shots[0].description}"
