"""What a prompt can point with: labels of inputs and subjects, shot marks, and the tokenizer's own tags.

Read by `judge` and `lint`. A tag that the tokenizer doesn't know is split like prose and has no effect; the labels
are prose too, on purpose, and mean what the presentation says ahead of the prompt (conditioning contract §1.3, §1.4).
"""

from __future__ import annotations

import re
from typing import Final

LABEL: Final = re.compile(r"<(?:Picture|Video|Audio|Subject) [0-9]{1,9}>")
SHOT: Final = re.compile(r"\[Shot ([0-9]{1,9})\]")

# Conditioning contract §1.4: those that every Qwen3-VL has (ids 151643-151668) and the seven that H3 adds.
_BASE: Final = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think>"
)
_OWN: Final = "<d> </d> <|cutoff|> <|lyrics_start|> <|lyrics_end|> <|caption_start|> <|caption_end|>"
TOKENS: Final = frozenset(f"{_BASE} {_OWN}".split())
"""Every piece of text that is one token whole."""

# `<cutoff>` without pipes is how the prompt guide writes it (conditioning contract §1.4).
_PROSE: Final = re.compile(rf"{LABEL.pattern}|<(?:scenetrans|cutoff)>")
_TAG_LIKE: Final = re.compile(r"<\|[A-Za-z_/]{1,40}\|>|</?[A-Za-z_]{1,40}(?: ?#?[0-9]{1,9})?>")
_NEAR_LABEL: Final = re.compile(r"<(picture|video|audio|subject) ?#?0*([0-9]{1,9})>", re.IGNORECASE)


def unknown_tags(text: str) -> tuple[str, ...]:
    """Each tag-like piece of `text` that is neither a token nor meant to be prose, once, in order."""
    found = dict.fromkeys(_TAG_LIKE.findall(text))
    return tuple(tag for tag in found if tag not in TOKENS and not _PROSE.fullmatch(tag))


def meant_label(tag: str) -> str | None:
    """The label that an unknown tag comes close to: `<Picture 1>` for `<picture1>`."""
    near = _NEAR_LABEL.fullmatch(tag)
    return None if near is None else f"<{near[1].capitalize()} {near[2]}>"
