"""What is asked of both sides: the request that they share with each side's own fields, judged before any weights load.

The rules are those of `POST /generate` and of the settings; what is wrong with a side is told under its name. Draws the
seed once, for both. Fed by the command line; read by `engines` and `making`.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from h3runtime.api.request import INPUTS, MAX_SEED, RANDOM_SEED
from h3runtime.cli.generation.entries import asked_of
from h3runtime.cli.generation.flags import blank
from h3runtime.cli.generation.judging import Ruling, rule_on
from h3runtime.cli.sides.given import EMBEDDED, Side, told_by
from h3runtime.core import Task
from h3runtime.errors import InvalidRequest, Offence, invalid
from h3runtime.settings import PARTITION_PATHS, Settings, default_cache_dir, resolve

SMALL: Final[Mapping[str, int]] = {"width": 192, "height": 192, "frames": 39}
"""Of a clip of the embedded model where the request says nothing: the demo's. H3's own defaults are far beyond what it
was trained on."""
CANVAS = frozenset({"width", "height", "aspect_ratio", "short_edge", *INPUTS, "source"})
LENGTH = frozenset({"frames", "seconds", "source"})


@dataclass(frozen=True, slots=True)
class Half:
    """One side, judged. settings: of its engine; its linear backend is the side's."""

    side: Side
    settings: Settings
    ruling: Ruling

    @property
    def task(self) -> Task:
        return self.ruling.judged.resolved.task


def halves_of(arguments: argparse.Namespace, sides: tuple[Side, Side], scratch: Path) -> tuple[Half, Half]:
    """SettingsError and InvalidRequest for what is wrong with a side or with the request; MalformedRequest, OSError for
    its file. scratch: an existing folder, for media."""
    settings = [_settings(arguments, side) for side in sides]
    raw, folder = _request(arguments, sides[0], settings[0])
    rulings = [
        rule_on(raw | dict(side.request), folder, scratch / f"inputs-{side.name}", own)
        for side, own in zip(sides, settings, strict=True)
    ]
    _raise_any(sides, rulings)
    first, second = (Half(*each) for each in zip(sides, settings, rulings, strict=True))
    return first, second


def _settings(arguments: argparse.Namespace, side: Side) -> Settings:
    """The command's own, changed by the side's. A linear backend of the request is what its weights are loaded for."""
    with told_by(side):
        changes: dict[str, Any] = {name: value for name, value in side.settings.items() if name != EMBEDDED}
        if EMBEDDED in side.settings:
            changes |= _embedded(side.settings[EMBEDDED])
        if isinstance(side.request.get("linear"), str):
            changes["linear"] = side.request["linear"]
        return resolve(vars(arguments) | changes, arguments.config)


def _embedded(kind: str) -> dict[str, Path]:
    """Paths of the embedded model in one of its formats, made at first use."""
    from h3runtime.checkpoint.embedded.formats import FORMATS
    from h3runtime.checkpoint.embedded.sets import embedded_set

    found = next((name for name in FORMATS if name == kind), None)
    if found is None:
        raise invalid([Offence(EMBEDDED, f"{kind!r} is no format of the embedded model", ", ".join(FORMATS))])
    made = embedded_set(default_cache_dir(), found)
    return {
        "model_path": made.transformer,
        "ref2va_model_path": made.ref2va,
        "text_encoder_path": made.text_encoder,
        "video_vae_path": made.video_vae,
        "audio_vae_path": made.audio_vae,
        "tokenizer_path": made.tokenizer,
    }


def _request(arguments: argparse.Namespace, side: Side, settings: Settings) -> tuple[dict[str, Any], Path]:
    """What both share, raw, and where its paths begin. side, settings: A's, which say what model it is for."""
    given = {name: getattr(arguments, name) for name in blank() if hasattr(arguments, name)}
    given |= {"overwrite": False, "request": arguments.request}
    asked = asked_of(argparse.Namespace(**(blank() | given)))
    if asked.is_chain:
        raise invalid([Offence("request", f"{arguments.request.name} is a list", "one request")])
    raw = {name: value for name, value in asked.requests[0].items() if name not in ("output", "overwrite")}
    if raw.get("n", 1) != 1:
        raise invalid([Offence("n", f"{raw['n']} clips: one is compared", "1, or leave it out")])
    if raw.get("refine") is not None:
        raise invalid([Offence("refine", "a second pass is not compared", "null, or leave it out")])
    if EMBEDDED in side.settings or all(getattr(settings, path) is None for path in PARTITION_PATHS.values()):
        raw = _small(raw) | raw
    if str(raw.get("seed", RANDOM_SEED)) == str(RANDOM_SEED):
        raw["seed"] = str(secrets.randbelow(MAX_SEED + 1))
    return raw, asked.folder


def _small(raw: Mapping[str, Any]) -> dict[str, Any]:
    names = [] if raw.keys() & CANVAS else ["width", "height"]
    names += [] if raw.keys() & LENGTH else ["frames"]
    return {name: SMALL[name] for name in names}


def _raise_any(sides: tuple[Side, Side], rulings: list[Ruling]) -> None:
    """All that is wrong, what both have in common once."""
    offences: dict[Offence, None] = {}
    for side, ruling in zip(sides, rulings, strict=True):
        offences |= dict.fromkeys(_offences(side, ruling))
    if offences:
        raise invalid(list(offences))


def _offences(side: Side, ruling: Ruling) -> Iterator[Offence]:
    try:
        ruling.faults.raise_any()
    except InvalidRequest as error:
        for offence in error.offences:
            yield Offence(side.field_of(offence.field), offence.message, offence.legal)
