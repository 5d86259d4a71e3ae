"""Which files an engine loads: the ones the settings name, or the embedded set when they name none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from h3runtime.checkpoint.embedded import embedded_set
from h3runtime.errors import Offence, SettingsError
from h3runtime.settings import Settings, default_cache_dir, variable

ALL_PATHS = ("model_path", "text_encoder_path", "video_vae_path", "audio_vae_path", "tokenizer_path")
VAE_PATHS = ("video_vae_path", "audio_vae_path")


@dataclass(frozen=True, slots=True)
class ModelPaths:
    """One file a component; `tokenizer` is a folder. `embedded`: the synthesised default."""

    transformer: Path
    text_encoder: Path
    video_vae: Path
    audio_vae: Path
    tokenizer: Path
    embedded: bool


def model_paths(settings: Settings, needed: Sequence[str] = ALL_PATHS) -> ModelPaths:
    """All of `needed`, or none of any, must be set: a mixture would join weights that were never trained together."""
    given = {name: getattr(settings, name) for name in ALL_PATHS}
    if not any(given[name] is not None for name in needed):
        return _embedded()
    missing = [name for name in needed if given[name] is None]
    if missing:
        names = ", ".join(variable(name) for name in missing)
        why = "is not set, while other checkpoint paths are"
        raise SettingsError(
            f"{names}: not set, while other checkpoint paths are", [Offence(variable(n), why) for n in missing]
        )
    # What is not needed is never opened; the first path stands in for it.
    stand_in = given[needed[0]]
    whole = {name: path or stand_in for name, path in given.items()}
    return ModelPaths(
        transformer=whole["model_path"],
        text_encoder=whole["text_encoder_path"],
        video_vae=whole["video_vae_path"],
        audio_vae=whole["audio_vae_path"],
        tokenizer=whole["tokenizer_path"],
        embedded=False,
    )


def _embedded() -> ModelPaths:
    files = embedded_set(default_cache_dir())
    return ModelPaths(
        transformer=files.transformer,
        text_encoder=files.text_encoder,
        video_vae=files.video_vae,
        audio_vae=files.audio_vae,
        tokenizer=files.tokenizer,
        embedded=True,
    )
