"""Which files an engine loads: the ones the settings name, or the embedded set when they name none.

H3_MODEL_PATH         FL2VA transformer  \\  each with its own tasks; either may be given alone, and then
H3_REF2VA_MODEL_PATH  Ref2VA transformer /  the other one's tasks aren't served
the other four        text encoder, both VAEs and tokenizer, which both transformers share
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from h3runtime.checkpoint.embedded.sets import embedded_set, is_embedded
from h3runtime.checkpoint.families import Component, require_component
from h3runtime.checkpoint.file import CheckpointFile
from h3runtime.checkpoint.partition import FL2VA, REF2VA
from h3runtime.engine.components import NEED
from h3runtime.errors import Offence, SettingsError
from h3runtime.settings import PARTITION_PATHS, Settings, default_cache_dir, variable

ALL_PARTITIONS = tuple(PARTITION_PATHS)
VAE_PATHS = ("video_vae_path", "audio_vae_path")
SHARED_PATHS = ("text_encoder_path", *VAE_PATHS, "tokenizer_path")
COMPONENTS: Mapping[str, Component] = {
    **dict.fromkeys(PARTITION_PATHS.values(), "transformer"),
    "text_encoder_path": "text_encoder",
    "video_vae_path": "video_vae",
    "audio_vae_path": "audio_vae",
}


@dataclass(frozen=True, slots=True)
class ModelPaths:
    """One file, or one folder of files, a component; `tokenizer` is a folder. `embedded`: h3-nano, the default.

    transformers: by partition, in the order of loading; those that are served.
    """

    transformers: Mapping[str, Path]
    text_encoder: Path
    video_vae: Path
    audio_vae: Path
    tokenizer: Path
    embedded: bool


def model_paths(
    settings: Settings, partitions: Sequence[str] = ALL_PARTITIONS, shared: Sequence[str] = SHARED_PATHS
) -> ModelPaths:
    """What the settings name of what is asked for; all of it from the embedded set if they name none of it.

    A transformer that is named is served, with or without the other one. A set with another part missing is completed
    from the embedded one only if the parts that it has are the embedded model's, in whatever format: any others have an
    encoder and VAEs of their own, and these would give noise without an error. SettingsError names what is missing,
    CheckpointError what is broken.
    """
    fields = [PARTITION_PATHS[partition] for partition in partitions]
    given = {name: path for name in (*fields, *shared) if (path := getattr(settings, name)) is not None}
    transformers = [name for name in fields if name in given]
    _require_two_files([given[name] for name in transformers])
    if fields and not transformers:
        _require_none_named(settings, partitions)
    wanted = transformers or fields
    missing = [name for name in (*wanted, *shared) if name not in given]
    if not missing:
        return _paths(given, embedded=False)
    if not all(_is_embedded(name, path, settings) for name, path in given.items() if name in COMPONENTS):
        raise _half_a_set(missing, wanted)
    embedded = _embedded(settings)
    return _paths({name: given.get(name, embedded[name]) for name in (*wanted, *shared)}, embedded=not given)


def _require_two_files(paths: Sequence[Path]) -> None:
    """SettingsError for one file as both partitions: they have the same names and shapes, and other weights."""
    if len(paths) < 2 or not _is_same(*paths):
        return
    names = [variable(field) for field in PARTITION_PATHS.values()]
    why = f"{' and '.join(names)} name the same file, {paths[0].name}, but the weights of one can't serve the other"
    raise SettingsError(why, [Offence(names[-1], why, "the file of the Ref2VA transformer, or nothing")])


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one == other


def _require_none_named(settings: Settings, partitions: Sequence[str]) -> None:
    """SettingsError if the other partition alone is loaded: its weights can't do what is asked."""
    named = [field for field in PARTITION_PATHS.values() if getattr(settings, field) is not None]
    if named:
        offences = [
            Offence(variable(PARTITION_PATHS[name]), f"is not set, and {NEED[name]} it", f"the {name} transformer")
            for name in partitions
        ]
        raise SettingsError("; ".join(f"{o.field} {o.message}" for o in offences), offences)


def _half_a_set(missing: Sequence[str], transformers: Sequence[str]) -> SettingsError:
    """Where no transformer is named, one of the two is enough, so they are one thing that is missing."""
    names = [variable(name) for name in missing if name not in transformers[1:]]
    why = "not set, while other checkpoint paths are"
    return SettingsError(f"{', '.join(names)}: {why}", [Offence(name, why, "all of them or none") for name in names])


def _embedded(settings: Settings) -> dict[str, Path]:
    made = embedded_set(default_cache_dir(), full=settings.verify == "full")
    transformers = {FL2VA: made.transformer, REF2VA: made.ref2va}
    shared = (made.text_encoder, made.video_vae, made.audio_vae, made.tokenizer)
    by_field = {PARTITION_PATHS[partition]: path for partition, path in transformers.items()}
    return by_field | dict(zip(SHARED_PATHS, shared, strict=True))


def _is_embedded(name: str, path: Path, settings: Settings) -> bool:
    """Of a file that is what it should be: one that isn't is told by what it is, not by what is missing beside it."""
    with CheckpointFile(path, qkv_order=settings.qkv_order) as file:
        require_component(file.path, file.shapes, COMPONENTS[name])
        return is_embedded(file.metadata)


def _paths(found: Mapping[str, Path], *, embedded: bool) -> ModelPaths:
    # What is not needed is never opened; any path stands in for it.
    shared = dict.fromkeys(SHARED_PATHS, next(iter(found.values()))) | dict(found)
    return ModelPaths(
        transformers={p: found[field] for p, field in PARTITION_PATHS.items() if field in found},
        text_encoder=shared["text_encoder_path"],
        video_vae=shared["video_vae_path"],
        audio_vae=shared["audio_vae_path"],
        tokenizer=shared["tokenizer_path"],
        embedded=embedded,
    )
