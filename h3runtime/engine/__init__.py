"""The engine: loads every model once and turns requests into clips.

    resident      the engine itself: load, generate
    load, paths   which files, and how they become models
    conditions    pictures -> keyframe latents and what the text encoder sees
    clip          latents -> MP4, while decoding goes on
    decode        saved latents -> clip, sound or pictures, without the transformer
    run           stages, progress, stops
    diagnosis     what a request may ask about its own run

A package where the plan had one module: loading, decoding and running are three nouns.
"""

from h3runtime.core import Engine
from h3runtime.engine.resident import ResidentEngine
from h3runtime.settings import Settings


def create(settings: Settings, threads: int | None = None) -> Engine:
    """The engine of these settings, not loaded yet; `jobs.child` calls it by name in the engine's process."""
    return ResidentEngine(settings, threads)
