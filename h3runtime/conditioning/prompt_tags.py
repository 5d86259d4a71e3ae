"""Tags in a prompt that look like H3's and are not: worth a warning, never an error (conditioning contract §1.4).

A tag that the tokenizer does not know is split like prose and has no effect. Text that H3 reads as prose on purpose
(`<Picture 1>`, `<scenetrans>`) is not reported. Fed by `engine` with the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Container

# `<cutoff>` without pipes is how the prompt guide writes it (conditioning contract §1.4).
PROSE = re.compile(r"<(?:(?:Picture|Video|Audio|Subject) \d+|scenetrans|cutoff)>")
LOOKS_LIKE_A_TAG = re.compile(r"<\|[A-Za-z_/]{1,40}\|>|</?[A-Za-z_]{1,40}(?: \d{1,4})?>")


def unknown_tags(prompt: str, known: Container[str]) -> tuple[str, ...]:
    """Each tag-like piece of `prompt` that is neither in `known` (the tokenizer's added tokens) nor prose, once."""
    found = dict.fromkeys(LOOKS_LIKE_A_TAG.findall(prompt))
    return tuple(tag for tag in found if tag not in known and not PROSE.fullmatch(tag))
