"""The DiT's attention backends and the choice among them. Read by `engine`; the encoder and the VAEs never ask."""

from __future__ import annotations

import torch

from h3runtime.backends.attention.base import AttentionBackend
from h3runtime.backends.attention.sdpa import SdpaAttention
from h3runtime.backends.select import choose, listing
from h3runtime.core import BackendChoice


def attention_backends() -> tuple[AttentionBackend, ...]:
    """All there are, the one that `auto` prefers first."""
    return (SdpaAttention(),)


def choose_attention(name: str, device: torch.device) -> tuple[AttentionBackend, str]:
    """The backend called `name` (or `auto`) and why; InvalidRequest or BackendUnavailable, see `backends.select`."""
    return choose("attention", attention_backends(), name, device)


def attention_choice(chosen: AttentionBackend, why: str, device: torch.device) -> BackendChoice:
    """What `/ready` shows once `chosen` is the server's default."""
    return listing(attention_backends(), chosen.name, why, device)
