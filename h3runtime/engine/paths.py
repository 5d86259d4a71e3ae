"""Which files an engine loads: the ones the settings name, or the embedded set when they name none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from h3runtime.checkpoint.families import Component, require_component
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.synthetic.embedded import embedded_set
from h3runtime.errors import Offence, SettingsError
from h3runtime.settings import Settings, default_cache_dir, variable

ALL_PATHS = ("model_path", "text_encoder_path", "video_vae_path", "audio_vae_path", "tokenizer_path")
VAE_PATHS = ("video_vae_path", "audio_vae_path")
COMPONENTS: Mapping[str, Component] = {
    "model_path": "transformer",
    "text_encoder_path": "text_encoder",
    "video_vae_path": "video_vae",
    "audio_vae_path": "audio_vae",
}


@dataclass(frozen=True, slots=True)
class ModelPaths:
    """One file, or one folder of files, a component; `tokenizer` is a folder. `embedded`: the synthesised default."""

    transformer: Path
    text_encoder: Path
    video_vae: Path
    audio_vae: Path
    tokenizer: Path
    embedded: bool


def model_paths(settings: Settings, needed: Sequence[str] = ALL_PATHS) -> ModelPaths:
    """What the settings name; all of `needed` from the embedded set if they name none of them.

    A part of a set is completed from the embedded one only if its own weights are made up as well: real weights beside
    made-up ones would give noise without an error. SettingsError names what is missing, CheckpointError what is broken.
    """
    given = {name: path for name in needed if (path := getattr(settings, name)) is not None}
    missing = [name for name in needed if name not in given]
    if not missing:
        return _paths(given, embedded=False)
    made_up = [_is_synthetic(name, path, settings) for name, path in given.items() if name in COMPONENTS]
    if not all(made_up):
        why = "not set, while other checkpoint paths are"
        offences = [Offence(variable(name), why, "all of them or none") for name in missing]
        raise SettingsError(f"{', '.join(o.field for o in offences)}: {why}", offences)
    return _paths(_embedded() | given, embedded=not given)


def _embedded() -> dict[str, Path]:
    made = embedded_set(default_cache_dir())
    files = (made.transformer, made.text_encoder, made.video_vae, made.audio_vae, made.tokenizer)
    return dict(zip(ALL_PATHS, files, strict=True))


def _is_synthetic(name: str, path: Path, settings: Settings) -> bool:
    """Of a file that is what it should be: one that isn't is told by what it is, not by what is missing beside it."""
    with CheckpointFile(path, qkv_order=settings.qkv_order) as file:
        require_component(file.path, file.shapes, COMPONENTS[name])
        return file.synthetic


def _paths(found: Mapping[str, Path], *, embedded: bool) -> ModelPaths:
    # What is not needed is never opened; any path stands in for it.
    whole: dict[str, Path] = dict.fromkeys(ALL_PATHS, next(iter(found.values()))) | dict(found)
    return ModelPaths(
        transformer=whole["model_path"],
        text_encoder=whole["text_encoder_path"],
        video_vae=whole["video_vae_path"],
        audio_vae=whole["audio_vae_path"],
        tokenizer=whole["tokenizer_path"],
        embedded=embedded,
    )
