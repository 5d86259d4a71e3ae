"""What is odd about a prompt: warnings, never edits."""

from h3runtime.api.prompt.body import PromptBody
from h3runtime.api.prompt.context import PromptContext


def lint(prompt: str | PromptBody, context: PromptContext) -> list[str]:
    """Warnings about a plain string, or about an object that `judge` accepts. Each begins with `prompt: `."""
    return []
