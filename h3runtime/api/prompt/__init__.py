"""Prompts: the structured one as the wire has it, its text in H3's own form, and what is odd about either.

    body       the prompt object: fields, types, the ranges that hold whatever else is in the request
    examples   one per form, for OpenAPI
    context    what a prompt is judged against: task, length, how many inputs the model is shown
    labels     `<Picture 1>` and its kin; the tokenizer's own tags
    clock      times as prompts write them
    judge      object against inputs: offences
    speech     dialogue as sentences
    assemble   object -> text (conditioning contract §7)
    lint       text or object -> warnings; nothing is ever edited
    sayings    how speech that isn't marked as such looks, in several languages
    settle     all three at once, for a prompt of either form

`request` reads the body; `judging` settles it. Nothing here opens a medium.
"""

from h3runtime.api.prompt.assemble import assemble
from h3runtime.api.prompt.body import MAX_PROMPT, PromptBody
from h3runtime.api.prompt.context import PromptContext, context_of
from h3runtime.api.prompt.judge import judge
from h3runtime.api.prompt.lint import lint
from h3runtime.api.prompt.settle import settle

__all__ = [
    "MAX_PROMPT",
    "PromptBody",
    "PromptContext",
    "assemble",
    "context_of",
    "judge",
    "lint",
    "settle",
]
