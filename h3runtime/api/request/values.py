"""What single values of a request must be. Looks at no two fields together.

A validator here takes a value as JSON gave it and returns the one that the rules read, or refuses it in our own words:
why, and what would be legal. The bodies annotate their fields with these; `read` turns refusals into offences.
"""

from __future__ import annotations

import re
from typing import Any

from h3runtime.api.prompt.body import PROMPT_LEGAL, PromptBody, why_no_prompt
from h3runtime.api.strict import refusal, shown

MAX_SEED = 2**64 - 1
RANDOM_SEED = -1
SHORT_EDGES = tuple(range(256, 769, 32))
AUDIO_BITRATES = (16_000, 384_000)
"""Bits a second: what the AAC encoder takes for stereo at 32 kHz (6144 bits a frame and channel at the top)."""


def read_prompt(value: Any) -> str | PromptBody:
    """A text, or an object, judged as one: a choice of two types would report the errors of both."""
    if isinstance(value, dict):
        return PromptBody.model_validate(value)
    if not isinstance(value, str):
        raise refusal(f"{shown(value)} is neither a text nor an object", f"a text of {PROMPT_LEGAL}, or an object")
    if (why := why_no_prompt(value)) is not None:
        raise refusal(why, PROMPT_LEGAL)
    return value


def read_seed(value: Any) -> int:
    """An integer, or a decimal text of one: JSON numbers lose digits above 2^53 in many clients."""
    legal = f"an integer 0..{MAX_SEED} or its decimal text, or -1 for a random one"
    if isinstance(value, str) and re.fullmatch(r"-1|[0-9]{1,40}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not RANDOM_SEED <= value <= MAX_SEED:
        raise refusal(f"{shown(value)} is no seed", legal)
    return value


def read_aspect(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[1-9][0-9]{0,4}:[1-9][0-9]{0,4}", value):
        raise refusal(f"{shown(value)} is no ratio", '"W:H" of two whole numbers, such as "16:9"')
    return value


def read_bitrate(value: Any) -> int:
    """Bits a second, or kilobits with a `k`, as encoders are told."""
    low, high = AUDIO_BITRATES
    bits = int(value[:-1]) * 1000 if isinstance(value, str) and re.fullmatch(r"[0-9]{1,6}k", value) else value
    if isinstance(bits, bool) or not isinstance(bits, int) or not low <= bits <= high:
        raise refusal(f"{shown(value)} is no bit rate", f'{low}..{high} bits a second, or "{low // 1000}k"..')
    return bits


def read_diagnostics(value: Any) -> Any:
    """`true` is an object without wishes, `false` is none."""
    if isinstance(value, bool):
        return {} if value else None
    if not isinstance(value, dict):
        raise refusal(f"{shown(value)} is neither true, false nor an object", 'true, false or {"latents": true}')
    return value
