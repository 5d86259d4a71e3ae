"""Everything an engine loads, as paths. Made by `embedded` and `synthetic.tiny`; read by `engine` and the tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CheckpointSet:
    """`transformer` is FL2VA's, `ref2va` Ref2VA's; `tokenizer` is a folder."""

    transformer: Path
    ref2va: Path
    text_encoder: Path
    video_vae: Path
    audio_vae: Path
    tokenizer: Path
