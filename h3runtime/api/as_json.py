"""Plain values as the JSON that clients and callbacks get. Judges nothing; reading what clients send is `body`'s."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def as_json(content: Any) -> bytes:
    """UTF-8 without white space. What isn't finite, which JSON has no word for, is null."""
    try:
        return _dumped(content)
    except ValueError:
        return _dumped(_finite(content))


def _dumped(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
